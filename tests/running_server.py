"""Real servers on free ports, each in its own thread, with ensembles of tiny models."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import openai
import uvicorn.server

from advisor.models.server_model import ServerHealth
from advisor.serving.app import make_app
from advisor.serving.engine import SharedDecoder
from advisor.serving.handler import RequestHandler
from advisor.serving.metrics import Metrics
from advisor.serving.protocol import RequestLimits
from advisor.serving.responses import ServedModel
from advisor.serving.server import GracefulServer, address_of, allowed_hosts, bind, digest_of
from ensemble import Ensemble
from ensemble.decode.settings import Batch
from ensemble.errors import UniteError

if TYPE_CHECKING:
    from fastapi import FastAPI

# The library looks ten times a second whether it is to stop.
vars(uvicorn.server)["asyncio"] = SimpleNamespace(**{**vars(asyncio), "sleep": lambda s: asyncio.sleep(s / 20)})


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered."""

    status: int
    headers: Any
    text: str

    @property
    def error(self) -> dict[str, Any]:
        """The one object of an error body, which has these four keys and no others."""
        body = json.loads(self.text)
        assert list(body) == ["error"], body
        assert set(body["error"]) == {"message", "type", "param", "code"}, body
        assert "\n" not in body["error"]["message"]
        found: dict[str, Any] = body["error"]
        return found


def head_of(path: str, *lines: str) -> bytes:
    """The head of a request with a JSON body."""
    first = (f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json")
    return "\r\n".join([*first, *lines, "", ""]).encode()


@dataclass(frozen=True, slots=True)
class Running:
    """A server that runs."""

    url: str
    server: GracefulServer
    engine: RequestHandler
    thread: threading.Thread
    errors: list[UniteError]
    """The errors that ended it."""
    clients: list[openai.OpenAI] = field(default_factory=list)
    """The clients that were made, which are closed at its end."""

    def client(self, key: str = "none") -> openai.OpenAI:
        """A client without retries."""
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)
        # It refers to itself, so it would be found as garbage at any time, and its sockets perhaps before it.
        self.clients.append(client)
        return client

    def ask(self, path: str, content: str | bytes | None = None, **headers: str) -> Reply:
        """Get a path, or post a body."""
        data = content.encode() if isinstance(content, str) else content
        sent = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"{self.url}{path}", data, sent)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return Reply(reply.status, reply.headers, reply.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.headers, error.read().decode())

    def complete(self, **fields: Any) -> Reply:
        """Ask for a completion of "x"."""
        return self.ask("/v1/completions", json.dumps({"model": "tiny", "prompt": "x", **fields}))

    def connect(self, data: bytes = b"") -> socket.socket:
        """A connection that has sent some bytes."""
        place = urlsplit(self.url)
        made = socket.create_connection((str(place.hostname), place.port or 0), timeout=20)
        made.sendall(data)
        return made

    def post(self, path: str, body: dict[str, Any]) -> socket.socket:
        """A connection that has sent a request and waits."""
        content = json.dumps(body).encode()
        return self.connect(head_of(path, f"Content-Length: {len(content)}") + content)

    def figure(self, name: str) -> float:
        """A figure of ``/metrics``, summed over its labels."""
        lines = [line.rsplit(" ", 1) for line in self.ask("/metrics").text.splitlines() if not line.startswith("#")]
        return sum(float(value) for key, value in lines if key.partition("{")[0] == name)

    def until(self, condition: Callable[[], Any], seconds: float = 20) -> None:
        """Wait until a condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "the condition did not become true"
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop as a signal does; only main threads receive signals."""
        self.server.handle_exit(signal.SIGTERM, None)


@contextlib.contextmanager
def serving(
    ensemble: Ensemble,
    limits: RequestLimits | None = None,
    *,
    batch: Batch | None = None,
    key: str | None = None,
    connections: int | None = None,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    port: int = 0,
) -> Iterator[Running]:
    """Serve an ensemble as ``tiny``, on a free port if none is given; all requests are finished at the end."""
    limits, metrics = limits or RequestLimits(), Metrics()
    engine = SharedDecoder(ensemble, batch or Batch(), limits, metrics)
    members = ensemble.members
    context = members[0].context if len(members) == 1 else None
    served = ServedModel("tiny", tuple(member.name for member in members), ensemble.method, "fp_test", 0, context)
    places: dict[str, Any] = {"connections": connections, "hosts": hosts, "origins": origins, "port": port}
    with running(engine, served, limits, metrics, key=key, **places) as found:
        yield found


@contextlib.contextmanager
def running(
    engine: RequestHandler,
    served: ServedModel,
    limits: RequestLimits,
    metrics: Metrics,
    *,
    key: str | None = None,
    connections: int | None = None,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    health: ServerHealth | None = None,
    port: int = 0,
) -> Iterator[Running]:
    """Run a server with an engine; all requests are finished at the end."""
    digest = None if key is None else digest_of(key)
    with bind("127.0.0.1", port) as bound:
        names = allowed_hosts(bound, "127.0.0.1", hosts)
        app = make_app(engine, served, limits, metrics, digest, names, health, origins)
        with listening(bound, app, engine, connections) as found:
            yield found


@contextlib.contextmanager
def listening(
    bound: socket.socket, app: FastAPI, engine: RequestHandler, connections: int | None = None
) -> Iterator[Running]:
    """Run an application on a bound socket; all requests are finished at the end."""
    ready, errors = threading.Event(), list[UniteError]()
    server = GracefulServer(app, engine, bound, connections=connections, ready=ready.set)

    def run() -> None:
        try:
            server.run_bound()
        except UniteError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(20)
    found = Running(address_of(bound), server, engine, thread, errors)
    try:
        yield found
    finally:
        if not engine.refusing:
            server.handle_exit(signal.SIGTERM, None)
        thread.join(30)
        for client in found.clients:
            client.close()
    assert not thread.is_alive()
