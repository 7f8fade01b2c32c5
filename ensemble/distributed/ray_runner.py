"""A batch of contexts on a member's node, and the logits there; see :class:`Site`.

Whatever is asked of a node can be asked anew from nothing, because this side knows the ids of all rows: so a node that
died is told them again, and goes on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from ensemble.distributed.ray_link import Link, Lost
from ensemble.distributed.ray_messages import pack_tensor, unpack_tensor
from ensemble.runtime.draft import Proposer
from ensemble.runtime.logits import Apart
from ensemble.runtime.model_runner import Ways
from ensemble.runtime.rows import Ids

_FIRST_K = 10
"""Candidates that a node sends with its first answer, before it is known how many are wanted."""


@dataclass(frozen=True, slots=True)
class _Anew:
    """What makes a node's logits from nothing: what to do, and with what."""

    what: str
    given: tuple[Any, ...]


@dataclass(slots=True)
class _Reply:
    """Rows of logits that a node was asked for.

    Attributes:
        asked: To wait for.
        anew: Makes all rows of the node's logits, of which these are the last.
        first: The number of the first of them.
        rows: How many they are; known when they are there, for a draft.
        k: Candidates that come with them.
    """

    asked: Any
    anew: _Anew
    first: int
    rows: int
    k: int
    answer: Any = None


class RemoteSite:
    """A batch of contexts on a node.

    Args:
        link: The line to it.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self._number = link.number()
        self._rows: list[list[int]] = []
        self._k = _FIRST_K
        self._anew = _Anew("admit", ([],))
        weakref.finalize(self, link.forget, self._number).atexit = False

    @property
    def rows(self) -> int:
        """See :class:`Site`."""
        return len(self._rows)

    def admit(self, prompts: Sequence[Ids]) -> RemoteLogits:
        """See :class:`Site`."""
        there = len(self._rows)
        self._rows = [*self._rows, *map(list, prompts)]
        return self._ask(there, "admit", (list(prompts),), _Anew("admit", (self._rows,)), there, len(prompts))

    def feed(self, keep: Sequence[int], new: Sequence[Ids]) -> RemoteLogits:
        """See :class:`Site`."""
        self._rows = [[*row[:kept], *ids] for row, kept, ids in zip(self._rows, keep, new, strict=True)]
        there = len(self._rows)
        return self._ask(there, "feed", (list(keep), list(new)), _Anew("admit", (self._rows,)), 0, there)

    def drop(self, kept: Sequence[int]) -> None:
        """See :class:`Site`. Nobody waits for it: a node that lacks it has other rows, and is told."""
        self.link.send(self._request(len(self._rows), "drop", (list(kept),)))
        self._rows = [self._rows[n] for n in kept]

    def draft(self, keep: int, new: Ids, propose: Proposer, most: int) -> tuple[list[int], RemoteLogits]:
        """See :class:`Site`. The node drafts by itself, so the whole draft is one question."""
        there = len(self._rows)
        row = [*self._rows[0][:keep], *new] if there else list(new)
        anew = _Anew("draft", (0, row, most, propose.sure))
        logits = self._ask(there, "draft", (keep, list(new), most, propose.sure), anew, 0, 0)
        (reply,) = logits.replies
        tokens, tops = self._wait(reply)
        reply.answer, reply.rows = tops, 1 + len(tokens)
        self._rows = [[*row, *tokens]]
        # Anew it need not be drafted again, and might come out otherwise.
        places = range(len(row) - 1, len(row) + len(tokens))
        self._anew = reply.anew = _Anew("read", (0, self._rows[0], list(places)))
        return tokens, RemoteLogits(self, (reply,))

    def read(self, keep: int, new: Ids, places: Sequence[int]) -> RemoteLogits:
        """See :class:`Site`."""
        there = len(self._rows)
        self._rows = [[*self._rows[0][:keep], *new] if there else list(new)]
        anew = _Anew("read", (0, self._rows[0], list(places)))
        return self._ask(there, "read", (keep, list(new), list(places)), anew, 0, len(places))

    def score(self, prompts: Sequence[Ids], ways: Ways) -> RemoteLogits:
        """See :class:`Site`."""
        given = (list(prompts), (ways.copies, ways.new, ways.places))
        return self._ask(0, "score", given, _Anew("score", given), 0, len(ways.places))

    def tops(self, reply: _Reply) -> tuple[Tensor, Tensor]:
        """The candidates that came with a reply, and their ids."""
        if reply.answer is None:
            reply.answer = self._wait(reply)
        values, ids = map(unpack_tensor, reply.answer)
        # A node that was started anew sends all its rows.
        return values[-reply.rows :], ids[-reply.rows :]

    def more(self, k: int) -> tuple[Tensor, Tensor]:
        """The k largest of all rows of the node's logits, and k of them with all answers from now on."""
        self._k = k
        values, ids = map(unpack_tensor, self._again("top", ()))
        return values, ids

    def at(self, rows: Tensor, ids: Tensor) -> Callable[[], Tensor]:
        """Ask for logits [n], each by its row among the node's logits and its id."""
        given = (pack_tensor(rows), pack_tensor(ids))
        asked = self.link.send(self._request(len(self._rows), "at", given))

        def wait() -> Tensor:
            try:
                return unpack_tensor(self.link.wait(asked))
            except Lost:
                return unpack_tensor(self._again("at", given))

        return wait

    def _again(self, what: str, given: tuple[Any, ...]) -> Any:
        """Ask about the node's logits, which are made again as often as they are lost."""
        while True:
            try:
                return self.link.wait(self.link.send(self._request(len(self._rows), what, given)))
            except Lost:
                self._make(self._anew, self._k)

    def _request(self, rows: int, what: str, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._number, rows, self._k, what, given

    def _ask(self, there: int, what: str, given: tuple[Any, ...], anew: _Anew, first: int, rows: int) -> RemoteLogits:
        self._anew = anew
        asked = self.link.send(self._request(there, what, given))
        return RemoteLogits(self, (_Reply(asked, anew, first, rows, self._k),))

    def _wait(self, reply: _Reply) -> Any:
        try:
            return self.link.wait(reply.asked)
        except Lost:
            return self._make(reply.anew, reply.k)

    def _make(self, anew: _Anew, k: int) -> Any:
        return self.link.ask_anew((self._number, 0, k, anew.what, anew.given))


@dataclass(frozen=True, slots=True)
class RemoteLogits:
    """Rows of a node's logits; see :class:`Apart`.

    Attributes:
        site: Whose they are.
        replies: What the node was asked for, in the order of its rows.
        rows: Which of these rows; all where None.
    """

    site: RemoteSite
    replies: tuple[_Reply, ...]
    rows: tuple[int, ...] | None = None
    _found: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, compare=False)

    def __len__(self) -> int:
        return sum(reply.rows for reply in self.replies) if self.rows is None else len(self.rows)

    def __getitem__(self, rows: slice | list[int]) -> RemoteLogits:
        own = self._own()
        return replace(self, rows=own[rows] if isinstance(rows, slice) else tuple(own[n] for n in rows), _found={})

    def to(self, device: torch.device) -> RemoteLogits:  # noqa: ARG002  # the protocol's; they stay
        """See :class:`Apart`."""
        return self

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """See :class:`Apart`."""
        if k not in self._found:
            if all(reply.k == k for reply in self.replies):
                parts = [self.site.tops(reply) for reply in self.replies]
                values, ids = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
                if self.rows is not None:
                    values, ids = values[list(self.rows)], ids[list(self.rows)]
            else:
                for reply in self.replies:
                    self.site.tops(reply)  # what is waited for is not asked about
                places = self._places()
                values, ids = (own[places] for own in self.site.more(k))
            self._found[k] = values, ids
        return self._found[k]

    def known(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`Apart`. No candidate that did not come has more than the last that did."""
        values, own = self._last()
        same = ids[:, :, None] == own[:, None, :]
        exact, column = same.max(dim=2)
        return torch.where(exact, values.gather(1, column), values[:, -1:]), exact

    def ask(self, ids: Tensor, wanted: Tensor) -> Callable[[], Tensor]:
        """See :class:`Apart`."""
        rows, columns = wanted.nonzero(as_tuple=True)
        return self.site.at(self._places()[rows], ids[rows, columns])

    def broken(self) -> list[bool]:
        """See :class:`Apart`. What is no number is among the largest."""
        values, _ = self._last()
        broken: list[bool] = values.isnan().any(dim=1).tolist()
        return broken

    def behind(self, other: Apart) -> RemoteLogits:
        """See :class:`Apart`."""
        return RemoteLogits(self.site, (*cast("RemoteLogits", other).replies, *self.replies))

    def _last(self) -> tuple[Tensor, Tensor]:
        """The candidates that were asked for, and their ids."""
        return next(iter(self._found.values())) if self._found else self.top(self.site._k)

    def _own(self) -> tuple[int, ...]:
        return tuple(range(len(self))) if self.rows is None else self.rows

    def _places(self) -> Tensor:
        """The number of each row among the node's."""
        numbers = [reply.first + n for reply in self.replies for n in range(reply.rows)]
        return torch.tensor(numbers)[list(self._own())]
