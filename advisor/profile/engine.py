"""Engines run jobs: the protocol, and the engine of this process. :mod:`advisor.profile.ray_engine` uses a cluster."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Protocol

from advisor.profile.generate import free_memory, peak_memory, reset_peak_memory
from advisor.profile.job import Job
from ensemble.errors import MemberError


class Engine(Protocol):
    """Runs jobs, in this process or on a cluster."""

    def run(self, jobs: Iterable[Job]) -> Generator[Job, None, None]:
        """Run jobs, one after the other or at the same time. If one fails, the others continue.

        Yields:
            Each job when it is finished.
        """
        ...


class LocalEngine:
    """Runs one job after the other in this process, so that only the models of one job are in memory."""

    def run(self, jobs: Iterable[Job]) -> Generator[Job, None, None]:
        """See :meth:`Engine.run`. A job is taken from ``jobs`` only when the one before it is finished."""
        for job in jobs:
            job.start()
            peak, error = None, None
            if job.questions:
                # A job without a spec is answered by a server: it needs no torch and no memory of this process.
                if job.spec is not None:
                    reset_peak_memory()
                try:
                    for number, response in job.answer(job.questions, job.task, job.inference):
                        job.add(number, response)
                    peak = None if job.spec is None else peak_memory()
                except MemberError as failure:
                    error = str(failure)
                # After the handler, no traceback refers to the models any more.
                if job.spec is not None:
                    free_memory()
            job.finish(peak, error)
            yield job
