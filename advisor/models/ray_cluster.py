"""Join a Ray cluster, or start one on this machine; only here Ray, an optional extra, is imported first."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ensemble.errors import InputError, UniteError

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
    if find_spec("ray") is None:
        raise InputError("--engine ray needs Ray, which is not installed; pip install 'unite-advisor[ray]'")
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
