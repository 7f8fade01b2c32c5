"""The connection to a worker, in this process: it sends requests, waits for replies, retries, and reports errors."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from ensemble.distributed.ray_messages import BATCH_LOST, packed, unpacked
from ensemble.errors import MemberError

_MAX_RETRIES = 100
"""Retries while a worker neither answers nor counts as dead; Ray waits for seconds each time."""


class BatchLostError(Exception):
    """A worker was restarted and no longer has the batch of a request; the caller builds the batch again."""


class WorkerClient:
    """The connection to one worker.

    Args:
        name: The member's name, for messages.
        actor: Ray's handle of its :class:`ensemble.distributed.ray_worker.MemberWorker`.
        restarts: Times that Ray restarts it after its process died.

    Attributes:
        calls: Requests sent so far; each one has a reply, except those that only drop rows.
        sent: Bytes sent to the worker.
        received: Bytes received from it.
    """

    def __init__(self, name: str, actor: Any, restarts: int) -> None:
        self.name = name
        self.actor = actor
        self.calls = 0
        self.sent = 0
        self.received = 0
        self._restarts = restarts
        self._numbers = count()

    def new_batch(self) -> int:
        """A number for a new batch."""
        return next(self._numbers)

    def send(self, request: Any) -> Any:
        """Send a request without waiting; :meth:`wait` takes what this returns."""
        return self.actor.handle.remote(self._packed(request))

    def wait(self, pending: Any) -> Any:
        """Wait for the reply to a request.

        Raises:
            BatchLostError: The worker died, or was restarted.
            Exception: The worker's own error.
        """
        try:
            reply = self._unpacked(ray.get(pending))
        except RayTaskError as error:
            raise _cause(error) from None
        except RayError as error:
            raise BatchLostError from error
        if reply is BATCH_LOST:
            raise BatchLostError
        return reply

    def rebuild(self, request: Any) -> Any:
        """Send a request that begins with an empty batch, retry it until there is a reply, and return that.

        Raises:
            MemberError: The worker died and is not restarted again.
            Exception: The worker's own error.
        """
        data = self._packed(request)
        return self._unpacked(self.retry(lambda: self.actor.rebuild.remote(data)))

    def retry(self, call: Callable[[], Any], pending: Any = None) -> Any:
        """Call the worker until it answers, also after restarts. The call must be safe to repeat.

        Args:
            call: Makes the call.
            pending: What the call returned, if it was already made.

        Raises:
            MemberError: The worker died and is not restarted again.
            Exception: The worker's own error.
        """
        for _ in range(_MAX_RETRIES):
            try:
                return ray.get(pending or call())
            except RayTaskError as error:
                raise _cause(error) from None
            except ActorDiedError as error:
                raise self._failed(error) from error
            except RayError as error:
                failure, pending = error, None
        raise self._failed(failure) from failure

    def forget(self, number: int) -> None:
        """Let the worker free a batch."""
        # After the cluster was left there is no worker, and Ray would start a new cluster for the call.
        if ray.is_initialized():
            self.actor.forget.remote(number)

    def _packed(self, request: Any) -> bytes:
        data = packed(request)
        self.calls += 1
        self.sent += len(data)
        return data

    def _unpacked(self, data: bytes) -> Any:
        self.received += len(data)
        return unpacked(data)

    def _failed(self, error: RayError) -> MemberError:
        text = " ".join(str(error).split())
        if "low on memory" in text:
            why = "its node ran out of memory; use a smaller dtype (bfloat16), a smaller batch, or a larger node"
        elif isinstance(error, ActorDiedError):
            times = "once" if self._restarts == 0 else f"{self._restarts + 1} times"
            why = f"its process on the cluster died {times} and is given up; perhaps its node has too little memory"
        else:
            why = f"its node does not answer ({type(error).__name__})"
        return MemberError(f"{self.name}: {why}")


def _cause(error: RayTaskError) -> Exception:
    """The worker's own error."""
    cause = error.cause
    return cause if isinstance(cause, Exception) else error
