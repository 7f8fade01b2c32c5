"""Running jobs: the protocol, and the runner of this process. :mod:`advisor.profile.ray_runner` uses a cluster."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Protocol

from advisor.profile.generate import free_memory, peak_memory, reset_peak_memory
from advisor.profile.job import Job
from advisor.profile.loaded_models import LoadedModels
from advisor.response_cache import Response
from ensemble.common.background import in_background
from ensemble.common.garbage import collect_as_usual, keep_present
from ensemble.errors import MemberError


class JobRunner(Protocol):
    """Runs jobs, in this process or on a cluster.

    Attributes:
        models: The models that are loaded in this process.
    """

    models: LoadedModels

    def run(self, jobs: Iterable[Job]) -> Generator[Job, None, None]:
        """Run jobs, one after the other or at the same time. If one fails, the others continue.

        Yields:
            Each job when it is finished.
        """
        ...


class LocalJobRunner:
    """Runs jobs in this process: those of servers at the same time, then one after the other those of models here.

    Args:
        cache_dir: The folder of the joint vocabularies' tables.
    """

    def __init__(self, cache_dir: Path) -> None:
        self.models = LoadedModels(cache_dir)
        self._froze = False

    def run(self, jobs: Iterable[Job]) -> Generator[Job, None, None]:
        """See :meth:`JobRunner.run`."""
        local: list[Job] = []
        servers: dict[str, list[Job]] = {}
        for job in jobs:
            # Stored responses need no server.
            (servers.setdefault(job.server, []) if job.server and job.questions else local).append(job)
        if servers:
            collect_as_usual()
            yield from _run_on_servers(list(servers.values()))
        for job in local:
            job.start()
            peak, error = None, None
            if job.questions:
                self._freeze_libraries()
                reset_peak_memory()
                try:
                    for number, response in job.answer(job.questions, job.task, job.inference):
                        job.add(number, response)
                    if (peak := peak_memory()) is not None:
                        peak = max(peak - self.models.idle_bytes(), 1)
                except MemberError as failure:
                    error = MemberError(failure.reason, of=failure.of)
                # After the handler, no traceback refers to the models any more.
                free_memory()
            job.finish(peak, error)
            yield job

    def _freeze_libraries(self) -> None:
        """Exclude all objects from before the first model from garbage collection, until the session ends."""
        if not self._froze:
            # Hundreds of thousands of objects of these libraries would be visited after each model.
            import_module("transformers.modeling_utils")
            keep_present()
            self._froze = True


def _run_on_servers(queues: Sequence[Sequence[Job]]) -> Generator[Job, None, None]:
    """Run the jobs of each server one after the other, and those of different servers at the same time.

    Models behind one address often share its machine, and its limits.
    """
    arrived: queue.SimpleQueue[tuple[Job, int, Response] | tuple[Job, None, Exception | None]] = queue.SimpleQueue()
    stopped = threading.Event()

    def ask(waiting: Sequence[Job]) -> None:
        for job in waiting:
            failure = None
            try:
                # Closed at once, so that its requests end with it.
                with closing(job.answer(job.questions, job.task, job.inference)) as responses:
                    for number, response in responses:
                        arrived.put((job, number, response))
                        if stopped.is_set():
                            return
            except Exception as error:  # noqa: BLE001  # raised again in the thread that waits
                failure = error
            arrived.put((job, None, failure))

    for waiting in queues:
        for job in waiting:
            job.start()
        in_background(partial(ask, waiting), "requests to a server")
    try:
        for _ in range(sum(map(len, queues))):
            # The cache is of this thread, so the responses are stored here.
            while isinstance((event := arrived.get())[2], Response):
                event[0].add(event[1], event[2])
            job, _, failure = event
            if failure is not None and not isinstance(failure, MemberError):
                raise failure
            job.finish(error=failure)
            yield job
    finally:
        stopped.set()
        # At Ctrl-C: what has arrived is kept.
        with suppress(queue.Empty):
            while True:
                job, number, response = arrived.get_nowait()
                if number is not None and isinstance(response, Response):
                    job.add(number, response)
