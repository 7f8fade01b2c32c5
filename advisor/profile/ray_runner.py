"""Runs jobs on a Ray cluster at the same time, each with the cores and GPUs that its models request.

A worker is a Ray actor. Ray places it on a node, and restarts it after a crash, if necessary on another node. A worker
runs all jobs with the same requested resources, one after the other, so that it loads its libraries once. It streams
each response to this process, which stores it; a restarted worker gets only the questions without a response.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import socket
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from advisor.pool.resources import combined, device_of, devices, resources_of
from advisor.profile.ask import answers, without_waiting
from advisor.profile.job import Job
from advisor.profile.loaded_models import LocalJobRunner, load_ensemble, silence_libraries
from advisor.profile.local_model import LocalModel, free_memory, peak_memory, reset_peak_memory
from advisor.response_cache import Response
from advisor.servers.completions import ModelInput
from ensemble.common.garbage import collect_seldom, keep_present
from ensemble.errors import InputError, MemberError, first_line
from ensemble.models.spec import EnsembleSpec, Resources

if TYPE_CHECKING:
    from ray import ObjectRef, ObjectRefGenerator
    from ray.actor import ActorHandle

    from advisor.tasks.task import Example
    from ensemble.decode.settings import Settings
    from ensemble.models.spec import ModelSpec


RESTARTS = 2
"""How often Ray restarts a worker that crashes on the same job."""
# Ray and the operating system report a worker that was killed to free memory in different words.
_MEMORY = re.compile(r"running low on memory|memory usage threshold|memory pressure", re.IGNORECASE)
_MORE_MEMORY = "ask for more with num_cpus or num_gpus, so that fewer share a node, or take a smaller --batch-size"


@dataclass(slots=True, eq=False)
class _WorkerState:
    """A worker as this process sees it.

    Attributes:
        needs: The resources that it requests from a node.
        actor: Its handle.
        queue: The jobs that it can run, shared with the other workers of the same resources.
        job: The running job, if any.
        left: The job's questions without a response.
        location: Its last known node and process; None until it is ready for the first time.
        deaths: How often it has crashed.
    """

    needs: Resources
    actor: ActorHandle[Worker]
    queue: deque[Job]
    job: Job | None = None
    left: dict[int, Example] = field(default_factory=dict)
    location: str | None = None
    deaths: int = 0


class RayJobRunner:
    """See :class:`advisor.profile.loaded_models.JobRunner`. This process has joined the cluster.

    Workers live until the ``with`` block of the runner ends.

    Args:
        cache_dir: The folder of the joint vocabularies' tables, on each node.
        say: Called with each message for the user.
    """

    def __init__(self, cache_dir: Path, say: Callable[[str], None]) -> None:
        self._cache_dir = cache_dir
        self._say = say
        self._pool = WorkerPool()
        self._local = LocalJobRunner(cache_dir)
        self.models = self._local.models

    def __enter__(self) -> RayJobRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def prepare(self, candidates: Sequence[ModelSpec], device: str) -> None:
        """Check that a node of the cluster has the resources of each candidate, and start workers.

        Args:
            candidates: The pool.
            device: The device of candidates that name none.

        Raises:
            InputError: No node has the resources of a candidate; names its line in the pool file.
        """
        requests = []
        for candidate in candidates:
            if candidate.is_remote:
                continue
            requests.append(resources_of(candidate.resources, device_of(candidate, device, "ray"), candidate.place))
            if reason := missing_resources(requests[-1]):
                raise InputError(f"{candidate.place}: {reason}")
        self._pool.prepare(requests)

    def run(self, jobs: Iterable[Job]) -> Generator[Job, None, None]:
        """See :meth:`advisor.profile.loaded_models.JobRunner.run`."""
        queues: dict[Resources, deque[Job]] = {}
        local = []
        for job in jobs:
            if not job.questions or job.spec is None or _is_behind_server(job.spec):
                local.append(job)
                continue
            needs = combined(_needs_of_models(job))
            if reason := missing_resources(needs):
                job.start()
                job.finish(error=MemberError(reason, of=job.name))
                yield job
            else:
                queues.setdefault(needs, deque()).append(job)
        taken = self._pool.take({needs: len(queue) for needs, queue in queues.items()})
        workers = [_WorkerState(needs, actor, queues[needs]) for needs, actor in taken]
        pending: dict[Any, _WorkerState] = {_request_location(worker): worker for worker in workers}
        try:
            yield from self._run_queues(pending)
        finally:
            # Workers are still pending only if the run was interrupted.
            for worker in pending.values():
                stop_worker(worker.actor)
        # Last, because these need no worker: all responses are stored, servers give them, or a set with members behind
        # servers decodes in this process.
        yield from self._local.run(local)

    def _run_queues(self, pending: dict[Any, _WorkerState]) -> Iterator[Job]:
        """Give jobs to workers and handle their replies, until all queues are empty.

        Args:
            pending: The workers by the one reply that each of them owes: its location, or the next one of its job.
                Workers without a further job are removed.
        """
        import ray

        while pending:
            [ready], _ = ray.wait(list(pending), num_returns=1)
            worker = pending[ready]
            following = yield from self._handle_reply(worker, ready)
            # Only now: if the run is interrupted while a reply is handled, the worker must still be stopped.
            del pending[ready]
            if following is not None:
                pending[following] = worker
            elif worker.deaths:
                stop_worker(worker.actor)
                if worker.queue:
                    new = _WorkerState(worker.needs, start_worker(worker.needs), worker.queue)
                    pending[_request_location(new)] = new
            else:
                self._release([worker, *_unneeded(pending)], pending)

    def _release(self, idle: Sequence[_WorkerState], pending: Mapping[Any, _WorkerState]) -> None:
        """Keep idle workers for the next stage, unless other workers wait for their resources."""
        waiting = any(other.location is None or other.deaths for other in pending.values())
        for worker in idle:
            if waiting:
                stop_worker(worker.actor)
            else:
                self._pool.keep(worker.needs, worker.actor)

    def _handle_reply(self, worker: _WorkerState, ready: Any) -> Generator[Job, None, Any]:
        """Handle one reply of a worker; the next reply to wait for, or None if the worker has no further job."""
        import ray

        try:
            if isinstance(ready, ray.ObjectRef):
                worker.location = ray.get(ready)
            else:
                reply: Reply = ray.get(next(ready))
                if isinstance(reply[1], Response) and worker.job is not None and reply[0] is not None:
                    del worker.left[reply[0]]
                    worker.job.add(reply[0], reply[1])
                    return ready
                yield from _finish(worker, *cast("tuple[int | None, MemberError | None]", reply))
        except ray.exceptions.RayError as error:
            # A worker without restarts left does not report its location any more; a RayTaskError is a bug in its code.
            if isinstance(ready, ray.ObjectRef) or isinstance(error, ray.exceptions.RayTaskError):
                yield from self._fail(worker, error)
                return None
            self._record_death(worker, error)
            return _request_location(worker)
        if worker.job is not None and not worker.left:
            # It crashed between its last response and the end of the job.
            yield from _finish(worker)
        # A worker that has crashed gets no other job, so that each model has all restarts.
        if worker.job is None and worker.queue and not worker.deaths:
            _start_job(worker)
        return self._send(worker)

    def _send(self, worker: _WorkerState) -> ObjectRefGenerator[Reply] | None:
        if worker.job is None:
            return None
        run = worker.actor.run.options(num_returns="streaming")
        needs = _needs_of_models(worker.job)
        replies: ObjectRefGenerator[Reply] = run.remote(pack(worker.job, needs, worker.left, self._cache_dir))
        return replies

    def _record_death(self, worker: _WorkerState, error: Exception) -> None:
        """Count a crash. Ray restarts the worker up to RESTARTS times."""
        worker.deaths += 1
        # Ray may restart it on another node, where idle workers hold the resources that it needs.
        self._pool.close()
        if worker.job is not None:
            self._say(
                f"{worker.job.name}: its worker{_on_node(worker)} died ({_reason(error)}); it is started again for "
                f"the {len(worker.left)} of {len(worker.job.questions)} questions that are left"
            )

    def _fail(self, worker: _WorkerState, error: Exception) -> Iterator[Job]:
        """End the job of a worker that does not come back or whose code is broken; without a job, its next one."""
        if worker.job is None and worker.queue:
            _start_job(worker)
        if worker.job is not None:
            times = f"died{_on_node(worker)}, and again after {RESTARTS} restarts" if worker.deaths else "failed"
            kept = len(worker.job.questions) - len(worker.left) if worker.left else 0
            text = f"its worker {times}: {_reason(error)}; {kept} responses are kept"
            yield from _finish(worker, error=MemberError(text, of=worker.job.name))
        worker.deaths += 1


class WorkerPool:
    """Idle workers of the joined cluster, by the resources that they request.

    A worker's start takes seconds, because it loads torch and transformers. So workers start before the first job, and
    are kept between the stages of a run.
    """

    def __init__(self) -> None:
        self._idle: dict[Resources, list[ActorHandle[Worker]]] = {}

    def prepare(self, requests: Iterable[Resources]) -> None:
        """Start a worker for each model, as many as the cluster holds at the same time."""
        for needs, models in Counter(requests).items():
            self._idle[needs] = [start_worker(needs) for _ in range(min(models, capacity(needs)))]

    def take(self, requests: Mapping[Resources, int]) -> list[tuple[Resources, ActorHandle[Worker]]]:
        """Take idle workers, and start new ones if there are too few and the cluster has room.

        Args:
            requests: The number of jobs with each need.
        """
        taken, missing = [], []
        for needs, jobs in requests.items():
            wanted, idle = min(jobs, capacity(needs)), self._idle.get(needs, [])
            reused = min(wanted, len(idle))
            taken += [(needs, idle.pop()) for _ in range(reused)]
            missing += [needs] * (wanted - reused)
        if missing:
            # Idle workers hold resources that the new ones need.
            self.close()
        return taken + [(needs, start_worker(needs)) for needs in missing]

    def keep(self, needs: Resources, actor: ActorHandle[Worker]) -> None:
        """Keep an idle worker for later jobs."""
        self._idle.setdefault(needs, []).append(actor)

    def close(self) -> None:
        """Stop all idle workers."""
        for actor in chain.from_iterable(self._idle.values()):
            stop_worker(actor)
        self._idle.clear()


def start_worker(needs: Resources) -> ActorHandle[Worker]:
    """Start a worker; Ray delays its start until a node has the resources."""
    import ray

    # Ray restarts a crashed worker on another node, if its own is lost.
    options = {"num_cpus": needs.num_cpus, "num_gpus": needs.num_gpus, "max_restarts": RESTARTS}
    actor: Any = ray.remote(Worker).options(**options).remote()  # typed as if it could be the class
    return cast("ActorHandle[Worker]", actor)


def stop_worker(actor: ActorHandle[Worker]) -> None:
    """Stop a worker."""
    import ray

    with contextlib.suppress(ray.exceptions.RayError):  # the cluster itself may have stopped
        ray.kill(actor)


def capacity(needs: Resources) -> int:
    """How many workers with the same needs fit on the empty nodes of the cluster at the same time."""
    cpus, gpus = needs.num_cpus or 1, needs.num_gpus or 0
    # For each node by itself: a model cannot use cores of one node and a GPU of another.
    shares = [min(node.get("CPU", 0) / cpus, node.get("GPU", 0) / gpus if gpus else math.inf) for node in _nodes()]
    return sum(map(math.floor, shares))


def missing_resources(needs: Resources) -> str | None:
    """Why no node of the cluster can hold a worker; None if one can."""
    if capacity(needs):
        return None
    most = " or ".join(sorted({f"{node.get('CPU', 0):g} and {node.get('GPU', 0):g}" for node in _nodes()}))
    return (
        f"{needs.num_cpus or 1:g} cores and {needs.num_gpus or 0:g} GPUs are requested, but no node of the cluster has "
        f"as many (the nodes have {most}); request fewer with num_cpus and num_gpus, or add a node"
    )


def _nodes() -> list[dict[str, float]]:
    """The resources of each node of the cluster."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]  # Ray's


def _is_behind_server(spec: EnsembleSpec) -> bool:
    return any(model.is_remote for model in spec.members)


def _needs_of_models(job: Job) -> list[Resources]:
    models = job.spec.members if job.spec is not None else ()
    return [resources_of(model.resources, model.device or "auto", model.name) for model in models]


def _start_job(worker: _WorkerState) -> None:
    worker.job = worker.queue.popleft()
    worker.left = dict(worker.job.questions)
    worker.job.start()


def _finish(worker: _WorkerState, peak_memory: int | None = None, error: MemberError | None = None) -> Iterator[Job]:
    job, worker.job = worker.job, None
    if job is not None:
        job.finish(peak_memory, error)
        yield job


def _unneeded(pending: dict[Any, _WorkerState]) -> list[_WorkerState]:
    """Remove and return the workers that have not started yet and whose queue is empty."""
    late = {reply: worker for reply, worker in pending.items() if worker.location is None and not worker.queue}
    for reply in late:
        del pending[reply]
    return list(late.values())


def _request_location(worker: _WorkerState) -> ObjectRef[str]:
    """Request a worker's location. It replies when it is ready, for the first time or after a restart."""
    location: ObjectRef[str] = worker.actor.location.options(max_task_retries=-1).remote()
    return location


def _on_node(worker: _WorkerState) -> str:
    return f" on {worker.location}" if worker.location else ""


def _reason(error: Exception) -> str:
    """The reason of a worker's crash in one line, as far as Ray knows it."""
    import ray

    text = str(error)
    if isinstance(error, ray.exceptions.OutOfMemoryError) or _MEMORY.search(text):
        return f"its node ran out of memory; {_MORE_MEMORY}"
    if isinstance(error, ray.exceptions.RayTaskError):
        return first_line(error.cause) if isinstance(error.cause, Exception) else text.strip().splitlines()[-1]
    if isinstance(error, ray.exceptions.ActorDiedError) and error.actor_init_failed:
        return text.strip().splitlines()[-1]
    return "the process ended" if isinstance(error, ray.exceptions.RayActorError) else first_line(error)


JobArguments: TypeAlias = tuple[str, EnsembleSpec, Mapping[int, ModelInput], "Settings", int | None, Path]
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
        """Run a job, as :class:`advisor.profile.loaded_models.LocalJobRunner` runs it."""
        name, spec, prompts, settings, batch_size, cache_dir = arguments
        # Ray sends what a worker prints to the terminal of the user, between the progress bars.
        silence_libraries(quiet=True)
        peak, error = None, None
        reset_peak_memory()
        try:
            model = LocalModel(name, partial(load_ensemble, spec, cache_dir), batch_size)
            yield from without_waiting(answers(model, prompts, settings))
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
    if job.spec is None:
        raise TypeError(f"{job.name}: a server answers this job, so no worker can run it")
    models = tuple(
        replace(model, checkpoint=model.weights.absolute, device=device)
        for model, device in zip(job.spec.members, devices(needs), strict=True)
    )
    spec, settings = replace(job.spec, members=models), job.inference.settings(job.task)
    return job.name, spec, job.prompts(questions), settings, job.inference.batch_size, cache_dir.absolute()
