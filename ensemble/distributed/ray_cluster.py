"""A Ray cluster: one that is there is joined, or one of this machine is started, and ended with the block.

Ray is an extra, and is imported here alone before anything else imports it: some of its settings are read then.
"""

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
_WAY_OUT = "start one with `ray start --head`, run advisor on one of its nodes, or leave the option and RAY_ADDRESS out"
_REACHED = 5.0
"""Seconds in which a cluster must answer; Ray itself would try for two minutes."""
_STORE = 100 * 2**20
"""Bytes of shared memory that a cluster of this machine gets; responses are too small to be kept there."""
_SETTINGS = {
    # Ray's own notes (of a worker that died, say) go to standard output, where results are; what matters of them is
    # said here, in one line.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_USAGE_STATS_ENABLED": "0",
    # As later releases do; without it there is a warning in every process.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Workers of a cluster that is started here do what this process would have done itself, and as eagerly.
    "RAY_worker_niceness": "0",
}
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""What every connection of HTTP/2 begins with (RFC 9113, 3.4), which Ray's servers speak: the preface and settings."""


def settle() -> None:
    """Choose what Ray reads from the environment; some of it just once, when it is imported."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)


@contextmanager
def cluster(address: str | None = None) -> Iterator[None]:
    """Join a Ray cluster for a block, or start one of this machine; where one is joined already, that is used.

    Args:
        address: ``host:port`` of its head, ``auto`` for one that runs on this machine, ``local`` to start one; None for
            the environment's RAY_ADDRESS, or else ``local``.

    Raises:
        InputError: Ray is not installed, or there is no such cluster.
        UniteError: None could be started.
    """
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if find_spec("ray") is None:
        raise InputError("--engine ray needs Ray, which is not installed; pip install 'unite-advisor[ray]'")
    settle()
    if address not in ("auto", "local") and _check(address) and _has_token():
        # Ray does so by itself for a cluster that it finds here, and sends its token to no other machine unasked.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray

    if ray.is_initialized():
        yield
        return
    with _kept_signals(), contextlib.ExitStack() as end:
        options: dict[str, Any] = {}
        if address == "local":
            # Not in the usual place, where other programs look for a cluster to join, and what is left grows for ever.
            folder = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
            options = {"_temp_dir": end.enter_context(folder), "object_store_memory": _STORE}
            options |= {"include_dashboard": False}
        end.callback(ray.shutdown, wait_for_processes=True)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, **options)
        except (Exception, SystemExit) as error:  # it gives up with a signal to this process
            reason = str(error).strip().splitlines() or [type(error).__name__]
            if address == "local":
                raise UniteError(f"no cluster could be started on this machine ({reason[0]}); try again") from error
            raise InputError(
                f"{OPTION} {address}: this cluster cannot be joined ({reason[0]}); {_WAY_OUT}; one that asks for "
                "a token needs RAY_AUTH_MODE=token here, too"
            ) from error
        yield


def _check(address: str) -> bool:
    """Make sure that a server of the kind listens where a cluster should be, before Ray waits for it for minutes.

    Returns:
        Whether that is on this machine.
    """
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputError(f"{OPTION} {address}: give host:port of a cluster's head, auto, or local")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_REACHED) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                connection.sendall(_GREETING)
                if connection.recv(5)[3:4] != b"\4":  # a frame of settings, which a server begins with, too
                    raise InputError(f"{OPTION} {address}: what listens there is no Ray cluster; {_WAY_OUT}")
            return bool(connection.getpeername()[0] == connection.getsockname()[0])
    except OSError as error:
        raise InputError(f"{OPTION} {address}: no cluster answers there ({error}); {_WAY_OUT}") from error


def _has_token() -> bool:
    """Whether there is a token of this machine's clusters, where Ray looks for it (since 2.52)."""
    return (
        bool(os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"))
        or Path("~/.ray/auth_token").expanduser().is_file()
    )


@contextmanager
def _kept_signals() -> Iterator[None]:
    """Leave this process's way to deal with SIGTERM as it was: joining a cluster sets Ray's own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
