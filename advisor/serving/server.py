"""The process: a socket, signals, and a stop that finishes what runs."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from advisor.serving.engine import STOPPING
from ensemble.errors import InputError, UniteError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from advisor.serving.engine import Engine

_KEPT = 75
"""Seconds that an unused connection is kept: longer than clients keep theirs (5 in OpenAI's), lest one closes while a
request is on its way."""
_LAST_BYTES = 10
"""Seconds that readers are given, when all is decoded, to take what was written for them."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound, and does not listen yet: before the models are there nobody is to be kept waiting.

    Raises:
        InputError: There is no such host, or the port is taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"--host {host}: it cannot be found ({error.strerror or error})") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise InputError(f"--host {host} --port {port}: cannot be used ({error.strerror or error})") from None
    return bound


def address_of(bound: socket.socket) -> str:
    """Where a socket is reached, as a URL without a path."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine reaches it."""
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


class Server(uvicorn.Server):
    """Uvicorn's server, which at the first signal goes on until all that was taken is finished.

    Uvicorn itself would close its sockets first, and whoever asks would see a refused connection: here it is told, by
    503 and on ``/health``, that the server is stopping. A second signal stops at once.

    Args:
        app: The application.
        engine: Its engine.
        bound: Where it listens.
        ready: Called when it listens.
        stopping: Called at the first signal.
    """

    def __init__(
        self,
        app: FastAPI,
        engine: Engine,
        bound: socket.socket,
        *,
        ready: Callable[[], None] = lambda: None,
        stopping: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                timeout_keep_alive=_KEPT,
                timeout_graceful_shutdown=_LAST_BYTES,
            )
        )
        self._engine = engine
        self._bound = bound
        self._ready = ready
        self._stopping = stopping

    def run_bound(self) -> None:
        """Serve until a signal comes.

        Raises:
            UniteError: The decoder ended by itself.
            KeyboardInterrupt: A second signal has ended it.
        """
        self.run([self._bound])
        if self.force_exit:
            self._engine.stop()
            raise KeyboardInterrupt
        if self._engine.refusing not in {"", STOPPING}:
            raise UniteError(self._engine.refusing)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say so when it is done."""
        await super().startup(sockets)
        if self.started:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  # as signals call it
        """Begin to stop; at once where that has begun before."""
        if self._engine.refusing:
            self.should_exit = self.force_exit = True
            # What is cut off by that is no fault that anybody has to see.
            logging.getLogger("uvicorn.error").disabled = True
            return
        self._engine.refuse()
        self._stopping()

    async def on_tick(self, counter: int) -> bool:
        """Exit when all is finished."""
        if self._engine.refusing and self._engine.idle:
            self.should_exit = True
        return await super().on_tick(counter)
