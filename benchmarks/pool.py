"""Rules, pairs and report of many candidates whose responses are stored: ``python -m benchmarks.pool``.

A pool of folders is made up, with real configurations and tokenizers of 32,000 tokens and weights that nobody reads,
and a store with a response of each candidate to each question. Then ``advisor select --no-verify`` does its whole job
on the first candidates, on more and more of them: identifies them, takes their responses from the store, grades them,
applies the rules, measures every pair, and writes the files and the report. What is not here: anything that runs a
model, so the pairs' reading of each other's responses.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file
from transformers import AutoConfig

from advisor.config import InferenceConfig
from advisor.demo.questions import Problem, make_problem
from advisor.jobs.result_json import result_of, samples_of
from advisor.jobs.select import run
from advisor.pool.fingerprint import identify
from advisor.pool.pool_file import read_pool
from advisor.progress import Progress
from advisor.response_cache import ResponseCache
from advisor.runs.run_folder import write_run
from advisor.tasks import Task, load_task
from benchmarks._measure import Figure, Timer, arguments, peak_memory, progress, tell
from benchmarks._models import made_up_tokenizer
from benchmarks._plans import plain_plan, profile
from ensemble.decode.sequences import Generation
from ensemble.decode.settings import Batch, Settings
from ensemble.models.spec import ModelSpec
from reports import write_report

SIZES = (2, 10, 25, 50, 100)
QUESTIONS = 300
VOCABULARIES = 10
"""Tokenizers in the pool: many models are made from few."""
TASK = """\
name: sums
data: {dev: dev.jsonl, held_out: held_out.jsonl}
prompt: "Question: {{question}}\\nAnswer:"
reference: "{{answer}}"
metric: number
extract: "answer is (-?[0-9]+)"
max_new_tokens: 256
"""
BEGINNINGS = ("Let's think step by step.", "We are asked: {question}", "Okay, so", "First, look at what is given.", "")
STEPS = ("We compute {step}", "So now it is {step}", "{step}", "That gives {step}", "Next we see that {step}")
REMARKS = ("Nothing else happens to the number in between, so we can go on with it.", "This is easy to check.", "")
ENDS = (
    "The answer is {answer}.",
    "Therefore, the answer is {answer}.",
    "So the final answer is {answer}. I hope it helps!",
)


@dataclass(frozen=True, slots=True)
class Writer:
    """A candidate's way to answer; in place of its model, which would have written the same.

    Attributes:
        name: The candidate's.
        problems: The questions.
        skill: Share of them that it gets right.
    """

    name: str
    problems: Sequence[Problem]
    skill: float

    def encode(self, prompt: str) -> list[list[int]]:
        """The number of the question that a prompt asks."""
        question = prompt.removeprefix("Question: ").removesuffix("\nAnswer:")
        return [[next(n for n, problem in enumerate(self.problems) if problem.question == question)]]

    def generate_each(
        self,
        prompts: Sequence[list[list[int]]],
        settings: Settings,  # noqa: ARG002  # as an ensemble has it
        batch: Batch | None = None,  # noqa: ARG002  # likewise
    ) -> Iterator[tuple[int, Generation]]:
        """A response to each."""
        for place, [[number]] in enumerate(prompts):
            yield place, Generation(self.response(number), tuple(range(60)), "eos")

    def most_rows(self, tokens: int) -> int | None:  # noqa: ARG002  # as an ensemble has it
        """Room for any number: nothing is computed."""
        return None

    def response(self, number: int) -> str:
        """Sentences as the candidate uses to write them, with its own mistakes, and now and then another turn."""
        style, chance = random.Random(self.name), random.Random(f"{self.name} {number}")
        habits = [style.choice(part) for part in (BEGINNINGS, STEPS, REMARKS, ENDS)]
        begin, step, remark, end = (
            chance.choice(part) if chance.random() < 0.2 else habit
            for part, habit in zip((BEGINNINGS, STEPS, REMARKS, ENDS), habits, strict=True)
        )
        problem = self.problems[number]
        answer = problem.answer if chance.random() < self.skill else problem.answer + chance.randint(-9, 9)
        steps = (f"{step.format(step=each)} {remark}".strip() for each in problem.steps)
        parts = (begin.format(question=problem.question), *steps, end.format(answer=answer))
        return " " + " ".join(part for part in parts if part)


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and keep where asked."""
    options = arguments(__doc__ or "").parse_args(given)
    if options.threads:
        torch.set_num_threads(options.threads)
    sizes, questions, tokens = ((2, 4), 12, 2_000) if options.quick else (SIZES, QUESTIONS, 32_000)
    timer = Timer(options.rounds or 1, options.clock)
    with tempfile.TemporaryDirectory() as folder:
        progress(f"benchmarks.pool: making {sizes[-1]} candidates with {questions} responses each")
        candidates, task = make_pool(Path(folder), sizes[-1], questions, tokens)
        before = peak_memory()
        measured = {}
        for size in sizes:
            progress(f"benchmarks.pool: {size} candidates")
            measured[size] = [measure(Path(folder), candidates[:size], task, timer) for _ in range(timer.rounds + 1)]
        tell("pool", list(figures(measured, before)), options)
    return 0


def make_pool(folder: Path, size: int, questions: int, tokens: int) -> tuple[tuple[ModelSpec, ...], Task]:
    """Write candidates, a task, and a store that has all their responses."""
    chance = random.Random(0)
    problems = list(
        {problem.question: problem for problem in (make_problem(chance) for _ in range(2 * questions))}.values()
    )
    problems = problems[:questions]
    records = ({"question": problem.question, "answer": str(problem.answer)} for problem in problems)
    (folder / "dev.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    (folder / "held_out.jsonl").touch()  # nothing is run there
    (folder / "task.yaml").write_text(TASK, encoding="utf-8")
    task = load_task(str(folder / "task.yaml"))
    for number in range(min(VOCABULARIES, size)):
        made_up_tokenizer(tokens, f"tokenizer {number}").save_pretrained(folder / f"tokenizer-{number}")
    for number in range(size):
        _make_folder(folder / f"model-{number}", folder / f"tokenizer-{number % VOCABULARIES}", number, tokens)
    (folder / "pool.txt").write_text("".join(f"model-{number}\n" for number in range(size)), encoding="utf-8")
    candidates = read_pool(str(folder / "pool.txt"))
    inference = InferenceConfig()
    with ResponseCache(folder / "cache") as store:
        for candidate in candidates:
            writer = Writer(candidate.name, problems, chance.uniform(0.3, 0.9))
            key = {"members": [identify(candidate, inference.dtype, inference.chat_template).key()]}
            make = partial(cast, "Ensemble", writer)
            profile(candidate.name, key, make, task, store)
    return candidates, task


def _make_folder(folder: Path, tokenizer: Path, number: int, tokens: int) -> None:
    """A model's folder, which differs from the others in its configuration, so that it is another model."""
    folder.mkdir()
    for path in tokenizer.iterdir():
        os.link(path, folder / path.name)
    config = AutoConfig.for_model("llama", vocab_size=tokens, hidden_size=64, initializer_range=0.02 + number * 1e-6)
    config.save_pretrained(folder)
    save_file({"unused": torch.zeros(1)}, folder / "model.safetensors")


def measure(folder: Path, candidates: tuple[ModelSpec, ...], task: Task, timer: Timer) -> dict[str, float]:
    """The whole job on some candidates: seconds in all and of its last part, and the most memory so far."""
    plan = plain_plan(candidates, task, folder / "cache", "python -m benchmarks.pool")
    start = timer.now()
    with ResponseCache(plan.cache_dir) as store:
        outcome = run(plan, store, Progress(quiet=True))
    chosen = timer.now()
    write_run(folder / "run", result_of(outcome), samples_of(outcome))
    written = timer.now()
    report = write_report(folder / "run")
    end = timer.now()
    return {
        "seconds": end - start,
        "choosing": chosen - start,
        "report": end - written,
        "memory": peak_memory(),
        "report_bytes": float(report.stat().st_size),
    }


def figures(measured: dict[int, list[dict[str, float]]], before: float) -> Iterator[Figure]:
    """What is told: of each size the first round apart, as it meets new candidates, and the medians of the others."""

    def later(size: int, what: str) -> list[float]:
        return sorted(one[what] for one in measured[size][1:])

    def median(size: int, what: str) -> float:
        values = later(size, what)
        return values[len(values) // 2]

    *_, half, most = measured
    for size in measured:
        limit = "at most 60" if size == most else ""
        times = later(size, "seconds")
        note = f"{size} candidates, everything stored: all of it, from their names to the written report"
        yield Figure(f"seconds_{size}", median(size, "seconds"), times[0], times[-1], limit, note)
    yield Figure(
        "seconds_first",
        measured[most][0]["seconds"],
        note=f"{most} candidates, {most - half} of them for the first time",
    )
    yield Figure("seconds_choosing", median(most, "choosing"), note="of it profiles, rules, pairs, margins and advice")
    yield Figure("seconds_report", median(most, "report"), note="of it the report")
    growth = math.log(median(most, "seconds") / median(half, "seconds"), most / half)
    yield Figure("growth", growth, note=f"seconds grow with this power of the candidates, from {half} to {most}")
    for size in measured:
        limit = "at most 2048" if size == most else ""
        yield Figure(f"memory_{size}_mib", measured[size][-1]["memory"], limit=limit, note="the whole process so far")
    yield Figure("memory_before_mib", before, note="the process with its libraries, when the pool had been made")
    yield Figure("report_mib", median(most, "report_bytes") / 2**20, note=f"report.html of {most} candidates")


if __name__ == "__main__":
    sys.exit(main())
