"""This process: one job after the other, so that no more models are in memory than decode together."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from advisor.profile.engine import Answered, Begun, Ended, Event, Job
from advisor.profile.generate import free_memory
from ensemble.errors import MemberError


class LocalEngine:
    """See :class:`advisor.profile.engine.Engine`."""

    def run(self, jobs: Iterable[Job]) -> Generator[Event, None, None]:
        """See the protocol."""
        for job in jobs:
            yield Begun(job.name)
            if not job.asked:
                yield Ended(job.name)
                continue
            failure = None
            try:
                for number, response in job.answerer.answer(job.asked, job.task, job.inference):
                    yield Answered(job.name, number, response)
            except MemberError as error:
                failure = str(error)
            if failure is not None:
                # Only here, behind the handler, nothing refers to the model any more.
                free_memory()
            yield Ended(job.name, job.answerer.peak_memory, failure)
