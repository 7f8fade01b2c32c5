"""Runs jobs on a Ray cluster at the same time, each with the cores and GPUs that its models request.

A worker is a Ray actor, which Ray restarts after a crash. It runs all jobs with the same requested resources, so that
it loads its libraries once; a restarted worker gets only the prompts without a reply. Ray, an optional extra, is
imported here alone, in :func:`cluster` first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import signal
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from advisor.models.ask import Replies, without_waiting
from advisor.models.completions import ModelInput
from advisor.models.fit import combined, device_of, devices, resources_of
from advisor.models.job import Job
from advisor.models.loaded_models import LocalJobRunner, load_ensemble, run_at_once, silence_libraries
from advisor.models.local_model import LocalModel, free_memory, peak_memory, reset_peak_memory
from advisor.models.response_cache import Response
from ensemble.common.extras import check_installed
from ensemble.common.garbage import collect_seldom, keep_present
from ensemble.errors import InputError, MemberError, UniteError, first_line
from ensemble.models.spec import EnsembleSpec, Resources

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from ensemble.decode.settings import Settings
    from ensemble.models.spec import ModelSpec


RESTARTS = 2
"""How often Ray restarts a worker that crashes on the same job."""
# Ray and the operating system report a worker that was killed to free memory in different words.
_MEMORY = re.compile(r"running low on memory|memory usage threshold|memory pressure", re.IGNORECASE)
_MORE_MEMORY = "ask for more with num_cpus or num_gpus, so that fewer share a node, or take a smaller --batch-size"


class RayJobRunner:
    """See :class:`advisor.models.loaded_models.JobRunner`. Workers live until its ``with`` block ends."""

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
        """Check that a node of the cluster has the resources of each candidate, and start workers."""
        requests = []
        for candidate in candidates:
            if candidate.is_remote:
                continue
            requests.append(resources_of(candidate.resources, device_of(candidate, device, "ray"), candidate.place))
            if reason := missing_resources(requests[-1]):
                raise InputError(f"{candidate.place}: {reason}")
        self._pool.prepare(requests)

    def run(self, jobs: Iterable[Job]) -> Generator[Job, None, None]:
        """See :meth:`advisor.models.loaded_models.JobRunner.run`."""
        remote, local, requests = [], [], Counter[Resources]()
        for job in jobs:
            if not job.questions or job.spec is None or any(model.is_remote for model in job.spec.members):
                local.append(job)
                continue
            needs = combined(_needs_of_models(job.spec))
            if reason := missing_resources(needs):
                job.start()
                job.finish(MemberError(reason, of=job.name))
                yield job
            else:
                job.connect = partial(RayModel, job, job.spec, self._pool, self._cache_dir.absolute(), self._say)
                remote.append(job)
                requests[needs] += 1
        self._pool.expect(requests)
        yield from run_at_once(remote)
        # Last, because these need no worker: all responses are stored, servers give them, or a set with members behind
        # servers decodes in this process.
        yield from self._local.run(local)


class RayModel:
    """The models of a job on a worker; see :class:`advisor.models.ask.Model`."""

    def __init__(
        self, job: Job, spec: EnsembleSpec, pool: WorkerPool, cache_dir: Path, say: Callable[[str], None]
    ) -> None:
        self.name = job.name
        self._job, self._pool, self._cache_dir, self._say = job, pool, cache_dir, say
        needs = _needs_of_models(spec)
        self._needs = combined(needs)
        # A worker may run in another folder and on another machine.
        models = [
            replace(model, checkpoint=model.weights.absolute, device=device)
            for model, device in zip(spec.members, devices(needs), strict=True)
        ]
        self._spec = replace(spec, members=tuple(models))

    def close(self) -> None:
        """See :meth:`advisor.models.ask.Model.close`. The worker stays for other jobs."""

    async def ask(self, prompts: Mapping[int, ModelInput], settings: Settings) -> Replies:
        """See :meth:`advisor.models.ask.Model.ask`."""
        import ray

        left, deaths, where = dict(prompts), 0, ""
        async with self._pool.places[self._needs]:
            actor, keep = self._pool.take(self._needs), False
            try:
                # It may also die between its last reply and its end.
                while left:
                    ready = False
                    try:
                        where, ready = await self._pool.located(actor), True
                        run = actor.run.options(num_returns="streaming")
                        options = self._job.batch_size, self._cache_dir
                        async for reference in run.remote(self.name, self._spec, left, settings, *options):
                            n, reply = await reference
                            if n is not None:
                                del left[n]
                                yield n, reply
                            elif isinstance(reply, MemberError):
                                raise reply
                            else:
                                self._job.peak_memory, keep = reply, not deaths
                    except ray.exceptions.RayError as error:
                        # A worker without restarts left has no location; a RayTaskError is a bug in its code.
                        if not ready or isinstance(error, ray.exceptions.RayTaskError):
                            times = f"died on {where}, and again after {RESTARTS} restarts" if deaths else "failed"
                            kept = len(prompts) - len(left)
                            text = f"its worker {times}: {_reason(error)}; {kept} responses are kept"
                            raise MemberError(text, of=self.name) from error
                        deaths += 1
                        # Ray may restart it on another node, where idle workers hold the resources that it needs.
                        self._pool.close()
                        self._say(
                            f"{self.name}: its worker on {where} died ({_reason(error)}); it is started again for the "
                            f"{len(left)} of {len(prompts)} questions that are left"
                        )
            finally:
                self._pool.release(self._needs, actor, keep=keep)


class WorkerPool:
    """Idle workers of the joined cluster, by the resources that they request; the start of one takes seconds."""

    def __init__(self) -> None:
        self._idle: dict[Resources, list[ActorHandle[Worker]]] = {}
        self.places: dict[Resources, asyncio.Semaphore] = {}  # the workers that the cluster holds at a time
        self._jobs, self._starting = Counter[Resources](), 0

    def prepare(self, requests: Iterable[Resources]) -> None:
        """Start a worker for each model, as many as the cluster holds at the same time."""
        for needs, models in Counter(requests).items():
            self._idle[needs] = [start_worker(needs) for _ in range(min(models, capacity(needs)))]

    def expect(self, requests: Mapping[Resources, int]) -> None:
        """Expect jobs: their number with each need. So many run at a time as the cluster holds."""
        self.places = {needs: asyncio.Semaphore(capacity(needs)) for needs in requests}
        self._jobs = Counter(requests)
        self._starting = 0

    def take(self, needs: Resources) -> ActorHandle[Worker]:
        """Take an idle worker, or start a new one."""
        self._jobs[needs] -= 1
        if idle := self._idle.get(needs):
            return idle.pop()
        # Idle workers hold resources that the new one needs.
        self.close()
        return start_worker(needs)

    async def located(self, actor: ActorHandle[Worker]) -> str:
        """A worker's node and process, when it is ready, for the first time or after a restart."""
        self._starting += 1
        try:
            location: str = await actor.location.options(max_task_retries=-1).remote()
        finally:
            self._starting -= 1
        return location

    def release(self, needs: Resources, actor: ActorHandle[Worker], *, keep: bool) -> None:
        """Keep a worker for later jobs, unless other workers wait for its resources."""
        if keep and (self._jobs[needs] > 0 or not self._starting):
            self._idle.setdefault(needs, []).append(actor)
        else:
            stop_worker(actor)

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


def _needs_of_models(spec: EnsembleSpec) -> list[Resources]:
    return [resources_of(model.resources, model.device or "auto", model.name) for model in spec.members]


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

    def run(
        self,
        name: str,
        spec: EnsembleSpec,
        prompts: Mapping[int, ModelInput],
        settings: Settings,
        batch_size: int | None,
        cache_dir: Path,
    ) -> Iterator[tuple[int, Response | UniteError] | tuple[None, int | MemberError | None]]:
        """Ask models; at the end comes the peak memory in bytes if it is known, or why they cannot be used."""
        # Ray sends what a worker prints to the terminal of the user, between the progress bars.
        silence_libraries(quiet=True)
        end: int | MemberError | None
        reset_peak_memory()
        try:
            model = LocalModel(name, partial(load_ensemble, spec, cache_dir), batch_size)
            yield from without_waiting(model.ask(prompts, settings))
            end = peak_memory()
        except MemberError as failure:
            end = MemberError(failure.reason, of=failure.of)
        # After the handler, no traceback refers to the models any more.
        free_memory()
        yield None, end


OPTION = "--ray-address"
_WAY_OUT = "start one with `ray start --head`, run advisor on one of its nodes, or omit the option and RAY_ADDRESS"
_TIMEOUT = 5.0
"""Seconds to wait for a cluster's answer; Ray itself would try for two minutes."""
_OBJECT_STORE = 100 * 2**20
"""Bytes of shared memory of a cluster on this machine; little, because responses are too small to go there."""
_SETTINGS = {
    # Ray prints messages (for example that a worker died) to standard output, where the results go. They are switched
    # off; the important ones are reported in one line by this package.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_USAGE_STATS_ENABLED": "0",
    # The default of later releases; without it every process prints a warning.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Workers on this machine do the work of this process, so they run with the same priority.
    "RAY_worker_niceness": "0",
}
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The first bytes of an HTTP/2 connection (RFC 9113, 3.4), which Ray's servers use: the preface and settings."""


@contextmanager
def cluster(address: str | None = None) -> Iterator[None]:
    """Join a Ray cluster for a block: ``host:port``, ``auto``, or ``local`` to start one; None for RAY_ADDRESS."""
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    check_installed("ray", "--engine ray")
    # Some are read only at the import of Ray.
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if address not in ("auto", "local") and _check(address) and _has_token():
        # Ray does this by itself only for a cluster that it finds. The token must not go to other machines, so it is
        # sent only to a cluster on this one.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray

    if ray.is_initialized():
        yield
        return
    with _keep_sigterm_handler(), contextlib.ExitStack() as end:
        options: dict[str, Any] = {}
        if address == "local":
            # In the usual folder other programs would find and join this cluster, and old sessions would pile up.
            folder = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
            options = {"_temp_dir": end.enter_context(folder), "object_store_memory": _OBJECT_STORE}
            options |= {"include_dashboard": False}
            _leave_working_folder_out()
        end.callback(ray.shutdown, wait_for_processes=True)
        job = _job_without_working_folder()
        try:
            ray.init(address=address, job_config=job, log_to_driver=False, logging_level=logging.CRITICAL, **options)
        except (Exception, SystemExit) as error:  # Ray gives up by SIGTERM to this process
            reason = str(error).strip().splitlines() or [type(error).__name__]
            if address == "local":
                raise UniteError(
                    f"a Ray cluster could not be started on this machine ({reason[0]}); try again"
                ) from error
            raise InputError(
                f"{OPTION} {address}: this cluster cannot be joined ({reason[0]}); {_WAY_OUT}; for a cluster with "
                "tokens, set RAY_AUTH_MODE=token here, too"
            ) from error
        yield


def _leave_working_folder_out() -> None:
    """Take the working folder out of PYTHONPATH, which the processes of a new cluster inherit."""
    # An empty entry stands for it, as in ``PYTHONPATH=$PYTHONPATH:/my/code`` where the variable was not set before.
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [entry for entry in entries if entry and Path(entry).resolve() != Path.cwd()]
    if kept != entries:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)


def _job_without_working_folder() -> Any:
    """The settings of a job whose workers do not import from this process's working folder."""
    # Ray puts that folder, where anyone's files may be, before the standard library, unless a job uploads its code.
    from ray.job_config import JobConfig

    class InstalledCode(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True

    return InstalledCode()


def _check(address: str) -> bool:
    """Check that a Ray cluster answers, for which Ray itself would wait for minutes; True if it is on this machine."""
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputError(f"{OPTION} {address}: give host:port of a cluster's head, auto, or local")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                connection.sendall(_HTTP2_PREFACE)
                if connection.recv(5)[3:4] != b"\4":  # the type of a settings frame, which is a server's first
                    raise InputError(f"{OPTION} {address}: this server is not a Ray cluster; {_WAY_OUT}")
            return bool(connection.getpeername()[0] == connection.getsockname()[0])
    except OSError as error:
        raise InputError(f"{OPTION} {address}: no cluster answers at this address ({error}); {_WAY_OUT}") from error


def _has_token() -> bool:
    """Whether this machine has a token for its clusters, in the places where Ray looks for it (since 2.52)."""
    return (
        bool(os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"))
        or Path("~/.ray/auth_token").expanduser().is_file()
    )


@contextmanager
def _keep_sigterm_handler() -> Iterator[None]:
    """Restore this process's handler of SIGTERM after the block; joining a cluster replaces it with Ray's."""
    # Only the main thread can set a handler.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
