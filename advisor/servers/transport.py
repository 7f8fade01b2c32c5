"""The HTTP client below the openai client: it limits the headers, the rate and the size of what is sent and read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import httpx2

from advisor.servers.address import ServerAddress
from ensemble.errors import MemberError

# Some thousand tokens with their log-probabilities have a tenth of this size.
MAX_BYTES = 4 << 20
# A host that accepts no connection in this time is taken as absent, however long a request may take.
_CONNECT_S = 10.0
_HEADERS = ("host", "content-type", "content-length", "connection")
_OPENAI_HEADERS = ("openai-organization", "openai-project")


class RestrictedClient(httpx2.Client):
    """An HTTP client that checks every request and every answer, those of retries as well.

    Args:
        address: The server.
        key: Signs the requests; None for no key.
    """

    def __init__(self, address: ServerAddress, key: str | None) -> None:
        super().__init__(
            timeout=httpx2.Timeout(address.timeout, connect=min(_CONNECT_S, address.timeout)),
            # A redirect would send the prompts and the key to a host that the user did not name.
            follow_redirects=False,
            event_hooks={"request": [self._on_request], "response": [self._on_response]},
        )
        self._address, self._key = address, key
        self._lock = threading.Lock()
        self._next_start = 0.0

    def _on_request(self, request: httpx2.Request) -> None:
        # The openai client adds headers from its own environment variables (organisation, project, custom headers).
        # They are not meant for another company's server.
        allowed = (*_HEADERS, *(_OPENAI_HEADERS if self._address.is_openai else ()))
        for name in [name for name in request.headers if name.lower() not in allowed]:
            del request.headers[name]
        request.headers["accept"] = "application/json"
        # A small compressed answer can have any size when it is decompressed.
        request.headers["accept-encoding"] = "identity"
        request.headers["user-agent"] = "unite-advisor"
        if self._key is not None:
            request.headers["authorization"] = f"Bearer {self._key}"
        self._wait_for_rate()
        request.extensions["deadline"] = time.monotonic() + self._address.timeout

    def _on_response(self, response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise MemberError("the server compresses its answers, although the request does not allow it")
        deadline = response.request.extensions["deadline"]
        if isinstance(response.stream, httpx2.SyncByteStream):  # always so in a client that is not async
            response.stream = _LimitedStream(response.stream, deadline)

    def _wait_for_rate(self) -> None:
        if self._address.requests_per_minute is None:
            return
        # Requests start at even distances: a burst each minute would exceed limits that servers apply to seconds.
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next_start)
            self._next_start = start + 60 / self._address.requests_per_minute
        time.sleep(start - now)


class _LimitedStream(httpx2.SyncByteStream):
    """The bytes of an answer, up to a size and a moment."""

    def __init__(self, stream: httpx2.SyncByteStream, deadline: float) -> None:
        self._stream, self._deadline = stream, deadline

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for part in self._stream:
            size += len(part)
            if size > MAX_BYTES:
                raise MemberError(f"the server's answer is longer than {MAX_BYTES >> 20} MiB")
            # The client's own timeout is for each part, so an endless answer in small parts would never reach it.
            if time.monotonic() > self._deadline:
                raise httpx2.ReadTimeout("the answer does not end")
            yield part

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def close(self) -> None:
        """Close the answer and its connection."""
        self._stream.close()
