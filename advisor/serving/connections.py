"""A client's connection, with deadlines for what the client sends and reads, and a limit on all connections.

Uvicorn itself waits without end for a request's head, for its body and for a client that reads nothing. So a few
hundred connections that send one byte a minute would take every file descriptor of the process.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

Phase = Literal["head", "body", "idle", "busy", "closing", "gone"]

KEEP_ALIVE_S = 75
"""Longer than clients keep a connection (5 s in OpenAI's client): else it may be closed while a request arrives."""
SECONDS: dict[Phase, float] = {"head": 10, "body": 30, "idle": KEEP_ALIVE_S, "closing": 10}
"""How long a connection may stay in a phase. While the server computes (busy), there is no limit."""
WRITE_SECONDS = 60
"""How long a client may read nothing of a response."""
# A half-sent head is worth the least: a client that means it sends its head at once. An idle connection of a client
# that had a response before is worth the most: its next request may be on its way.
_EVICTED: tuple[Phase, ...] = ("closing", "head", "body", "idle")
_REASONS = {408: "Request Timeout", 503: "Service Unavailable"}


class LimitedProtocol(H11Protocol):
    """A connection. Where uvicorn's ``limit_concurrency`` is reached, a new one takes the place of one that waits.

    Args:
        config: Uvicorn's.
        server_state: All connections of the server.
        app_state: Of the application.
    """

    cycle: Any  # uvicorn's request and its response; None before the first request

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        # Uvicorn would refuse the newest client, and a refused client cannot tell itself from those that block.
        self._most, self.limit_concurrency = config.limit_concurrency, None
        self._phase: tuple[Phase, object] = "busy", None
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See :class:`asyncio.Protocol`."""
        super().connection_made(transport)
        self._enter("head")
        if self._most is None or len(self.connections) <= self._most:
            return
        # Those that were aborted in this turn of the loop are still among the server's connections.
        others = [c for c in self.connections if isinstance(c, LimitedProtocol) and c._phase[0] != "gone"]
        others.remove(self)
        if len(others) < self._most:
            return
        waiting = [c for c in others if c._phase[0] in _EVICTED]
        if waiting:
            min(waiting, key=lambda c: (_EVICTED.index(c._phase[0]), c._since))._abort()
        else:
            self._refuse(503, "every connection of this server is in use; try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.Protocol`."""
        self._enter("gone")
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        super().data_received(data)
        self._update()

    def on_response_complete(self) -> None:
        """Called by uvicorn when a response is written."""
        super().on_response_complete()
        self._update()

    def pause_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_SECONDS, self._abort)

    def resume_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _update(self) -> None:
        """Find out what the connection waits for."""
        if self._phase[0] == "gone":
            return
        if self.transport.is_closing():
            self._enter("closing")
        elif self.conn.their_state is h11.IDLE:
            self._enter("head" if self.cycle is None or self.conn.trailing_data[0] else "idle")
        else:
            self._enter("body" if self.conn.their_state is h11.SEND_BODY else "busy")

    def _enter(self, phase: Phase) -> None:
        # Bytes that drip in do not begin a phase again; only another phase or another request does.
        if self._phase == (phase, self.cycle):
            return
        self._phase, self._since = (phase, self.cycle), self.loop.time()
        if self._timer is not None:
            self._timer.cancel()
        seconds = SECONDS.get(phase)
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        is_answered = self.cycle is not None and self.cycle.response_started
        if self._phase[0] == "head" or (self._phase[0] == "body" and not is_answered):
            self._refuse(408, f"the {self._phase[0]} of the request took too long; send it again")
        else:
            self._abort()

    def _refuse(self, status: int, message: str) -> None:
        """Write an error and close. It is written here, since there is no whole request to give the application."""
        error = {"message": message, "type": "server_error", "param": None, "code": None}
        body = json.dumps({"error": error}).encode()
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\nConnection: close\r\n"
        self.transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()
        self._enter("closing")

    def _abort(self) -> None:
        # Not close(), which waits until the client has read what is left.
        self._enter("gone")
        self.transport.abort()
