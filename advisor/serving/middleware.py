"""Checks before a request is read: the host, the API key and the size of the body. It also counts every request."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from advisor.serving.metrics import Metrics
from advisor.serving.protocol import RequestLimits
from advisor.serving.request import RequestError
from advisor.serving.responses import error_response
from ensemble.errors import InputError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


_KEY_VARIABLE = "ADVISOR_API_KEY"
# Only these paths need the key; monitors read /health and /metrics without it.
_KEY_PREFIXES = ("/v1/", "/tokenize")
_DISCONNECTED = "499"
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


def read_key_digest(file: Path | None, environment: Mapping[str, str]) -> bytes | None:
    """The digest of the API key in a file, else in the environment; None where neither has a key.

    Raises:
        InputError: The file cannot be read, or an HTTP header cannot hold the key.
    """
    place, key = f"${_KEY_VARIABLE}", environment.get(_KEY_VARIABLE)
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
    """Whether an ``Authorization`` header has the key."""
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
    """Refuses requests to other hosts, without the key or with too large a body, and counts all requests.

    Args:
        app: The application that gets the accepted requests.
        key_digest: Digest of the API key; None where requests need no key.
        limits: Limits of requests.
        metrics: The figures to update.
        hosts: The server's names, besides loopback addresses; None where every name is accepted.
    """

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

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._handle(scope, receive, note_status)
        finally:
            # Unknown paths share one label: clients must not be able to create labels without end.
            path = scope["path"] if scope["path"] in _PATHS else "other"
            self._metrics.requests.labels(path, status).inc()
            self._metrics.seconds.labels(path).observe(time.monotonic() - start)

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
