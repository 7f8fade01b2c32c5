"""What answers requests, in a server: it counts them, and says what the endpoints can ask of it."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from typing import ClassVar

from advisor.serving.metrics import Metrics
from advisor.serving.protocol import RequestLimits
from advisor.serving.request import GenerationRequest, busy, unavailable

STOPPING = "the server is stopping"


class RequestHandler(ABC):
    """What answers requests: a decoder that all requests share, or a strategy that asks several models."""

    DECODES: ClassVar[bool] = False
    """Whether it decodes in this process, so that it has tokenizers."""

    def __init__(self, limits: RequestLimits, metrics: Metrics) -> None:
        self._limits, self._metrics = limits, metrics
        # Reentrant: a signal handler calls `refuse` in the thread that may be in `submit` right now.
        self._lock = threading.RLock()
        self._accepted, self._reason = 0, ""

    @property
    def refusing(self) -> str:
        """Why requests are refused; empty where they are accepted."""
        return self._reason

    @property
    def idle(self) -> bool:
        """Whether all accepted texts are finished."""
        return self._accepted == 0

    def refuse(self, reason: str = STOPPING) -> None:
        """Accept no more requests."""
        with self._lock:
            self._reason = self._reason or reason

    def _count_in(self, texts: int) -> None:
        """Count texts as accepted."""
        with self._lock:
            if self.refusing:
                raise unavailable(self.refusing)
            if self._accepted + texts > self._limits.texts:
                raise busy(f"the limit of {self._limits.texts} running and waiting texts is reached")
            self._accepted += texts

    def _count_out(self, texts: int) -> None:
        with self._lock:
            self._accepted -= texts

    @abstractmethod
    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start; events are delivered in this loop."""

    @abstractmethod
    def submit(self, request: GenerationRequest) -> None:
        """Accept a request, whose events are what comes of it, or raise a RequestError."""

    @abstractmethod
    def cancel(self, request: GenerationRequest) -> None:
        """Stop the texts of a request that are not finished, and free their places."""

    @abstractmethod
    def stop(self) -> None:
        """Refuse requests and end; unfinished texts are lost. Called outside of the event loop's thread."""
