"""The server process: its socket, signals and log, its checks of requests, and a stop that finishes all texts."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException

from advisor.serving.handler import STOPPING, RequestHandler
from advisor.serving.metrics import Metrics
from advisor.serving.protocol import RequestLimits
from advisor.serving.request import RequestError
from advisor.serving.responses import error_response
from ensemble.errors import InputError, UniteError

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


_LOG = logging.getLogger(__name__)
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
    "advisor.serving.server",
    "advisor.models.server_model",
)
_LOG_LINES = 20
_LOG_SECONDS = 60.0
_LOG_LENGTH = 300
"""For each period of so many seconds, the lines of the log that clients can cause, and their characters."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound and does not listen yet."""
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
    """The names by which clients may reach a bound socket; None where every name is accepted."""
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
    """Uvicorn's server, with a stop that finishes all accepted requests; new ones get status 503 meanwhile."""

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
        """Serve until a signal comes."""
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


_KEY_VARIABLE = "ADVISOR_API_KEY"
# Only these paths need the key; monitors read /health and /metrics without it.
_KEY_PREFIXES = ("/v1/", "/tokenize")
_DISCONNECTED = "499"
_REQUEST_ID = "x-request-id"
_SAFE_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)
_PATHS = (
    *("/v1/completions", "/v1/chat/completions", "/v1/responses"),
    *("/v1/models", "/tokenize", "/health", "/metrics"),
)
BODY_SECONDS = 30.0
"""The longest that the body of a request may take to arrive: what has arrived takes memory that others wait for."""
_DISCARDED_BODIES = 16
"""A body that is too large is read and discarded up to this multiple of the limit: many clients read the response only
after they have sent everything."""


def digest_of(key: str) -> bytes:
    """The digest of an API key; the server keeps only this."""
    return hashlib.sha256(key.encode()).digest()


def read_key_digest(file: Path | None, environment: Mapping[str, str], variable: str | None = None) -> bytes | None:
    """The digest of the API key in a file, else in a variable of the environment; None where neither has a key."""
    if variable is not None and not variable.isidentifier():
        # Without the value, which may be a key.
        raise InputError("--api-key-env: give the name of an environment variable that has the key, not the key")
    if variable is not None and variable not in environment:
        raise InputError(f"--api-key-env {variable}: the environment has no such variable; set it to the key")
    name = variable or _KEY_VARIABLE
    place, key = f"${name}", environment.get(name)
    if file is not None:
        place = f"--api-key-file {file}"
        try:
            key = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise InputError(f"{place}: cannot be read ({reason})") from None
    if key is None:
        return None
    # Editors and `echo` end a file with a line break, which is not part of the key.
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(f"{place}: a key is one word of ASCII characters, and must not be empty")
    return digest_of(key)


def _has_key(header: str | None, key_digest: bytes) -> bool:
    scheme, _, key = (header or "").partition(" ")
    # Starlette reads headers as Latin-1, so encoding must not fail at other characters.
    digest = hashlib.sha256(key.strip().encode("latin-1", errors="replace")).digest()
    # Comparing digests in constant time tells an attacker nothing about the key.
    return hmac.compare_digest(digest, key_digest) and scheme.lower() == "bearer"


def _is_allowed(header: str, hosts: frozenset[str]) -> bool:
    """Whether a ``Host`` header names this server: one of these names, or a loopback address."""
    name = header.strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0].rstrip(".")
    if name in hosts:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class RequestMiddleware:
    """Refuses requests to other hosts, without the key or with too large a body; counts and names all requests."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        key_digest: bytes | None,
        limits: RequestLimits,
        metrics: Metrics,
        hosts: frozenset[str] | None = None,
    ) -> None:
        self._app = app
        self._key_digest = key_digest
        self._max_body = limits.body
        # Each running text may have its body; more bodies at a time would only fill the memory.
        self._max_bodies = limits.texts * limits.body
        self._bodies = 0
        self._metrics = metrics
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection, as ASGI calls it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # A client that disconnects gets no response, so no status is ever sent.
        start, status = time.monotonic(), _DISCONNECTED
        given = Headers(scope=scope).get(_REQUEST_ID, "")
        # The client's, if it is safe in a log and a header.
        request_id = given if _SAFE_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        scope["state"] = {**scope.get("state", {}), "request_id": request_id}

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
                MutableHeaders(scope=message)[_REQUEST_ID] = request_id
            await send(message)

        try:
            await self._handle(scope, receive, note_status)
        except Exception:
            _LOG.exception("request %s failed", request_id)
            if status != _DISCONNECTED:
                raise
            error = RequestError(500, "the server failed; see its log", kind="server_error")
            await error_response(error, request_id)(scope, receive, note_status)
        finally:
            # Unknown paths share one label: clients must not be able to create labels without end.
            path = scope["path"] if scope["path"] in _PATHS else "other"
            seconds = time.monotonic() - start
            self._metrics.requests.labels(path, status).inc()
            self._metrics.seconds.labels(path).observe(seconds)
            # Monitors ask for the health of a server that is down again and again.
            level = logging.WARNING if status.startswith("5") and path != "/health" else logging.DEBUG
            _LOG.log(level, "request %s: %s %s, status %s, %.3f s", request_id, scope["method"], path, status, seconds)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        # A page of another site can have its own name resolve to this machine, and then send requests from the user's
        # browser; its name stays in the Host header. A client of HTTP/1.0 without the header is no browser.
        host = headers.get("host")
        if self._hosts is not None and host is not None and not _is_allowed(host, self._hosts):
            text = f"this server is not {host[:100]!r}; use its address, or start it with --allow-host and this name"
            await error_response(RequestError(421, text, param="Host"))(scope, receive, send)
            return
        header = headers.get("authorization")
        key_digest = self._key_digest if scope["path"].startswith(_KEY_PREFIXES) else None
        if key_digest is not None and not _has_key(header, key_digest):
            error = RequestError(
                401,
                "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error_response(error)(scope, receive, send)
            return
        size = held = 0
        is_whole, end = False, time.monotonic() + BODY_SECONDS

        async def receive_in_time() -> Message:
            nonlocal is_whole
            # Behind the body comes only that the client has left, whenever that is.
            left = None if is_whole else end - time.monotonic()
            try:
                message = await asyncio.wait_for(receive(), left)
            except asyncio.TimeoutError:
                text = "the body of the request took too long"
                raise HTTPException(408, text, {"Connection": "close"}) from None
            is_whole = not message.get("more_body", False)
            return message

        # Counted while it arrives: a chunked body does not say its size before.
        async def receive_limited() -> Message:
            nonlocal size, held
            message = await receive_in_time()
            size += len(message.get("body", b""))
            if size <= self._max_body:
                held, self._bodies = size, self._bodies + size - held
                if self._bodies > self._max_bodies:
                    raise HTTPException(503, "the requests of all clients take too much memory; try again later")
                return message
            while message.get("more_body") and size <= _DISCARDED_BODIES * self._max_body:
                message = await receive_in_time()
                size += len(message.get("body", b""))
            raise HTTPException(413, f"the body has more than {self._max_body} bytes, which is this server's limit")

        try:
            await self._app(scope, receive_limited, send)
        finally:
            self._bodies -= held
