"""What every request passes before anything of it is read: the key, the size of its body; and what is counted of it."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from advisor.serving.answers import replied
from advisor.serving.metrics import Metrics
from advisor.serving.order import RequestError
from ensemble.errors import InputError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

KEY_VARIABLE = "ADVISOR_API_KEY"
KEYED = "/v1/"
"""Paths that a key is asked for begin with this: not those that monitors look at."""
_GONE = "499"
_PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/metrics")
_SWALLOWED = 16
"""How many times as much as it may be a body that is too large is read and thrown away, so that its sender, who reads
the answer after sending all, gets to see it."""


@dataclass(frozen=True, slots=True)
class Key:
    """What clients must show; only a digest is held."""

    digest: bytes

    @classmethod
    def of(cls, key: str) -> Key:
        """The key that is this text."""
        return cls(hashlib.sha256(key.encode()).digest())

    def opens(self, header: str | None) -> bool:
        """Whether an ``Authorization`` header shows it; how long that takes says nothing about the key."""
        scheme, _, given = (header or "").partition(" ")
        # Headers are read as Latin-1, whatever they are.
        digest = hashlib.sha256(given.strip().encode("latin-1", errors="replace")).digest()
        return hmac.compare_digest(digest, self.digest) and scheme.lower() == "bearer"


def read_key(file: Path | None, environment: Mapping[str, str]) -> Key | None:
    """The key in a file, else in the environment; None where there is none.

    Raises:
        InputError: The file cannot be read, or the key is empty, or could not stand in a header.
    """
    place, key = f"${KEY_VARIABLE}", environment.get(KEY_VARIABLE)
    if file is not None:
        place = f"--api-key-file {file}"
        try:
            key = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no UTF-8"
            raise InputError(f"{place}: cannot be read ({reason})") from None
    if key is None:
        return None
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(f"{place}: a key is one word of ASCII characters, and must not be empty")
    return Key.of(key)


class Guard:
    """Refuses requests without the key and bodies that are too large, and counts all of them.

    Args:
        app: What it stands before.
        key: What must be shown; None where everybody may ask.
        body: Bytes that a body may have.
        metrics: Are kept.
    """

    def __init__(self, app: ASGIApp, *, key: Key | None, body: int, metrics: Metrics) -> None:
        self._app = app
        self._key = key
        self._body = body
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI calls it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.monotonic(), _GONE

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._pass(scope, receive, watched)
        finally:
            path = scope["path"] if scope["path"] in _PATHS else "other"
            self._metrics.requests.labels(path, status).inc()
            self._metrics.seconds.labels(path).observe(time.monotonic() - start)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        keyed = self._key is not None and scope["path"].startswith(KEYED)
        if keyed and self._key is not None and not self._key.opens(headers.get("authorization")):
            error = RequestError(
                401,
                "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await replied(error.body, error.status, error.headers)(scope, receive, send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read <= self._body:
                return message
            while message.get("more_body") and read <= _SWALLOWED * self._body:
                message = await receive()
                read += len(message.get("body", b""))
            raise HTTPException(413, f"the body has more than {self._body} bytes, which is this server's limit")

        await self._app(scope, counted, send)
