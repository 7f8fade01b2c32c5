"""The runner of a batch in a Ray worker, and its logits there.

This process knows the ids of all rows. So it can build a batch again in a restarted worker, and every request can be
repeated.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ensemble.distributed.ray_client import BatchLostError, WorkerClient
from ensemble.distributed.ray_messages import pack_tensor, unpack_tensor
from ensemble.runtime.draft import Drafter
from ensemble.runtime.logits import RemoteLogits
from ensemble.runtime.model_runner import Ids

_FIRST_K = 10
"""Candidates in a worker's first reply, before it is known how many the method needs."""
Operation = tuple[str, tuple[Any, ...]]
"""The name of an operation and its arguments; see :mod:`ensemble.distributed.ray_worker`."""


@dataclass(slots=True)
class Reply:
    """A worker's reply with the top candidates of some rows; it may still be on its way.

    Attributes:
        pending: The request to wait for.
        rebuild: The operation that computes the worker's logits from an empty batch. The reply's rows are its last.
        first: The number of the reply's first row among the worker's logits.
        rows: Rows of the reply; of a draft, known once it has arrived.
        k: Candidates of each row.
        content: The reply, once it has arrived.
    """

    pending: Any
    rebuild: Operation
    first: int
    rows: int
    k: int
    content: Any = None


class RayRunner:
    """A :class:`~ensemble.runtime.model_runner.ModelRunner` in a Ray worker.

    Args:
        client: The connection to the worker.
    """

    def __init__(self, client: WorkerClient) -> None:
        self.k = _FIRST_K
        self._client = client
        self._number = client.new_batch()
        self._rows: list[list[int]] = []
        self._rebuild: Operation = ("admit", ([],))
        # The worker frees the batch with this object; at exit the cluster ends anyway.
        weakref.finalize(self, client.forget, self._number).atexit = False

    @property
    def row_count(self) -> int:
        """Rows in the batch."""
        return len(self._rows)

    def admit(self, prompts: Sequence[Ids]) -> RayLogits:
        """See :meth:`ensemble.runtime.model_runner.ModelRunner.admit`."""
        count = len(self._rows)
        self._rows = [*self._rows, *map(list, prompts)]
        return self._send(count, ("admit", (list(prompts),)), ("admit", (self._rows,)), count, len(prompts))

    def feed(self, keep: Sequence[int], new: Sequence[Ids]) -> RayLogits:
        """See :meth:`ensemble.runtime.model_runner.ModelRunner.feed`."""
        self._rows = [[*row[:kept], *ids] for row, kept, ids in zip(self._rows, keep, new, strict=True)]
        count = len(self._rows)
        return self._send(count, ("feed", (list(keep), list(new))), ("admit", (self._rows,)), 0, count)

    def drop(self, kept: Sequence[int]) -> None:
        """See :meth:`ensemble.runtime.model_runner.ModelRunner.drop`."""
        # The reply is not awaited: a worker that missed the request has other rows, which the next request finds out.
        self._client.send(self._request(len(self._rows), ("drop", (list(kept),))))
        self._rows = [self._rows[n] for n in kept]

    def draft(self, keep: int, new: Ids, drafter: Drafter, max_tokens: int) -> tuple[list[int], RayLogits]:
        """See :meth:`ensemble.runtime.model_runner.ModelRunner.draft`. A whole draft is one request."""
        count = len(self._rows)
        row = [*self._rows[0][:keep], *new] if count else list(new)
        sure = drafter.min_probability
        rebuild: Operation = ("draft", (0, row, max_tokens, sure))
        logits = self._send(count, ("draft", (keep, list(new), max_tokens, sure)), rebuild, 0, 0)
        (reply,) = logits.replies
        tokens, tops = self._wait(reply)
        reply.content, reply.rows = tops, 1 + len(tokens)
        self._rows = [[*row, *tokens]]
        # A rebuilt batch reads the draft: drafting it a second time could give other tokens.
        positions = range(len(row) - 1, len(row) + len(tokens))
        self._rebuild = reply.rebuild = ("read", (0, self._rows[0], list(positions)))
        return tokens, RayLogits(self, (reply,))

    def read(self, keep: int, new: Ids, positions: Sequence[int]) -> RayLogits:
        """See :meth:`ensemble.runtime.model_runner.ModelRunner.read`."""
        count = len(self._rows)
        self._rows = [[*self._rows[0][:keep], *new] if count else list(new)]
        rebuild: Operation = ("read", (0, self._rows[0], list(positions)))
        return self._send(count, ("read", (keep, list(new), list(positions))), rebuild, 0, len(positions))

    def score(
        self, prompts: Sequence[Ids], parents: Sequence[int], new: Sequence[Ids], places: Sequence[tuple[int, int]]
    ) -> RayLogits:
        """See :meth:`ensemble.runtime.model_runner.ModelRunner.score`."""
        operation: Operation = ("score", (list(prompts), parents, new, places))
        return self._send(0, operation, operation, 0, len(places))

    def candidates(self, reply: Reply) -> tuple[Tensor, Tensor]:
        """The top logits [rows, k] of a reply and their ids; waits for it if needed."""
        if reply.content is None:
            reply.content = self._wait(reply)
        values, ids = map(unpack_tensor, reply.content)
        # A rebuilt batch sends the logits of all its rows.
        return values[-reply.rows :], ids[-reply.rows :]

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k largest of all of the worker's logits and their ids; from now on every reply has k candidates."""
        self.k = k
        values, ids = map(unpack_tensor, self._repeat(("top", ())))
        return values, ids

    def at(self, rows: Tensor, ids: Tensor) -> Callable[[], Tensor]:
        """Request logits [n] by their rows among the worker's logits and their ids; return a function that waits."""
        operation: Operation = ("at", (pack_tensor(rows), pack_tensor(ids)))
        pending = self._client.send(self._request(len(self._rows), operation))

        def wait() -> Tensor:
            try:
                return unpack_tensor(self._client.wait(pending))
            except BatchLostError:
                return unpack_tensor(self._repeat(operation))

        return wait

    def _repeat(self, operation: Operation) -> Any:
        """The reply to an operation on the worker's logits, which are rebuilt each time the worker loses them."""
        while True:
            try:
                return self._client.wait(self._client.send(self._request(len(self._rows), operation)))
            except BatchLostError:
                self._client.rebuild((self._number, 0, self.k, *self._rebuild))

    def _request(self, rows: int, operation: Operation) -> tuple[Any, ...]:
        return self._number, rows, self.k, *operation

    def _send(self, count: int, operation: Operation, rebuild: Operation, first: int, rows: int) -> RayLogits:
        """Send an operation on a batch of ``count`` rows; the other arguments are the reply's."""
        self._rebuild = rebuild
        pending = self._client.send(self._request(count, operation))
        return RayLogits(self, (Reply(pending, rebuild, first, rows, self.k),))

    def _wait(self, reply: Reply) -> Any:
        try:
            return self._client.wait(reply.pending)
        except BatchLostError:
            return self._client.rebuild((self._number, 0, reply.k, *reply.rebuild))


class RayLogits(RemoteLogits):
    """Rows of a Ray worker's logits.

    Args:
        runner: The runner of the worker's batch.
        replies: The replies with the top candidates, in the order of the worker's rows.
        rows: Which of their rows; all if None.
    """

    def __init__(self, runner: RayRunner, replies: tuple[Reply, ...], rows: tuple[int, ...] | None = None) -> None:
        self.replies = replies
        self._runner = runner
        self._rows = rows
        # The top candidates and their ids, by k.
        self._tops: dict[int, tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        return sum(reply.rows for reply in self.replies) if self._rows is None else len(self._rows)

    def __getitem__(self, rows: slice | list[int]) -> RayLogits:
        own = self._own_rows()
        chosen = own[rows] if isinstance(rows, slice) else tuple(own[n] for n in rows)
        return RayLogits(self._runner, self.replies, chosen)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """See :meth:`ensemble.runtime.logits.RemoteLogits.top`."""
        if k not in self._tops:
            # Waits for every reply; a worker that was restarted has its batch again afterwards.
            parts = [self._runner.candidates(reply) for reply in self.replies]
            if all(reply.k == k for reply in self.replies):
                values, ids = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
                if self._rows is not None:
                    values, ids = values[list(self._rows)], ids[list(self._rows)]
            else:
                places = self._places()
                values, ids = (all_rows[places] for all_rows in self._runner.top(k))
            self._tops[k] = values, ids
        return self._tops[k]

    def known(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`ensemble.runtime.logits.RemoteLogits.known`."""
        values, top_ids = self._last_top()
        same = ids[:, :, None] == top_ids[:, None, :]
        exact, column = same.max(dim=2)
        # A candidate outside the top ones has at most the logit of the last of these.
        return torch.where(exact, values.gather(1, column), values[:, -1:]), exact

    def request(self, ids: Tensor, wanted: Tensor) -> Callable[[], Tensor]:
        """See :meth:`ensemble.runtime.logits.RemoteLogits.request`."""
        rows, columns = wanted.nonzero(as_tuple=True)
        return self._runner.at(self._places()[rows], ids[rows, columns])

    def nan_rows(self) -> list[bool]:
        """See :meth:`ensemble.runtime.logits.RemoteLogits.nan_rows`."""
        # torch.topk sorts NaN before all numbers, so it is among the top candidates.
        values, _ = self._last_top()
        rows: list[bool] = values.isnan().any(dim=1).tolist()
        return rows

    def concat(self, other: RemoteLogits) -> RayLogits:
        """See :meth:`ensemble.runtime.logits.RemoteLogits.concat`."""
        return RayLogits(self._runner, (*self.replies, *cast("RayLogits", other).replies))

    def _last_top(self) -> tuple[Tensor, Tensor]:
        """The candidates that have arrived, and their ids."""
        return next(iter(self._tops.values())) if self._tops else self.top(self._runner.k)

    def _own_rows(self) -> tuple[int, ...]:
        return tuple(range(len(self))) if self._rows is None else self._rows

    def _places(self) -> Tensor:
        """The number of each row among the worker's rows."""
        numbers = [reply.first + n for reply in self.replies for n in range(reply.rows)]
        return torch.tensor(numbers)[list(self._own_rows())]
