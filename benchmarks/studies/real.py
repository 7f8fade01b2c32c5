"""Decoding together with real models: ``python -m benchmarks.studies.real --save``, after ``make real GEMMA=1``.

Four real models answer three tasks, each alone on 300 dev and 350 held-out questions: a choice (SciQ), short free
answers (TriviaQA) and a translation (Multi30k). Every pair and triple of them answers the held-out ones by `unite`, the
primary of a set being the member that is best on dev. Other methods and other k run on the two best models without
TinyLlama, which takes most of the time. Votes and cascades come from the models' own answers. Then the ways to decode
are compared, and timed.

The GGUF files are dequantized, into bfloat16 for the answers, and into float32 where texts have to be equal. Responses
are stored as soon as they exist, so a run that was stopped goes on where it was. ``--only TASK`` just answers a task,
so that processes can share the work; ``--only ways`` just compares and times; ``--stored`` runs no model for answers,
and leaves out what is not stored; ``--only llama --llama PYTHON`` times llama.cpp beside this decoder, in a Python that
has `cyllama`. ``python -m benchmarks._real_page`` writes the page again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from advisor.choose.rules import select
from advisor.config import InferenceConfig
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.records import Limits, Profile, length_ratio
from advisor.response_cache import ResponseCache
from advisor.statistics import accuracy_interval, compare, scores
from advisor.strategies.cascade import Cascade, cascade_calls
from advisor.strategies.vote import codes_of
from advisor.strategies.vote_reader import can_vote
from advisor.tasks import Task, load_task
from benchmarks._decoding import BATCH, DRAFTED_LIMITS, PLAIN_LIMIT, Work, pair_figures
from benchmarks._measure import ROOT, Figure, Timer, arguments, progress, spread, tell
from benchmarks._plans import plain_plan
from benchmarks.equality import test_modules
from benchmarks.studies import _llama_cpp
from benchmarks.studies._llama_cpp import ids
from benchmarks.studies._outcomes import answer_digits
from benchmarks.studies.real_models import FOLDER, TASKS, RealModel, there
from ensemble import Ensemble
from ensemble.decode.settings import Settings
from ensemble.models.load import load_member
from ensemble.models.member import LocalMember
from ensemble.models.spec import Checkpoint, ModelSpec
from ensemble.runtime.model_runner import ModelRunner

COMMAND = "python -m benchmarks.studies.real"
DEV, HELD_OUT = 300, 350
METHODS = ("gac", "safe", "geometric")
"""Besides `unite`."""
K = 10
KS = (2, 5, 20)
"""Besides the default."""
SLOW = "tinyllama-1.1b"
"""The model whose sets are decoded by `unite` alone."""
WAYS = "ways"
LLAMA = "llama"
COMPARED = {
    ("smollm2-135m", "stories15m"): 4,
    ("gemma3-270m", "smollm2-135m"): 4,
    ("gemma3-270m", "smollm2-135m", "stories15m"): 4,
}
"""Sets whose texts are compared, and how many prompts of a task they continue; in float32."""
TIMED = (("gemma3-270m", "smollm2-135m"), ("smollm2-135m", "stories15m"))
"""Pairs that are timed; in float32."""
GAPS = (0.0, 10.0, 20.0, 100.0)
"""Points between the last member of a set and its primary, on dev: limits of groups of sets."""
RATIOS = (1.0, 1.5, 2.0, 100.0)
"""Largest ratios of mean lengths, likewise."""
KEYS = (
    "differences",
    "plain_over_members",
    "speculative_over_primary",
    "table_models",
    "held_out_questions",
    "hours",
)
"""What is always in the JSON object; null where it was not measured."""

Members = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Decoded:
    """A set's answers to the held-out questions.

    Attributes:
        method: How it decoded.
        k: Its k.
        members: The primary first.
        profile: The answers.
    """

    method: str
    k: int
    members: Members
    profile: Profile


@dataclass(frozen=True, slots=True)
class TaskAnswers:
    """The answers to the questions of a task.

    Attributes:
        task: The held-out questions.
        dev: Each model's answers to the dev questions, the most accurate model first.
        alone: Each model's answers to the held-out questions, in the same order.
        sets: Those of sets.
    """

    task: Task
    dev: Mapping[str, Profile]
    alone: Mapping[str, Profile]
    sets: Sequence[Decoded]


def main(given: Sequence[str] | None = None) -> int:
    """Answer, measure, print, and keep where asked; 1 where texts differ."""
    parser = arguments((__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where make real put models and questions")
    parser.add_argument("--cache", type=Path, help="where responses are stored; a folder in that one by default")
    parser.add_argument("--stored", action="store_true", help="take the answers that are stored, and no others")
    parser.add_argument("--llama", type=Path, help="a Python with cyllama, to time llama.cpp beside this decoder")
    parser.add_argument(
        "--only", choices=(*TASKS, WAYS, LLAMA), action="append", help="just this; can be given several times"
    )
    options = parser.parse_args(given)
    if options.threads:
        torch.set_num_threads(options.threads)
    names = options.only or [*TASKS, WAYS]
    if LLAMA in names and options.llama is None:
        parser.error("--only llama needs --llama PYTHON")
    answers = {name: answer(name, options) for name in TASKS if name in names}
    figures: list[Figure] = []
    table: dict[str, Any] = {}
    if len(answers) == len(TASKS):
        table = {name: rows_of(each) for name, each in answers.items()}
        figures += answer_figures(table)
    if WAYS in names:
        figures += [*equality_figures(options), *time_figures(options)]
    if options.llama is not None:
        figures += llama_figures(options)
    if options.only and options.save and not table:
        # Only the ways were measured again.
        path = options.save / "real.json"
        table = json.loads(path.read_text(encoding="utf-8")).get("table", {}) if path.exists() else {}
    measured = {figure.name for figure in figures}
    figures += [Figure(key, None, note="not measured here") for key in KEYS if key not in measured and not options.only]
    tell("real", figures, options, table=table)
    return int(any(figure.name == "differences" and figure.value for figure in figures))


def answer(name: str, options: argparse.Namespace) -> TaskAnswers:
    """Have all models and sets answer a task; what is stored is not computed again."""
    limits = {"dev": 4, "held_out": 4} if options.quick else {"dev": DEV, "held_out": HELD_OUT}
    dev, held_out = (
        load_task(TASKS[name], split=split, data_dir=options.folder, limit=limit) for split, limit in limits.items()
    )
    models = there(options.folder)
    plan = plain_plan(
        tuple(spec(model, options.folder, "bfloat16") for model in models),
        dev,
        options.cache or options.folder / "cache",
        COMMAND,
        InferenceConfig(chat_template="never"),
    )
    with ResponseCache(plan.cache_dir) as store:
        profiler = Profiler(plan, store, Progress(quiet=True))

        def is_known(name: str) -> bool:
            return all(len(profiler.stored_alone(name, task)) == len(task.examples) for task in (dev, held_out))

        on_dev = profiler.alone([model.name for model in models if not options.stored or is_known(model.name)], dev)
        order = by_accuracy(on_dev.values())
        alone = profiler.alone(order, held_out)
        for profile in alone.values():
            _say(name, profile.model, profile)
        sets = []

        def decode(by: Profiler, method: str, k: int, members: Members) -> None:
            if options.stored and not by.is_stored(members, held_out, method, {}):
                return
            sets.append(Decoded(method, k, members, by.together(members, held_out, method)))
            _say(name, f"{method}, k = {k}, {', '.join(members)}", sets[-1].profile)

        for members in sorted(sets_of(order), key=lambda each: (SLOW in each, len(each))):
            decode(profiler, "unite", K, members)
        quick = tuple(model for model in order if model != SLOW)[:2]
        for method in METHODS:
            decode(profiler, method, K, quick)
        for k in KS:
            decode(Profiler(replace(plan, k=k), store, Progress(quiet=True)), "unite", k, quick)
    return TaskAnswers(held_out, {model: on_dev[model] for model in order}, alone, sets)


def spec(model: RealModel, folder: Path, dtype: str) -> ModelSpec:
    """How a model is loaded: what is dequantized in ``dtype``, what was not quantized in float32."""
    place = folder / model.path
    return ModelSpec(Checkpoint(str(place)), model.name, dtype=dtype if place.is_file() else "float32")


def by_accuracy(profiles: Iterable[Profile]) -> Members:
    """The models in the order of the rules."""
    decisions = select([profile.standing for profile in profiles], Limits()).decisions
    return tuple(decision.model for decision in decisions)


def sets_of(order: Sequence[str]) -> list[Members]:
    """All pairs and triples."""
    return [members for size in (2, 3) for members in combinations(order, size)]


def rows_of(answers: TaskAnswers) -> dict[str, Any]:
    """What is kept of a task: a row for each model, set and vote, with its score on each question."""
    answered = {
        key: answer_digits(list(by.values())) if can_vote(answers.task) else [None] * len(by)
        for key, by in (("dev_answers", answers.dev), ("answers", answers.alone))
    }
    models = [
        {
            "model": name,
            "dev": answers.dev[name].accuracy,
            "accuracy": profile.accuracy,
            "accuracy_ci": list(accuracy_interval(profile)),
            "mean_length": answers.dev[name].mean_length,
            "failed": sum(one.error is not None for one in profile.answers),
            "seconds": _seconds(profile),
            "dev_scores": packed(answers.dev[name]),
            "scores": packed(profile),
            **{key: digits[place] for key, digits in answered.items()},
        }
        for place, (name, profile) in enumerate(answers.alone.items())
    ]
    sets = [
        {"strategy": each.method, "k": each.k, **_set_row(each.members, each.profile, answers)} for each in answers.sets
    ]
    votes = []
    for size in (3, 4):
        for members in combinations(answers.alone, size) if can_vote(answers.task) else ():
            voters = [answers.alone[name] for name in members]
            vote = Cascade(members).apply(voters, answers.task)
            calls = float(cascade_calls(codes_of(voters)).mean())
            votes.append({"strategy": "vote", "cascade_calls": calls, **_set_row(members, vote, answers)})
    seconds = [profile.cost.seconds for profile in (*answers.dev.values(), *answers.alone.values())]
    return {
        "metric": answers.task.metric,
        "dev_questions": len(next(iter(answers.dev.values())).answers),
        "held_out_questions": len(answers.task.examples),
        "seconds": sum(seconds) + sum(each.profile.cost.seconds for each in answers.sets),
        "models": models,
        "sets": sets,
        "votes": votes,
    }


def _set_row(members: Members, profile: Profile, answers: TaskAnswers) -> dict[str, Any]:
    dev = [answers.dev[name] for name in members]
    difference = compare(profile, [answers.alone[name] for name in members])
    ratios = [length_ratio(one.mean_length, other.mean_length) for one, other in combinations(dev, 2)]
    known = [ratio for ratio in ratios if ratio is not None]
    return {
        "members": list(members),
        "accuracy": profile.accuracy,
        "gain": difference.estimate,
        "gain_ci": list(difference.interval),
        "p": difference.p_two_sided,
        "over": difference.over,
        "gap": dev[0].accuracy - dev[-1].accuracy,
        "ratio": max(known) if len(known) == len(ratios) else None,
        "failed": sum(one.error is not None for one in profile.answers),
        "seconds": _seconds(profile),
        "scores": packed(profile),
    }


def packed(profile: Profile) -> str:
    """Each question's score in percent, as two hexadecimal digits."""
    return np.rint(100 * scores(profile)).astype(np.uint8).tobytes().hex()


def unpacked(text: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The scores, 0 to 1, of what :func:`packed` wrote."""
    return np.frombuffer(bytes.fromhex(text), dtype=np.uint8) / 100


def answer_figures(table: Mapping[str, Any]) -> Iterator[Figure]:
    """What the rows come to, task by task and of all tasks."""
    for name, task in table.items():
        for size, kind in ((2, "pairs"), (3, "triples")):
            rows = [row for row in plain_sets(task) if len(row["members"]) == size]
            yield from _gains(f"{name}_{kind}", rows, f"{kind} by unite, {name}")
            if votes := [row for row in task["votes"] if len(row["members"]) == size]:
                yield from _gains(f"{name}_votes_{kind}", votes, f"votes of {kind}, {name}")
    rows = [row for task in table.values() for row in plain_sets(task)]
    yield from _gains("all", rows, "pairs and triples by unite, all tasks")
    for name, limits in (("gap", GAPS), ("ratio", RATIOS)):
        for low, high in pairwise(limits):
            inside = [row for row in rows if row[name] is not None and (low < row[name] or low == limits[0])]
            inside = [row for row in inside if row[name] <= high]
            note = f"with a {name} of {low:g} to {high:g} on dev"
            yield from _gains(f"{name}_{low:g}_{high:g}".replace(".", ""), inside, note)
    models = {model["model"] for task in table.values() for model in task["models"]}
    yield Figure("table_models", len(models), limit="at least 4")
    questions = sum(task["held_out_questions"] for task in table.values())
    yield Figure("held_out_questions", questions, limit="at least 1000", note="of all tasks")
    hours = sum(task["seconds"] for task in table.values()) / 3600
    yield Figure("hours", hours, limit="at most 2", note="of all answers, in processes with one thread")


def plain_sets(task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows of `unite` with the usual k."""
    return [row for row in task["sets"] if row["strategy"] == "unite" and row["k"] == K]


def _gains(name: str, rows: Sequence[Mapping[str, Any]], note: str) -> Iterator[Figure]:
    """The mean gain over the best member, and the share of the rows that gain."""
    gains = [row["gain"] for row in rows]
    if gains:
        note = f"{len(gains)} {note}"
        yield Figure(f"{name}_gain", float(np.mean(gains)), min(gains), max(gains), note=f"points; {note}")
        yield Figure(f"{name}_share", float(np.mean([gain > 0 for gain in gains])), note=f"that gain; {note}")
        for word, sign in (("better", 1), ("worse", -1)):
            shown = sum(row["p"] <= 0.05 and sign * row["gain"] > 0 for row in rows)
            yield Figure(f"{name}_{word}", shown, note=f"with p of at most 0.05; {note}")


def members_of(names: Sequence[str], options: argparse.Namespace) -> list[LocalMember]:
    """Some models, loaded in float32, without their chat templates; none if one is missing."""
    known = {model.name: model for model in there(options.folder)}
    if not set(names) <= set(known):
        return []
    specs = [spec(known[name], options.folder, "float32") for name in names]
    return [load_member(replace(each, chat_template="never")) for each in specs]


def equality_figures(options: argparse.Namespace) -> Iterator[Figure]:
    """How many texts come out otherwise in another way to decode than one by one and without drafts."""
    (ways,) = test_modules("ways")
    texts, found = 0, list[str]()
    for names, count in COMPARED.items():
        members = members_of(names, options)
        for task in ("triviaqa", "translation") if members else ():
            progress(f"benchmarks.studies.real: the ways to decode, {', '.join(names)}, {task}")
            limit = 1 if options.quick else count
            questions = load_task(TASKS[task], split="held_out", data_dir=options.folder, limit=limit)
            prompts = [example.prompt for example in questions.examples]
            settings, ensemble = Settings(questions.max_new_tokens, questions.stop), Ensemble(members, k=K)
            plain = ways.decode(ensemble, prompts, settings)
            texts += len(plain) * (len(ways.WAYS) + 1)
            found += ways.differences(ensemble, prompts, settings, plain)
    if texts:
        note = f"of {texts} texts that were drafted, batched, traced or streamed, in float32; {'; '.join(found[:3])}"
        yield Figure("differences", len(found), limit="0", note=note.removesuffix("; "))


def time_figures(options: argparse.Namespace) -> Iterator[Figure]:
    """The times of decoding together over those of the members; of all pairs the worst."""
    timer = Timer(options.rounds or (1 if options.quick else 3), options.clock)
    figures = []
    for names in TIMED:
        if members := members_of(names, options):
            progress(f"benchmarks.studies.real: times, {', '.join(names)}")
            path = TASKS["translation"]
            questions = load_task(path, split="held_out", data_dir=options.folder, shots=0, limit=BATCH)
            prompts = [example.prompt for example in questions.examples]
            work = Work(prompts, 1 if options.quick else 3, 4 if options.quick else questions.max_new_tokens)
            suffix = "_" + "_".join(name.partition("-")[0] for name in names)
            figures += pair_figures(members, work, timer, suffix, note=f"{' + '.join(names)}, float32")
    yield from figures
    for name, limit in (("plain_over_members", PLAIN_LIMIT), ("speculative_over_primary", DRAFTED_LIMITS["_middle"])):
        own = [figure for figure in figures if figure.name.startswith(f"{name}_") and "batch" not in figure.name]
        if own:
            worst = max(own, key=lambda figure: figure.value or 0)
            yield replace(worst, name=name, limit=limit)


def llama_figures(options: argparse.Namespace) -> Iterator[Figure]:
    """How many times as fast llama.cpp is as this decoder, on the same GGUF files and one thread."""
    torch.set_num_threads(1)
    for model in there(options.folder):
        path = options.folder / model.path
        if not path.is_file():
            continue
        progress(f"benchmarks.studies.real: llama.cpp, {model.name}")
        own = {dtype: load_member(spec(model, options.folder, dtype)) for dtype in ("bfloat16", "float32")}
        speedups: dict[str, list[float]] = {}
        logits = ""
        for _ in range(options.rounds or (1 if options.quick else 3)):
            command = [options.llama, ROOT / "benchmarks" / "_llama_cpp.py", path]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            theirs = json.loads(printed.splitlines()[-1])
            logits = theirs.pop("logits")
            for dtype, member in own.items():
                for part, seconds in step_seconds(member).items():
                    speedups.setdefault(f"{part}_{dtype}", []).append(seconds / theirs[part])
        for key, rounds in speedups.items():
            name = f"llama_{key}_{model.name}".replace("-", "_").replace(".", "")
            yield spread(name, rounds, note=f"times as fast as this decoder; {model.name}, {model.weights}")
        note = f"whether the binding gives logits; {model.name}; {logits}"
        yield Figure(f"llama_logits_{model.name}".replace("-", "_").replace(".", ""), float(not logits), note=note)


@torch.inference_mode()
def step_seconds(member: LocalMember) -> dict[str, float]:
    """Seconds of the processor for each token of a prompt, of one text, and of several at once; logits included."""

    def timed(tokens: int, run: Callable[[], object]) -> float:
        start = time.process_time()
        run()
        return (time.process_time() - start) / tokens

    def steps(runner: ModelRunner, rows: int, count: int) -> None:
        for n in range(count):
            runner.feed([length + n for length in lengths], [[token] for token in ids(rows)])

    one, many = member.runner(), member.runner()
    lengths = [_llama_cpp.PROMPT]
    one.admit([ids(8)])  # the first pass prepares kernels
    one.drop([])
    found = {"prompt": timed(_llama_cpp.PROMPT, lambda: one.admit([ids(_llama_cpp.PROMPT)]))}
    found["one"] = timed(_llama_cpp.STEPS, lambda: steps(one, 1, _llama_cpp.STEPS))
    many.admit([[token] for token in ids(_llama_cpp.BATCH)])
    lengths, count = [1] * _llama_cpp.BATCH, _llama_cpp.STEPS // 2
    found["many"] = timed(count * _llama_cpp.BATCH, lambda: steps(many, _llama_cpp.BATCH, count))
    return found


def _seconds(profile: Profile) -> float:
    return profile.cost.seconds / len(profile.answers)


def _say(task: str, what: str, profile: Profile) -> None:
    progress(f"{task}: {what}: {profile.accuracy:.1f} in {profile.cost.seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
