"""The connection to a worker on a Ray cluster, as a token server."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from ensemble.errors import MemberError
from ensemble.servers.token_server import Ids, Logprobs, NextToken, ServerLimits


class RayServer:
    """A :class:`~ensemble.servers.token_server.TokenServer` in a worker on a Ray cluster.

    Args:
        name: The member's name, for messages.
        actor: Ray's handle of its :class:`ensemble.distributed.ray_worker.MemberWorker`.
        restarts: Times that Ray restarts it after its process died.

    Attributes:
        limits: What the worker gives; known once it has loaded the model.
        calls: Requests sent so far.
        sent: Bytes sent to the worker.
        received: Bytes received from it.
    """

    limits: ServerLimits
    # A worker that is restarted loads the same model again.
    connections = 0

    def __init__(self, name: str, actor: Any, restarts: int) -> None:
        self.name = name
        self.actor = actor
        self.calls = 0
        self.sent = 0
        self.received = 0
        self._restarts = restarts

    def write(self, contexts: Sequence[Ids], max_tokens: int, k: int) -> list[list[NextToken]]:
        """See :class:`~ensemble.servers.token_server.TokenServer`."""
        answer: list[list[NextToken]] = self._request("write", contexts, max_tokens, k)
        return answer

    def chosen(self, contexts: Sequence[Ids], ids: Ids) -> list[Logprobs]:
        """See :class:`~ensemble.servers.token_server.TokenServer`."""
        answer: list[Logprobs] = self._request("chosen", contexts, ids)
        return answer

    def tokenize(self, text: str) -> None:
        """See :class:`~ensemble.servers.token_server.TokenServer`. The worker's tokenizer is the one used here."""

    def close(self) -> None:
        """See :class:`~ensemble.servers.token_server.TokenServer`. The cluster ends the worker."""

    def wait(self, call: Callable[[], Any]) -> Any:
        """The result of a call to the worker, which Ray repeats where the worker is restarted.

        Raises:
            MemberError: The worker died and is not restarted again.
            Exception: The worker's own error.
        """
        try:
            return ray.get(call())
        except RayTaskError as error:
            # Ray's error quotes a traceback; its cause is what the worker raised.
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except RayError as error:
            raise self._failed(error) from error

    def _request(self, name: str, *arguments: Any) -> Any:
        # Packed here and not by Ray, so that what crosses the network can be counted.
        data = pickle.dumps((name, arguments), protocol=5)
        try:
            answer: bytes = self.wait(lambda: self.actor.answer.remote(data))
        except MemberError as error:
            # The worker's model knows no name.
            raise error if error.of else MemberError(str(error), of=self.name) from error
        self.calls, self.sent, self.received = self.calls + 1, self.sent + len(data), self.received + len(answer)
        return pickle.loads(answer)

    def _failed(self, error: RayError) -> MemberError:
        text = " ".join(str(error).split())
        if "low on memory" in text:
            why = "its node ran out of memory; use a smaller dtype (bfloat16), a smaller batch, or a larger node"
        elif isinstance(error, ActorDiedError):
            times = "once" if self._restarts == 0 else f"{self._restarts + 1} times"
            why = f"its process on the cluster died {times} and is given up; perhaps its node has too little memory"
        else:
            why = f"its node does not answer ({type(error).__name__})"
        return MemberError(why, of=self.name)
