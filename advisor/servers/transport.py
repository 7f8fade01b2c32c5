"""What goes over the wire: which headers are sent, how often, and how much of an answer is read.

The openai client takes headers from its own environment variables (an organisation, a project, any others), and none
of them is for a server that somebody else runs. So every request is stripped to what a server needs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import httpx2

from advisor.servers.address import Remote
from ensemble.errors import MemberError

MOST_BYTES = 4 << 20
"""Of an answer. Some thousand tokens with their log-probabilities are a tenth of it."""
CONNECT = 10.0
"""Seconds after which a host that says nothing at all is taken for one that is not there."""
_NEEDED = ("host", "content-type", "content-length", "connection")
_ACCOUNT = ("openai-organization", "openai-project")


class Guard:
    """Looks at every request and every answer, those of retries too.

    Args:
        remote: Where requests go.
        key: What they are signed with; None for nothing.
    """

    def __init__(self, remote: Remote, key: str | None) -> None:
        self._remote, self._key = remote, key
        self._lock = threading.Lock()
        self._next = 0.0

    def client(self) -> httpx2.Client:
        """An HTTP client that is guarded.

        It follows no redirect: whoever answers shall be whom the user named.
        """
        timeout = self._remote.timeout
        return httpx2.Client(
            timeout=httpx2.Timeout(timeout, connect=min(CONNECT, timeout)),
            follow_redirects=False,
            event_hooks={"request": [self._send], "response": [self._receive]},
        )

    def _send(self, request: httpx2.Request) -> None:
        allowed = (*_NEEDED, *(_ACCOUNT if self._remote.is_openai else ()))
        for name in [name for name in request.headers if name.lower() not in allowed]:
            del request.headers[name]
        request.headers["accept"] = "application/json"
        # What is small when packed may be of any size when unpacked.
        request.headers["accept-encoding"] = "identity"
        request.headers["user-agent"] = "unite-advisor"
        if self._key is not None:
            request.headers["authorization"] = f"Bearer {self._key}"
        self._wait()
        request.extensions["deadline"] = time.monotonic() + self._remote.timeout

    def _receive(self, response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise MemberError("the server packs its answers, which it was asked not to do")
        deadline = response.request.extensions["deadline"]
        if isinstance(response.stream, httpx2.SyncByteStream):  # which a client that does not wait for others has
            response.stream = _Limited(response.stream, deadline)

    def _wait(self) -> None:
        """Wait until the next request may begin: they keep their distance instead of coming in a rush each minute."""
        if self._remote.requests_per_minute is None:
            return
        with self._lock:
            now = time.monotonic()
            at = max(now, self._next)
            self._next = at + 60 / self._remote.requests_per_minute
        time.sleep(at - now)


class _Limited(httpx2.SyncByteStream):
    """An answer's bytes, up to a size and a moment: each part of an endless answer comes in time."""

    def __init__(self, stream: httpx2.SyncByteStream, deadline: float) -> None:
        self._stream, self._deadline = stream, deadline

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for part in self._stream:
            size += len(part)
            if size > MOST_BYTES:
                raise MemberError(f"the server's answer is longer than {MOST_BYTES >> 20} MiB")
            if time.monotonic() > self._deadline:
                raise httpx2.ReadTimeout("the answer does not end")
            yield part

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def close(self) -> None:
        """Close it, and its connection."""
        self._stream.close()
