"""Servers for tests: ``transformers serve`` with tiny models, and raw ones that give the answers a test sets."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

COMMIT = "0" * 40


def into_hub_cache(home: Path, name: str, folder: Path) -> None:
    """Put a model's folder where the hub's library would have kept its download."""
    repository = home / "hub" / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT, encoding="utf-8")


@contextmanager
def transformers_serve(home: Path) -> Iterator[str]:
    """Run ``transformers serve`` on the models of a hub cache, without network; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTEST", "PYTHONPATH"))}
    command = [str(Path(sys.executable).with_name("transformers")), "serve", "--host", "127.0.0.1", "--device", "cpu"]
    with (home / "log.txt").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--port", str(port)],
            env={**kept, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
        )
    try:
        _wait(server, f"http://127.0.0.1:{port}/health", home / "log.txt")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + 240
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(
        f"transformers serve did not start:\n{log.read_text(encoding='utf-8', errors='replace')[-3000:]}"
    )


Answer = tuple[int, Mapping[str, str], bytes | Iterator[bytes]]
"""Status, headers and body; in pieces, it has to say how long it is."""


@dataclass(slots=True)
class Raw:
    """A server that gives the answers a test sets.

    Attributes:
        url: Its address.
        answer: From the path and the body of a request to the answer; None closes the connection.
        asked: Path, headers and body of every request.
    """

    url: str = ""
    answer: Callable[[str, dict[str, Any]], Answer | None] = lambda _path, _body: (200, {}, b"")
    asked: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)

    @property
    def questions(self) -> list[str]:
        """The prompts of all requests, without the first one, which tests whether the model answers."""
        return [body["prompt"] for _, _, body in self.asked if body.get("prompt", "Hello") != "Hello"]


@contextmanager
def raw_server() -> Iterator[Raw]:
    """Run a raw server."""
    raw = Raw()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each body waits 40 ms for the acknowledgement of its head

        def handle(self) -> None:
            # A client may close with a reset; a traceback of it would be on the standard error that tests read.
            with contextlib.suppress(ConnectionError):
                super().handle()

        def handle_request(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.command == "POST" and not content:  # the client has given up between head and body
                self.close_connection = True
                return
            is_form = "form" in self.headers.get("Content-Type", "")
            body = parse_qs(content.decode()) if is_form else json.loads(content or b"{}")
            raw.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            answer = raw.answer(self.path, body)
            self.close_connection = answer is None or "Content-Length" in answer[1]
            if answer is None:
                return
            status, headers, content = answer
            length = {"Content-Length": str(len(content))} if isinstance(content, bytes) else {}
            self.send_response(status)
            for name, value in {**length, **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):  # the client has closed the connection
                parts = [content] if isinstance(content, bytes) else content
                for part in () if self.command == "HEAD" else parts:
                    self.wfile.write(part)

        do_GET = do_HEAD = do_POST = handle_request  # noqa: N815  # http.server's names

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        raw.url = f"http://127.0.0.1:{server.server_port}/v1"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield raw
        finally:
            server.shutdown()


@contextmanager
def socket_server(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """Run a server that does with each connection what ``talk`` does; its address."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # closed
                return
            threading.Thread(target=one, args=(connection,), daemon=True).start()

    def one(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # the client has closed the connection
            talk(connection)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        listening.shutdown(socket.SHUT_RDWR)


def as_json(value: object, status: int = 200, **headers: str) -> Answer:
    """An answer with a JSON body."""
    return status, {"Content-Type": "application/json", **headers}, json.dumps(value).encode()


def completion(text: object, finish_reason: str = "stop") -> Answer:
    """What ``/completions`` answers."""
    return as_json({"choices": [{"text": text, "finish_reason": finish_reason}], "usage": {"completion_tokens": 3}})


def models(*names: str) -> Answer:
    """What ``/models`` answers."""
    return as_json({"object": "list", "data": [{"id": name, "object": "model", "created": 1} for name in names]})


def well(path: str, _: Mapping[str, Any]) -> Answer:
    """A server that has the model m, and writes 7."""
    return models("m", "other") if path.endswith("/models") else completion("7")


SKIPS = {"ada": 5, "bob": 7, "cyd": 9}
"""A model adds wrongly where the sum can be divided by this."""


class Adders:
    """A server of three models with prices and usage. Each is wrong on some sums, unless it has read drafts."""

    def __init__(self) -> None:
        self.read: list[tuple[str, str]] = []

    def __call__(self, path: str, body: dict[str, Any]) -> Answer:
        if path.endswith("/models"):
            return models(*SKIPS)
        name, prompt = body["model"], body["prompt"]
        numbers = re.findall(r"(\d+) \+ (\d+)", prompt)
        if not numbers:
            return as_json({"choices": [{"text": "Hello", "finish_reason": "stop"}], "usage": {"completion_tokens": 1}})
        self.read.append((name, prompt))
        total = sum(map(int, numbers[-1]))
        reads = "before it come" in prompt.lower()
        is_right = total % SKIPS[name] or reads
        usage = {"prompt_tokens": len(prompt) // 4, "completion_tokens": 4}
        text = f" It is {total if is_right else total + 1}."
        return as_json({"choices": [{"text": text, "finish_reason": "stop"}], "usage": usage})
