"""Profiling the demo's pool on a Ray cluster against one process: ``python -m benchmarks.cluster``.

What is timed is ``advisor profile`` as a user gives it, in turns, round after round, with nothing in the store: once in
one process with all cores, once with ``--engine ray`` on a cluster that is there, this machine too, where two workers
have half of the cores each. Libraries are loaded in both, by one process here and by three there.
What it takes to start and stop a cluster is told apart, and so is what it comes to when libraries and workers are there
already, as they are from a run's second stage on. What is not here: several machines, GPUs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from advisor.config import RunConfig
from advisor.pool.pool_file import read_pool
from advisor.profile.job_runner import JobRunner, LocalJobRunner
from advisor.profile.loader import silence_libraries
from advisor.profile.profiler import Profiler
from advisor.profile.ray_cluster import cluster
from advisor.profile.ray_runner import RayJobRunner
from advisor.progress import Progress
from advisor.response_cache import ResponseCache
from advisor.tasks import load_task
from benchmarks._measure import Figure, Timer, arguments, progress, ratio, spread, tell
from benchmarks._plans import plain_plan
from ensemble.models.spec import ModelSpec, Resources

if TYPE_CHECKING:
    from ensemble.models.spec import Checkpoint

WORKERS = 2
TASK = "word_problems"
KEYS = (
    "ray_over_local",
    "ray_and_start_over_local",
    "ray_over_local_when_warm",
    "ray_start_s",
    "ray_stop_s",
    "same_responses",
)
"""What is always in the JSON object."""


@dataclass(frozen=True, slots=True)
class Profiling:
    """Profiles a pool again and again.

    Attributes:
        plan: The pool and the questions.
        folder: Where stores are, each under the name of who filled it.
    """

    plan: RunConfig
    folder: Path

    def by_command(self, name: str, *options: str, threads: int) -> Callable[[], int]:
        """``advisor profile`` in a process of its own."""
        pool = self.folder / "models.txt"
        pool.write_text("".join(map(_line, self.plan.candidates)), encoding="utf-8")
        call = [sys.executable, "-I", "-c", "from advisor.cli import main; main()", "profile", "--quiet"]
        call += ["--pool", str(pool)]
        call += ["--task", TASK, "--limit", str(len(self.plan.dev.examples)), "--cache-dir", str(self.folder / name)]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}

        def run() -> int:
            shutil.rmtree(self.folder / name, ignore_errors=True)
            subprocess.run([*call, *options], env=environment, stdout=subprocess.DEVNULL, check=True)
            return 1

        return run

    def by_stage(self, name: str, engine: Callable[[], JobRunner]) -> Callable[[], int]:
        """The same in this process, where libraries are, and with the workers that the engine keeps."""

        def run() -> int:
            shutil.rmtree(self.folder / name, ignore_errors=True)
            self._profile(name, engine())
            return 1

        return run

    def texts(self, name: str) -> list[str]:
        """What is in a store."""
        return self._profile(name, LocalJobRunner(self.folder))

    def _profile(self, name: str, engine: JobRunner) -> list[str]:
        with ResponseCache(self.folder / name) as store:
            profiler = Profiler(self.plan, store, Progress(quiet=True), engine=engine)
            found = profiler.alone([candidate.name for candidate in self.plan.candidates], self.plan.dev)
        return [answer.text or "" for one in found.values() for answer in one.answers]


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and keep where asked."""
    options = arguments(__doc__ or "").parse_args(given)
    threads = options.threads or os.cpu_count() or 1
    torch.set_num_threads(threads)
    silence_libraries(quiet=True)
    # The processor's time of this process says nothing of the others'.
    timer = Timer(options.rounds or (1 if options.quick else 5))
    with tempfile.TemporaryDirectory() as folder:
        profiling = Profiling(make_plan(Path(folder), *((6, 1) if options.quick else (None, None))), Path(folder))
        tell("cluster", measure(profiling, timer, threads), options)
    return 0


def measure(profiling: Profiling, timer: Timer, threads: int) -> list[Figure]:
    """Time one process and a cluster, in turns."""
    share, plan = max(threads // WORKERS, 1), profiling.plan
    before = timer.now()
    with _threads(share), cluster("local"), RayJobRunner(plan.cache_dir, progress) as engine:
        import ray

        start, there = timer.now() - before, ("--ray-address", ray.get_runtime_context().gcs_address)
        progress(f"benchmarks.cluster: {len(plan.candidates)} models, {len(plan.dev.examples)} questions")
        seconds = replace(timer, untimed=0)(
            {
                "local": profiling.by_command("local", threads=threads),
                "ray": profiling.by_command("ray", "--engine", "ray", *there, threads=share),
            }
        )
        seconds |= timer(
            {
                "warm local": profiling.by_stage("warm local", lambda: LocalJobRunner(plan.cache_dir)),
                "warm ray": profiling.by_stage("warm ray", lambda: engine),
            }
        )
        before = timer.now()
    stop = timer.now() - before
    local, ray_ = seconds["local"], seconds["ray"]
    wanted, *others = (profiling.texts(name) for name in seconds)
    equal = sum(a == b for other in others for a, b in zip(wanted, other, strict=True)) / sum(map(len, others))
    whole = [one + start + stop for one in ray_]
    return [
        ratio("ray_over_local", ray_, local, limit="at most 1.1", note="whole commands; the cluster is there"),
        ratio("ray_and_start_over_local", whole, local, note="and it is started and stopped for it"),
        ratio(
            "ray_over_local_when_warm",
            seconds["warm ray"],
            seconds["warm local"],
            note="libraries and workers are there, as from the second stage of a run on",
        ),
        Figure("ray_start_s", start, note="starting the cluster on this machine, and Ray's own import"),
        Figure("ray_stop_s", stop, note="stopping it"),
        spread("local_s", local, note=f"one process with {threads} threads"),
        spread("ray_s", ray_, note=f"{WORKERS} workers with {share} threads each"),
        Figure("same_responses", equal, limit="1", note="share of the texts that are equal"),
    ]


def make_plan(folder: Path, questions: int | None, models: int | None) -> RunConfig:
    """The demo's pool and dev questions, or some of them; two models are at work at a time."""
    candidates, cores = read_pool("demo")[:models], max((os.cpu_count() or 1) // WORKERS, 1)
    candidates = tuple(replace(candidate, resources=Resources(num_cpus=cores)) for candidate in candidates)
    task = load_task(TASK, limit=questions)
    return plain_plan(candidates, task, folder / "cache", "python -m benchmarks.cluster")


def _line(candidate: ModelSpec) -> str:
    """A candidate of the demo's pool in a pool file."""
    place = cast("Checkpoint", candidate.checkpoint).location
    return f"{place} dtype={candidate.dtype} num_cpus={candidate.resources.num_cpus}\n"


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
