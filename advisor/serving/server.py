"""The server process: its socket, its signals, its log, and a stop that finishes all accepted texts."""

from __future__ import annotations

import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from advisor.serving.engine import STOPPING
from ensemble.errors import InputError, UniteError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from advisor.serving.engine import RequestHandler

_MOST_CONNECTIONS = 1000
_OTHER_FILES = 64
"""Files and sockets of the process that are not connections."""
_KEEP_ALIVE_S = 75
"""Longer than clients keep a connection (5 s in OpenAI's client): else it may be closed while a request arrives."""
# After the last text is decoded, slow clients have this time to read it.
_SHUTDOWN_S = 10
_LOGGERS = (
    "uvicorn.error",
    "asyncio",
    "advisor.serving.app",
    "advisor.serving.engine",
    "advisor.servers.identity",
)
_LOG_LINES = 20
_LOG_SECONDS = 60.0
_LOG_LENGTH = 300
"""For each period of so many seconds, the lines of the log that clients can cause, and their characters."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound and does not listen yet.

    Raises:
        InputError: The host is unknown, or the port is in use.
    """
    # Bound before the models are loaded, to find a port in use at once; clients can connect only when it listens.
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"--host {host}: cannot be found ({error.strerror or error})") from None
    try:
        # Else a server that is started again fails for a minute, while old connections are being closed.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise InputError(
            f"--host {host} --port {port}: cannot be used ({error.strerror or error}); give another --port or --host"
        ) from None
    return bound


def address_of(bound: socket.socket) -> str:
    """The URL of a bound socket, without a path."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine can reach a bound socket."""
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


def allowed_hosts(bound: socket.socket, host: str, others: Sequence[str]) -> frozenset[str] | None:
    """The names by which clients may reach a bound socket; None where every name is accepted.

    Args:
        bound: The socket.
        host: The address or name that it was bound to.
        others: Names to accept besides.
    """
    # Other machines reach an open server by names that it cannot know, so there only the user can restrict them.
    if not others and not is_loopback(bound):
        return None
    return frozenset(name.lower().rstrip(".") for name in ("localhost", host, *others))


def most_connections() -> int:
    """Connections that the process has file descriptors for, at most 1000."""
    try:
        import resource
    except ImportError:  # Windows
        return _MOST_CONNECTIONS // 2
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(1, min(_MOST_CONNECTIONS, files - _OTHER_FILES))


class GracefulServer(uvicorn.Server):
    """Uvicorn's server, with a stop that finishes all accepted requests.

    At the first signal, new requests get status 503 and ``/health`` says that the server is stopping; uvicorn itself
    would close its sockets, and clients would see a refused connection. A second signal stops at once.

    Args:
        app: The application.
        engine: Its engine.
        bound: The socket to listen on.
        connections: The largest number of connections at a time; None for :func:`most_connections`.
        ready: Called when the server listens.
        stopping: Called at the first signal.
    """

    def __init__(
        self,
        app: FastAPI,
        engine: RequestHandler,
        bound: socket.socket,
        *,
        connections: int | None = None,
        ready: Callable[[], None] = lambda: None,
        stopping: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                # Uvicorn refuses a request when there are so many connections, that of the request included.
                limit_concurrency=(connections or most_connections()) + 1,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_SHUTDOWN_S,
            )
        )
        self._engine = engine
        self._bound = bound
        self._ready = ready
        self._stopping = stopping

    def run_bound(self) -> None:
        """Serve until a signal comes.

        Raises:
            UniteError: The decoder's thread ended by an error.
            KeyboardInterrupt: A second signal came.
        """
        # The socket is given, not the address: it was bound before the models were loaded.
        with limited_logs():
            self.run([self._bound])
        if self.force_exit:
            self._engine.stop()
            raise KeyboardInterrupt
        if self._engine.refusing not in {"", STOPPING}:
            raise UniteError(self._engine.refusing)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and call ``ready``."""
        await super().startup(sockets)
        if self.started:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  # as signals call it
        """Stop after all accepted requests; at once at the second signal."""
        if self._engine.refusing:
            self.should_exit = self.force_exit = True
            # Connections that break now are expected, not errors to log.
            logging.getLogger("uvicorn.error").disabled = True
            return
        self._engine.refuse()
        self._stopping()

    async def on_tick(self, counter: int) -> bool:
        """Exit when the engine refuses requests and all texts are finished."""
        if self._engine.refusing and self._engine.idle:
            self.should_exit = True
        return await super().on_tick(counter)


class LogLimit(logging.Filter):
    """Lets some records pass in every period; the next one says how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._start = time.monotonic()
        self._lines = self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written; it becomes one short line."""
        # --debug is for a developer, who needs the tracebacks.
        if logging.getLogger("advisor").isEnabledFor(logging.DEBUG):
            return True
        if time.monotonic() - self._start >= _LOG_SECONDS:
            self._start, self._lines = time.monotonic(), 0
        self._lines += 1
        if self._lines > _LOG_LINES:
            self._left_out += 1
            return False
        text = record.getMessage().strip()
        if record.exc_info and (error := record.exc_info[1]) is not None:
            text = f"{text}: {type(error).__name__}: {error}"
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:_LOG_LENGTH])
        if self._left_out:
            text, self._left_out = f"{text} ({self._left_out} more lines were left out)", 0
        record.msg, record.args, record.exc_info, record.exc_text = text, (), None, None
        return True


@contextmanager
def limited_logs() -> Iterator[None]:
    """Limit the log of the server while it runs."""
    limit = LogLimit()
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(limit)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(limit)
