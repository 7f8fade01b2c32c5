"""Runs jobs on a Ray cluster at the same time, each with the cores and GPUs that its models request.

A job is a Ray task in a new process: Ray finds a node for it, and hands over each reply. If the process dies, the job
starts again with only the prompts without a reply. Ray, an optional extra, is imported here alone, in :func:`cluster`
first.
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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.models.ask import Replies, without_waiting
from advisor.models.completions import ModelInput
from advisor.models.fit import combined, device_of, devices, resources_of
from advisor.models.job import Job
from advisor.models.loaded_models import LocalJobRunner, load_ensemble, run_at_once, silence_libraries
from advisor.models.local_model import LocalModel, peak_memory, reset_peak_memory
from advisor.models.response_cache import Response
from ensemble.common.extras import check_installed
from ensemble.common.garbage import collect_seldom, keep_present
from ensemble.errors import InputError, MemberError, UniteError, first_line
from ensemble.models.spec import EnsembleSpec, Resources

if TYPE_CHECKING:
    from ensemble.decode.settings import Settings
    from ensemble.models.spec import ModelSpec


RESTARTS = 2
"""How often a job whose worker dies is started again."""
# Ray and the operating system report a worker that was killed to free memory in different words.
_MEMORY = re.compile(r"running low on memory|memory usage threshold|memory pressure", re.IGNORECASE)
_MORE_MEMORY = "ask for more with num_cpus or num_gpus, so that fewer share a node, or take a smaller --batch-size"


class RayJobRunner:
    """See :class:`advisor.models.loaded_models.JobRunner`."""

    def __init__(self, cache_dir: Path, say: Callable[[str], None]) -> None:
        self._cache_dir = cache_dir
        self._say = say
        self._local = LocalJobRunner(cache_dir)
        self.models = self._local.models

    def check(self, candidates: Sequence[ModelSpec], device: str) -> None:
        """Check that a node of the cluster has the resources of each candidate."""
        for candidate in candidates:
            if not candidate.is_remote:
                needs = resources_of(candidate.resources, device_of(candidate, device, "ray"), candidate.place)
                if reason := missing_resources(needs):
                    raise InputError(f"{candidate.place}: {reason}")

    def run(self, jobs: Iterable[Job]) -> Generator[Job, None, None]:
        """See :meth:`advisor.models.loaded_models.JobRunner.run`."""
        remote, local, places = [], [], dict[Resources, asyncio.Semaphore]()
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
                place = places.setdefault(needs, asyncio.Semaphore(capacity(needs)))
                job.connect = partial(RayModel, job, job.spec, place, self._cache_dir.absolute(), self._say)
                remote.append(job)
        yield from run_at_once(remote)
        # Last, because these need no worker: all responses are stored, servers give them, or a set with members behind
        # servers decodes in this process.
        yield from self._local.run(local)


class RayModel:
    """The models of a job on a worker; see :class:`advisor.models.ask.Model`."""

    def __init__(
        self, job: Job, spec: EnsembleSpec, place: asyncio.Semaphore, cache_dir: Path, say: Callable[[str], None]
    ) -> None:
        self.name = job.name
        # A job keeps its place when it starts again: as many run as the cluster holds.
        self._job, self._place, self._cache_dir, self._say = job, place, cache_dir, say
        needs = _needs_of_models(spec)
        self._needs = combined(needs)
        # A worker may run in another folder and on another machine.
        models = [
            replace(model, checkpoint=model.weights.absolute, device=device)
            for model, device in zip(spec.members, devices(needs), strict=True)
        ]
        self._spec = replace(spec, members=tuple(models))

    def close(self) -> None:
        """See :meth:`advisor.models.ask.Model.close`."""

    async def ask(self, prompts: Mapping[int, ModelInput], settings: Settings) -> Replies:
        """See :meth:`advisor.models.ask.Model.ask`."""
        import ray

        # A new process for each: torch takes the number of its threads from the first task of a process.
        options = {"num_cpus": self._needs.num_cpus, "num_gpus": self._needs.num_gpus, "max_calls": 1, "max_retries": 0}
        task: Any = ray.remote(**options, num_returns="streaming")(answer_prompts)  # type: ignore[call-overload]
        left, deaths, where = dict(prompts), 0, ""
        async with self._place:
            # It may also die between its last reply and its end.
            while left:
                replies = task.remote(self.name, self._spec, left, settings, self._job.batch_size, self._cache_dir)
                try:
                    async for reference in replies:
                        n, reply = await reference
                        if n is not None:
                            del left[n]
                            yield n, reply
                        elif isinstance(reply, MemberError):
                            raise reply
                        elif isinstance(reply, str):
                            where = f" on {reply}"
                        else:
                            self._job.peak_memory = reply
                except ray.exceptions.RayError as error:
                    # A RayTaskError is a bug in its code.
                    if deaths == RESTARTS or isinstance(error, ray.exceptions.RayTaskError):
                        times = f"died{where}, and again after {RESTARTS} restarts" if deaths else "failed"
                        kept = len(prompts) - len(left)
                        text = f"its worker {times}: {_reason(error)}; {kept} responses are kept"
                        raise MemberError(text, of=self.name) from error
                    deaths += 1
                    self._say(
                        f"{self.name}: its worker{where} died ({_reason(error)}); it is started again for the "
                        f"{len(left)} of {len(prompts)} questions that are left"
                    )
                finally:
                    with contextlib.suppress(ray.exceptions.RayError):  # the cluster itself may have stopped
                        ray.cancel(replies, force=True)


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
    return "the process ended" if isinstance(error, ray.exceptions.WorkerCrashedError) else first_line(error)


def answer_prompts(
    name: str,
    spec: EnsembleSpec,
    prompts: Mapping[int, ModelInput],
    settings: Settings,
    batch_size: int | None,
    cache_dir: Path,
) -> Iterator[tuple[int, Response | UniteError] | tuple[None, str | int | MemberError | None]]:
    """Ask models on a worker.

    First comes its node and process; at the end the peak memory in bytes if it is known, or why they cannot be used.
    """
    yield None, f"{socket.gethostname()} (process {os.getpid()})"
    collect_seldom()
    for library in ("transformers.modeling_utils", "ensemble.api"):
        import_module(library)
    keep_present()
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
