"""This process's end of the line to a member's node: it asks, waits, and says in one line why there is no answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from ensemble.distributed.ray_messages import LOST, Traffic, packed, unpacked
from ensemble.errors import MemberError

_PATIENCE = 100
"""Times that a node is asked anew while it is neither there nor given up; Ray waits for seconds each time."""


class Lost(Exception):  # noqa: N818  # no error: the node was started anew, and is told its contexts again
    """A node no longer has the contexts that it was asked about."""


@dataclass(slots=True)
class Link:
    """A line to one node.

    Attributes:
        name: The member's.
        actor: Ray's handle of its :class:`ensemble.distributed.ray_node.Node`.
        restarts: Times that it is started anew after its process died.
        traffic: What was said so far.
    """

    name: str
    actor: Any
    restarts: int
    traffic: Traffic = field(default_factory=Traffic)
    _numbers: count[int] = field(default_factory=count)

    def number(self) -> int:
        """A number for a new batch."""
        return next(self._numbers)

    def send(self, request: Any) -> Any:
        """Ask; what is returned is waited for with :meth:`wait`."""
        return self.actor.ask.remote(self._counted(request))

    def wait(self, asked: Any) -> Any:
        """The answer to what was asked.

        Raises:
            Lost: The node has died, or has been started anew.
            Exception: Whatever the member raised.
        """
        try:
            answer = self._answer(ray.get(asked))
        except RayTaskError as error:
            raise _cause(error) from None
        except RayError as error:
            raise Lost from error
        if answer is LOST:
            raise Lost
        return answer

    def ask_anew(self, request: Any) -> Any:
        """Ask, with an empty batch to begin with, as often as it takes.

        Raises:
            MemberError: The node died for good.
            Exception: Whatever the member raised.
        """
        data = self._counted(request)
        return self._answer(self.insist(lambda: self.actor.ask_anew.remote(data)))

    def insist(self, ask: Callable[[], Any], asked: Any = None) -> Any:
        """What a call of the node returns that can be repeated, through its new starts.

        Args:
            ask: Makes the call.
            asked: What it returned, where it has been made already.

        Raises:
            MemberError: The node died for good.
            Exception: Whatever the member raised.
        """
        for _ in range(_PATIENCE):
            try:
                return ray.get(asked or ask())
            except RayTaskError as error:
                raise _cause(error) from None
            except ActorDiedError as error:
                raise self._given_up(error) from error
            except RayError as error:
                failure, asked = error, None
        raise self._given_up(failure) from failure

    def forget(self, number: int) -> None:
        """Let the node give up a batch; where it is gone already there is nothing to do."""
        if ray.is_initialized():
            self.actor.forget.remote(number)

    def _counted(self, request: Any) -> bytes:
        data = packed(request)
        self.traffic.calls += 1
        self.traffic.sent += len(data)
        return data

    def _answer(self, data: bytes) -> Any:
        self.traffic.received += len(data)
        return unpacked(data)

    def _given_up(self, error: RayError) -> MemberError:
        text = " ".join(str(error).split())
        if "low on memory" in text:
            why = "its node ran out of memory; use a smaller dtype (bfloat16), a smaller batch, or a larger node"
        elif isinstance(error, ActorDiedError):
            times = "once" if self.restarts == 0 else f"{self.restarts + 1} times"
            why = f"its process on the cluster died {times} and is given up; perhaps its node has too little memory"
        else:
            why = f"its node does not answer ({type(error).__name__})"
        return MemberError(f"{self.name}: {why}")


def _cause(error: RayTaskError) -> Exception:
    """What the member itself raised."""
    cause = error.cause
    return cause if isinstance(cause, Exception) else error
