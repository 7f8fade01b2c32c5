"""Profiling against lm-eval's ``hf`` backend, and stored runs: ``python -m benchmarks.profiling``.

Both answer the same prompts (GSM8K with five shots) with the same model, of random weights, in the same numeric type,
up to the same number of tokens, with the same stops. Random weights write no stop, and cannot write the end token here,
so both generate the same number of tokens; how many of the texts are equal is told. lm-eval goes at the batch size that
was its best in a first round of several, ours at its own choice. The time is that of the answers: lm-eval's without
scores, ours with the store and the scores. Models are loaded before.

The models have the vocabulary of Llama 2, real where ``../shared`` is, and the questions are GSM8K's, or else the
demo's. Not here: accelerators, choice tasks, other lengths of prompts and responses, whose ratios differ: what is
gained is mostly the prompt's shared beginning.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from advisor.models.job import Job
from advisor.models.loaded_models import LocalJobRunner, load_ensemble, silence_libraries
from advisor.models.local_model import LocalModel
from advisor.models.response_cache import ResponseCache
from advisor.progress import Progress
from advisor.tasks import Task, load_task
from benchmarks._measure import Figure, Timer, arguments, measured, parsed, progress, ratio, spread, tell
from benchmarks._models import MIDDLE, TINY, TOKENIZERS, Shape, random_llama, vocabulary
from ensemble import Ensemble
from ensemble.common.files import default_cache_dir
from ensemble.errors import MemberError
from ensemble.models.spec import Checkpoint, EnsembleSpec, ModelSpec

DATA = TOKENIZERS.parent / "data"
SHOTS = 5
SECONDS_STORED = 5
KEYS = (
    "throughput_over_lm_eval",
    "same_responses",
    "tokens_per_second",
    "tokens_per_second_lm_eval",
    "stored_over_import_s",
)
"""What is always in the JSON object; null where it cannot be measured."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done: questions, tokens of each response, lm-eval's batch sizes, and the models."""

    questions: int
    tokens: int
    batches: tuple[int, ...]
    shape: Shape
    stored: int


FULL = Size(questions=32, tokens=96, batches=(4, 8, 16, 32), shape=MIDDLE, stored=300)
QUICK = Size(questions=3, tokens=4, batches=(1, 3), shape=TINY, stored=4)


def _size(options: argparse.Namespace) -> Size:
    return QUICK if options.quick else FULL


def main(given: Sequence[str] | None = None) -> int:
    """Measure what is asked for, print it, keep it where asked."""
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--only", choices=SECTIONS, action="append", help="just this section; can be given several times"
    )
    options = parsed(parser, given)
    silence_libraries()
    tell("profiling", measured("benchmarks.profiling", SECTIONS, KEYS, options), options)
    return 0


def throughput(options: argparse.Namespace) -> list[Figure]:
    """The same prompts by both, in turns."""
    try:
        import lm_eval  # noqa: F401  # whether it is there
    except ImportError:
        progress("benchmarks.profiling: skipped, lm-eval is not installed (pip install 'lm_eval[hf]>=0.4.13')")
        return []
    size, timer = _size(options), Timer(options.rounds or (1 if options.quick else 3), options.clock)
    task = replace(_task(size.questions, quick=options.quick), max_new_tokens=size.tokens)
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder) / "model", size.shape, seed=0, quick=options.quick)
        ours, theirs = Ours(model, task, Path(folder)), Theirs(model, task)
        seconds = {batch: timer.once(partial(theirs, batch)) for batch in size.batches}
        best = min(seconds, key=seconds.__getitem__)
        tried = ", ".join(f"{batch}: {taken:.1f} s" for batch, taken in seconds.items())
        progress(f"benchmarks.profiling: lm-eval's best batch size is {best} ({tried})")
        # Its parts have run, and ours has its first time here; Timer would have another.
        ours()
        taken: dict[str, list[float]] = {"ours": [], "lm-eval": []}
        for _ in range(timer.rounds):
            taken["lm-eval"].append(timer.once(partial(theirs, best)))
            taken["ours"].append(timer.once(ours))
    tokens = size.questions * size.tokens
    if ours.tokens != tokens:
        raise RuntimeError(f"{ours.tokens} tokens were written instead of {tokens}: a response has ended by itself")
    same = sum(one == other for one, other in zip(ours.texts, theirs.texts, strict=True)) / size.questions
    prompt = sum(len(theirs.model.tok_encode(example.prompt)) for example in task.examples) / size.questions
    note = f"{size.questions} prompts of {prompt:.0f} tokens, {size.tokens} each to write; lm-eval's batches: {tried}"
    return [
        ratio("throughput_over_lm_eval", taken["lm-eval"], taken["ours"], limit="at least 2", note=note),
        spread("tokens_per_second", [tokens / one for one in taken["ours"]]),
        spread("tokens_per_second_lm_eval", [tokens / one for one in taken["lm-eval"]], note=f"batches of {best}"),
        Figure("same_responses", same, note="share of equal texts; random weights have near ties"),
    ]


class Ours:
    """Profiling as the commands do it, with a new store each time."""

    def __init__(self, folder: Path, task: Task, place: Path) -> None:
        model = ModelSpec(Checkpoint(str(folder)), "model", "cpu", "float32", "never")
        self.ensemble: Ensemble = load_ensemble(EnsembleSpec((model,)), place)
        self.task, self.place = task, place
        self.tokens, self.texts = 0, [""]

    def __call__(self) -> None:
        """Answer and score all questions."""
        connect = partial(LocalModel, "model", lambda: self.ensemble)
        task, bars = self.task, Progress(quiet=True)
        spec = EnsembleSpec(())  # so that the engine measures and frees memory, as it does for every local model
        with tempfile.TemporaryDirectory(dir=self.place) as cache, ResponseCache(Path(cache)) as store:
            job = Job("model", task, task.settings, connect, key={}, cache=store, progress=bars, spec=spec)
            [finished] = LocalJobRunner(default_cache_dir()).run([job])
        if isinstance(finished.result, MemberError):
            raise finished.result
        done = finished.result
        self.tokens, self.texts = done.cost.tokens, [answer.text or "" for answer in done.answers]


class Theirs:
    """lm-eval's backend for models of transformers."""

    def __init__(self, folder: Path, task: Task) -> None:
        from lm_eval.api.instance import Instance
        from lm_eval.models.huggingface import HFLM

        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        self.model: Any = HFLM(pretrained=str(folder), device="cpu", dtype="float32", max_length=4096)
        settings = {"until": list(task.stop), "max_gen_toks": task.max_new_tokens, "do_sample": False}
        self.requests = [
            Instance("generate_until", {}, (example.prompt, settings), 0, ("gsm8k", n, 1))
            for n, example in enumerate(task.examples)
        ]
        self.texts = [""]

    def __call__(self, batch: int) -> None:
        """Answer all questions, so many at a time."""
        self.model.batch_size_per_gpu = batch
        self.texts = self.model.generate_until(self.requests, disable_tqdm=True)


def stored(options: argparse.Namespace) -> list[Figure]:
    """A second run of which all is stored, without the time that its imports take."""
    size, rounds = _size(options), options.rounds or (1 if options.quick else 3)
    now = partial(_children_now, options.clock)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        names = [make_model(place / f"model-{n}", TINY, seed=n, quick=options.quick).name for n in range(3)]
        again = partial(_advisor, place, names, size.stored, quick=options.quick)
        again()
        beyond = []
        for _ in range(rounds):
            start = now()
            imported = ", ".join(again())
            between = now()
            _python(f"import {imported}")
            beyond.append((between - start) - (now() - between))
    note = f"3 models with {size.stored} stored responses each; the libraries that it loads: {imported}"
    return [spread("stored_over_import_s", beyond, limit=f"at most {SECONDS_STORED}", note=note)]


def _children_now(clock: str) -> float:
    """The time in seconds, or the processor's time of all processes that this one has started and that have ended."""
    spent = os.times()
    return spent.children_user + spent.children_system if clock == "cpu" else time.perf_counter()


SECTIONS: dict[str, Callable[[argparse.Namespace], list[Figure]]] = {"throughput": throughput, "stored": stored}


def make_model(folder: Path, shape: Shape, *, seed: int, quick: bool) -> Path:
    """Write a model of Llama's architecture with random weights, which cannot write its end token; its folder."""
    tokenizer, rows = vocabulary("llama-2", quick=quick)
    torch.manual_seed(seed)
    model = random_llama(tokenizer, rows, shape, is_tied=True)
    with torch.no_grad():
        # Its logit is 0 at all times, and of thousands of others one is always above that.
        model.get_input_embeddings().weight[tokenizer.eos_token_id] = 0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _task(questions: int, *, quick: bool) -> Task:
    if DATA.is_dir() and not quick:
        return load_task("gsm8k", split="test", data_dir=DATA, shots=SHOTS, limit=questions)
    return load_task("word_problems", split="test", shots=SHOTS, limit=questions)


_CHILD = """
import json, os, sys
from pathlib import Path
from advisor.cli import main

try:
    main()
finally:
    known = "torch transformers tokenizers datasets numpy scipy sklearn sacrebleu typer rich jinja2 yaml".split()
    Path(os.environ["TOLD"]).write_text(json.dumps([name for name in known if name in sys.modules]))
"""


def _advisor(place: Path, models: Sequence[str], questions: int, *, quick: bool) -> list[str]:
    """``advisor profile`` in a process of its own: the libraries it loaded."""
    (place / "pool.txt").write_text("".join(f"{model}\n" for model in models), encoding="utf-8")
    task = ("gsm8k", "--data", str(DATA)) if DATA.is_dir() and not quick else ("word_problems",)
    _python(
        _CHILD,
        *("profile", "--pool", str(place / "pool.txt"), "--task", *task, "--split", "test", "--shots", str(SHOTS)),
        *("--limit", str(questions), "--max-new-tokens", "2", "--chat-template", "never", "--quiet"),
        *("--cache-dir", str(place / "cache")),
        told=place / "told.json",
    )
    return list(json.loads((place / "told.json").read_text(encoding="utf-8")))


def _python(code: str, *given: str, told: Path | None = None) -> None:
    threads = str(torch.get_num_threads())
    environment = {**os.environ, "TOLD": str(told), "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    done = subprocess.run(
        [sys.executable, "-I", "-W", "ignore", "-c", code, *given],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"a run has failed: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main())
