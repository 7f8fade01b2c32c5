"""What is put between a client and a server: a delay, or a recorder of what they say."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

_CHUNK = 2**16


@contextmanager
def delayed(port: int, seconds: float) -> Iterator[int]:
    """A port of this machine that leads to another one, with every byte this much later, in both directions.

    Only the time grows, as with a distant server: what is sent meanwhile waits for nothing.

    Args:
        port: Where it leads.
        seconds: The delay of each direction, so that a request and its answer take twice as much longer.
    """
    loop = asyncio.new_event_loop()
    connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        writers = connections[cast("asyncio.Task[None]", task)] = [writer]
        with suppress(OSError):
            back, forth = await asyncio.open_connection("127.0.0.1", port)
            writers.append(forth)
            await asyncio.gather(pump(reader, forth), pump(back, writer))

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                loop.call_later(seconds, writer.write, data)
        loop.call_later(seconds, writer.close)

    async def end() -> None:
        server.close()
        for writer in itertools.chain(*connections.values()):
            writer.transport.abort()
        # What reads from them ends by itself.
        await asyncio.gather(*connections, return_exceptions=True)

    server = loop.run_until_complete(asyncio.start_server(connect, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def recorded(port: int, exchanges: list[dict[str, Any]]) -> Iterator[int]:
    """A port of this machine that leads to an HTTP server, and keeps each request with its answer.

    Args:
        port: Where it leads.
        exchanges: Gets method, path, request, status and answer of each; the same request is kept once.
    """
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            connection = HTTPConnection("127.0.0.1", port)
            connection.request(self.command, self.path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            request = {"method": self.command, "path": self.path, "request": json.loads(body) if body else None}
            kept = {**request, "status": answer.status, "answer": _read(content)}
            with lock:
                if not any(request.items() <= each.items() for each in exchanges):
                    exchanges.append(kept)
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.getheader("Content-Type", "application/json"))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = forward  # noqa: N815  # http.server's names

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


def _read(content: bytes) -> Any:
    """The value of JSON, or the text where it is not JSON."""
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")
