"""Profiling the demo's pool on a Ray cluster against one process: ``python -m benchmarks.cluster``.

Both load the demo's models from their folders and answer the same questions into a new store, in turns, round after
round. The process computes with all cores; the cluster, which is this machine too, has two workers with half of the
cores each. In Ray's time is what every run pays once its cluster is there: starting the workers, their libraries,
sending questions and responses. What it takes to start and stop the cluster itself is told apart, and so is the ratio
with all of it. This process has its own libraries already, in both. What is not here: several machines, GPUs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from advisor.engines.cluster import ClusterEngine
from advisor.engines.engine import Engine
from advisor.engines.local import LocalEngine
from advisor.engines.needs import Needs
from advisor.loading import hush
from advisor.plan import Plan
from advisor.pool import read_pool
from advisor.profiler import Profiler
from advisor.store import Store
from advisor.tasks import load_task
from advisor.terminal import Terminal
from benchmarks._measure import Figure, Timer, arguments, progress, ratio, spread, tell
from benchmarks._plans import plain_plan
from ensemble.cluster import cluster

WORKERS = 2
QUESTIONS = 200
KEYS = ("ray_over_local", "ray_and_start_over_local", "ray_start_s", "ray_stop_s", "same_responses")
"""What is always in the JSON object."""


@dataclass(slots=True)
class Run:
    """Profiles the pool again and again.

    Attributes:
        plan: The pool and the questions.
        texts: What was written the last time.
    """

    plan: Plan
    texts: list[str]

    def __call__(self, engine: Engine) -> int:
        """Profile every candidate, with nothing in the store."""
        with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
            profiler = Profiler(self.plan, store, Terminal(quiet=True), engine=engine)
            found = profiler.alone([candidate.name for candidate in self.plan.candidates], self.plan.dev)
        self.texts = [answer.text for one in found.values() for answer in one.profile.answers]
        return 1


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and keep where asked."""
    options = arguments(__doc__ or "").parse_args(given)
    threads = options.threads or os.cpu_count() or 1
    share = max(threads // WORKERS, 1)
    torch.set_num_threads(threads)
    hush(quiet=True)
    # The processor's time of this process says nothing of the workers'.
    timer = Timer(options.rounds or (1 if options.quick else 5))
    with tempfile.TemporaryDirectory() as folder:
        plan = make_plan(Path(folder), *((6, 1) if options.quick else (QUESTIONS, None)))
        here, there = Run(plan, []), Run(plan, [])
        before = timer.now()
        with _threads(share), cluster("local"):
            start = timer.now() - before
            progress(f"benchmarks.cluster: {len(plan.candidates)} models, {len(plan.dev.examples)} questions")
            engine = ClusterEngine(plan.cache_dir, progress)
            seconds = timer({"local": lambda: here(LocalEngine()), "ray": lambda: there(engine)})
            before = timer.now()
        stop = timer.now() - before
    local, ray = seconds["local"], seconds["ray"]
    equal = sum(a == b for a, b in zip(here.texts, there.texts, strict=True)) / len(here.texts)
    whole = [one + start + stop for one in ray]
    tell(
        "cluster",
        [
            ratio(
                "ray_over_local", ray, local, limit="at most 1.1", note="the cluster is there; its workers start anew"
            ),
            ratio("ray_and_start_over_local", whole, local, note="and the cluster is started and stopped for it"),
            Figure("ray_start_s", start, note="starting the cluster on this machine, and Ray's own import"),
            Figure("ray_stop_s", stop, note="stopping it"),
            spread("local_s", local, note=f"one process with {threads} threads"),
            spread("ray_s", ray, note=f"{WORKERS} workers with {share} threads each"),
            Figure("same_responses", equal, limit="1", note="share of the texts that are equal"),
        ],
        options,
    )
    return 0


def make_plan(folder: Path, questions: int, models: int | None) -> Plan:
    """The demo's pool, or some of it, of which two models are at work at a time."""
    candidates, cores = read_pool("demo")[:models], max((os.cpu_count() or 1) // WORKERS, 1)
    shared = tuple(replace(candidate, needs=Needs(num_cpus=cores)) for candidate in candidates)
    dev = load_task("word_problems", limit=questions)
    return plain_plan(shared, dev, folder / "cache", "python -m benchmarks.cluster")


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Give the workers so many threads; Ray itself sets what nobody has set."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(number)
    try:
        yield
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


if __name__ == "__main__":
    sys.exit(main())
