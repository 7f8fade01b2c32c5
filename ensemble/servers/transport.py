"""The HTTP client: it limits the headers, rate, size and time of what is sent and read."""

from __future__ import annotations

import os
import re
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore2
import httpx2

from ensemble.errors import MemberError
from ensemble.servers.address import ServerAddress

# Some thousand tokens with their log-probabilities have a tenth of this size.
MAX_BYTES = 4 << 20
# A host that accepts no connection in this time is taken as absent, however long a request may take.
_CONNECT_S = 10.0
_ONE = httpx2.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=5.0)
_OPENAI_HEADERS = {"openai-organization": "OPENAI_ORG_ID", "openai-project": "OPENAI_PROJECT_ID"}
_PIECE = 1 << 16
"""Bytes that are written at a time, each with the time that is left."""


class RestrictedClient:
    """An HTTP client that checks every request, which the key signs, and every answer, also of retries."""

    def __init__(self, address: ServerAddress, key: str | None) -> None:
        self._address, self._key = address, key
        timeout = httpx2.Timeout(address.timeout, connect=min(_CONNECT_S, address.timeout))
        self._extensions = {"timeout": timeout.as_dict()}
        self._proxy = _proxy_of(address.url)
        self._lock = threading.Lock()
        self._next_start = 0.0
        self.connections = 0  # opened so far
        # A request is sent and read by one thread, so the thread's deadline is that of its request. It has the
        # ``seconds`` of the last request, without the wait for the rate.
        self.last = threading.local()
        # Each has one connection: a pool goes through all its connections at the start and the end of every request.
        self._all: list[httpx2.HTTPTransport] = []
        self._idle: list[httpx2.HTTPTransport] = []
        self._streams = weakref.WeakSet[httpcore2.NetworkStream]()
        self._closed = threading.Event()

    def request(self, method: str, url: str, json: Any) -> httpx2.Response:
        """Send a request, and read the answer. A redirect would send the key to another host, so none is followed."""
        request = httpx2.Request(method, url, json=json, headers=self._headers(), extensions=self._extensions)
        self._wait_for_rate()
        begun = time.monotonic()
        self.last.deadline = begun + self._address.timeout
        with self._transport() as transport, closing(transport.handle_request(request)) as response:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise MemberError("the server compresses its answers, although the request does not allow it")
            content = bytearray()
            for part in response.iter_raw():
                content += part
                # Counted here, because a server can leave out Content-Length, or lie in it.
                if len(content) > MAX_BYTES:
                    raise MemberError(f"the server's answer is longer than {MAX_BYTES >> 20} MiB")
        self.last.seconds = time.monotonic() - begun
        read = httpx2.Response(response.status_code, headers=response.headers, content=bytes(content))
        # The server's charset could be one that cannot decode text, or one that decompresses.
        read.encoding = "utf-8"
        return read

    def close(self) -> None:
        """Close the connections. Requests that still run end with an error."""
        with self._lock:
            self._closed.set()
            streams = list(self._streams)
        for transport in self._all:
            transport.close()
        # A transport does not know the connection that another thread is opening for it.
        for stream in streams:
            stream.close()

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        # As OpenAI's own client does. They are not meant for another company's server.
        for name, variable in _OPENAI_HEADERS.items() if self._address.is_openai else ():
            if value := os.environ.get(variable):
                headers[name] = value
        # A small compressed answer can have any size when it is decompressed.
        headers |= {"accept": "application/json", "accept-encoding": "identity", "user-agent": "unite-advisor"}
        return headers if self._key is None else headers | {"authorization": f"Bearer {self._key}"}

    @contextmanager
    def _transport(self) -> Iterator[httpx2.HTTPTransport]:
        """One that no other request uses."""
        if self._closed.is_set():
            raise RuntimeError("the client is closed")
        try:
            transport = self._idle.pop()
        except IndexError:
            transport = self._new_transport()
        try:
            yield transport
        finally:
            self._idle.append(transport)

    def _new_transport(self) -> httpx2.HTTPTransport:
        transport = httpx2.HTTPTransport(verify=_tls_context(), proxy=self._proxy, limits=_ONE)
        # httpx2 has no argument for it. Without the attribute this fails, and does not lose the deadline.
        pool: Any = transport._pool
        pool._network_backend = _TimedBackend(pool._network_backend, self._time_left, self._note)
        self._all.append(transport)
        return transport

    def _note(self, stream: httpcore2.NetworkStream) -> None:
        """Count a connection, and close it where the client was closed meanwhile."""
        with self._lock:
            self.connections += 1
            self._streams.add(stream)
        if self._closed.is_set():
            stream.close()

    def _time_left(self) -> float:
        """Seconds that this thread's request may still take."""
        left: float = self.last.deadline - time.monotonic()
        if left <= 0:
            raise httpcore2.ReadTimeout("the time limit of the request is over")
        return left

    def _wait_for_rate(self) -> None:
        if self._address.requests_per_minute is None:
            return
        # Requests start at even distances: a burst each minute would exceed limits that servers apply to seconds.
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next_start)
            self._next_start = start + 60 / self._address.requests_per_minute
        time.sleep(start - now)


def _proxy_of(url: str) -> str | None:
    parts, proxies = urlsplit(url), getproxies()
    # A proxy would look for the server on its own machine.
    if re.fullmatch(r"localhost|127(\.\d+){3}|::1", parts.hostname or ""):
        return None
    proxy = None if proxy_bypass(parts.netloc) else proxies.get(parts.scheme, proxies.get("all"))
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


@cache
def _tls_context() -> ssl.SSLContext:
    """The certificates of this machine; to read them takes longer than many requests."""
    return httpx2.create_ssl_context()


class _TimedBackend(httpcore2.NetworkBackend):
    """Opens connections whose reads and writes end with the request's time, and counts them."""

    # The client's own timeout is for each read, so a server that sends a byte now and then would never reach it.

    def __init__(
        self,
        backend: httpcore2.NetworkBackend,
        time_left: Callable[[], float],
        on_open: Callable[[httpcore2.NetworkStream], None],
    ) -> None:
        self._backend, self._time_left, self._on_open = backend, time_left, on_open

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        stream = self._backend.connect_tcp(host, port, timeout, local_address, socket_options)
        self._on_open(stream)
        return _TimedStream(stream, self._time_left)


class _TimedStream(httpcore2.NetworkStream):
    """A connection; see :class:`_TimedBackend`."""

    def __init__(self, stream: httpcore2.NetworkStream, time_left: Callable[[], float]) -> None:
        self._stream, self._time_left = stream, time_left

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002  # the deadline replaces it
        return self._stream.read(max_bytes, self._time_left())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002  # the deadline replaces it
        # The stream's own loop gives each part of a long prompt the whole time again.
        for start in range(0, len(buffer), _PIECE):
            self._stream.write(buffer[start : start + _PIECE], self._time_left())

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        # Python's handshake applies its timeout to the whole of it.
        return _TimedStream(self._stream.start_tls(ssl_context, server_hostname, timeout), self._time_left)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def close(self) -> None:
        self._stream.close()
