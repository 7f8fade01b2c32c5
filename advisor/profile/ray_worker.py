"""The worker of a Ray cluster: a process on one of its nodes, which runs the models of one job at a time."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

from advisor.config import InferenceConfig
from advisor.pool.resources import devices
from advisor.profile.generate import answers, free_memory, peak_memory, reset_peak_memory
from advisor.profile.job import Job
from advisor.profile.loader import load_ensemble, silence_libraries
from advisor.response_cache import Response
from advisor.tasks.task import Example, Task
from ensemble.common.garbage import collect_seldom, keep_present
from ensemble.errors import MemberError
from ensemble.models.spec import EnsembleSpec, Resources

JobArguments: TypeAlias = tuple[str, EnsembleSpec, Mapping[int, Example], Task, InferenceConfig, Path]
"""The arguments of :meth:`Worker.run`: everything that determines the responses."""
Reply: TypeAlias = tuple[int, Response] | tuple[int | None, MemberError | None]
"""The number and the response of a question; at the end the peak memory in bytes and the error, each if known."""


class Worker:
    """The class of a Ray actor. It loads its libraries when it starts, before it gets a job."""

    def __init__(self) -> None:
        collect_seldom()
        for library in ("transformers.modeling_utils", "ensemble.api"):
            import_module(library)
        keep_present()

    def location(self) -> str:
        """Its node and process. The reply also tells that the worker is ready."""
        return f"{socket.gethostname()} (process {os.getpid()})"

    def run(self, arguments: JobArguments) -> Iterator[Reply]:
        """Run a job, as :class:`advisor.profile.job_runner.LocalJobRunner` runs it."""
        name, spec, questions, task, inference, cache_dir = arguments
        # Ray sends what a worker prints to the terminal of the user, between the progress bars.
        silence_libraries(quiet=True)
        peak, error = None, None
        reset_peak_memory()
        try:
            yield from answers(name, partial(load_ensemble, spec, cache_dir), questions, task, inference)
            peak = peak_memory()
        except MemberError as failure:
            error = MemberError(failure.reason, of=failure.of)
        # After the handler, no traceback refers to the models any more.
        free_memory()
        yield peak, error


def pack(job: Job, needs: Sequence[Resources], questions: Mapping[int, Example], cache_dir: Path) -> JobArguments:
    """The arguments for a worker, which may run in another folder and on another machine.

    Args:
        job: The job; it has a spec.
        needs: The resources of each model.
        questions: The questions without a response.
        cache_dir: The folder of the joint vocabularies' tables.
    """
    # References and scorers stay here: the responses do not depend on them, and a scorer may not be picklable.
    bare = {number: replace(example, question="", reference="") for number, example in questions.items()}
    task = replace(job.task, examples=(), scorer=None, notes=())
    if job.spec is None:
        raise TypeError(f"{job.name}: a server answers this job, so no worker can run it")
    models = tuple(
        replace(model, checkpoint=model.weights.absolute, device=device)
        for model, device in zip(job.spec.members, devices(needs), strict=True)
    )
    return job.name, replace(job.spec, members=models), bare, task, job.inference, cache_dir.absolute()
