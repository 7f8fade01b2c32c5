"""A member at work: its contexts of a batch of texts, and the logits behind them; in this process, or elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ensemble.runtime.draft import Proposer
from ensemble.runtime.logits import Logits
from ensemble.runtime.rows import Ids, Rows


@dataclass(frozen=True, slots=True)
class Ways:
    """Several continuations of prompts, and where logits are wanted along them.

    Attributes:
        copies: For each of them, the number of its prompt.
        new: The prompt's last token, and what follows it.
        places: Numbers of continuations, and of tokens within ``new``.
    """

    copies: Sequence[int]
    new: Sequence[Ids]
    places: Sequence[tuple[int, int]]


class Site(Protocol):
    """A batch of contexts of one member, as :class:`~ensemble.runtime.rows.Rows` numbers them, and their logits."""

    @property
    def rows(self) -> int:
        """How many there are."""
        ...

    def admit(self, prompts: Sequence[Ids]) -> Logits:
        """Append a row for each prompt; the logits behind each of them."""
        ...

    def feed(self, keep: Sequence[int], new: Sequence[Ids]) -> Logits:
        """Cut each row to its first ``keep`` tokens and append its new ones (at least one); the logits behind each."""
        ...

    def drop(self, kept: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        ...

    def draft(self, keep: int, new: Ids, propose: Proposer, most: int) -> tuple[list[int], Logits]:
        """Feed the one row (or admit it, where there is none), and write on behind it.

        Args:
            keep: Tokens that stay, as for :meth:`feed`.
            new: What is appended.
            propose: The next token of the draft.
            most: Tokens that the draft has at most.

        Returns:
            The draft, and the logits [1 + tokens, V] behind what was fed and behind each token.
        """
        ...

    def read(self, keep: int, new: Ids, places: Sequence[int]) -> Logits:
        """Feed the one row (or admit it, where there is none); the logits behind its tokens at some places.

        Args:
            keep: Tokens that stay, as for :meth:`feed`.
            new: What is appended.
            places: Numbers of tokens within the row, in ascending order, none before ``keep``.
        """
        ...

    def score(self, prompts: Sequence[Ids], ways: Ways) -> Logits:
        """Read prompts once, and the ways that lead on; the logits at their places. No row is left.

        Args:
            prompts: Rows to begin with, where there are none.
            ways: What is read behind them.
        """
        ...


class LocalSite:
    """A member in this process; see :class:`Site`. Logits are tensors on its device.

    Args:
        rows: None yet.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    @property
    def rows(self) -> int:
        """See :class:`Site`."""
        return len(self._rows.lengths)

    def admit(self, prompts: Sequence[Ids]) -> Tensor:
        """See :class:`Site`."""
        return self._rows.admit(prompts)[:, -1]

    def feed(self, keep: Sequence[int], new: Sequence[Ids]) -> Tensor:
        """See :class:`Site`."""
        return self._rows.feed(keep, new)[:, -1]

    def drop(self, kept: Sequence[int]) -> None:
        """See :class:`Site`."""
        self._rows.drop(kept)

    def draft(self, keep: int, new: Ids, propose: Proposer, most: int) -> tuple[list[int], Tensor]:
        """See :class:`Site`."""
        own = [self.feed([keep], [new]) if self.rows else self.admit([new])]
        tokens: list[int] = []
        while len(tokens) < most and (token := propose(own[-1])) is not None:
            tokens.append(token)
            own.append(self.feed(self._rows.lengths, [[token]]))
        return tokens, torch.cat(own)

    def read(self, keep: int, new: Ids, places: Sequence[int]) -> Tensor:
        """See :class:`Site`."""
        length = keep + len(new)
        if self.rows:
            logits = self._rows.feed([keep], [new], last=len(new))[0]
        else:
            logits = self._rows.admit([new], last=length - places[0])[0]
        first = length - len(logits)
        return logits[[place - first for place in places]]

    def score(self, prompts: Sequence[Ids], ways: Ways) -> Tensor:
        """See :class:`Site`."""
        self._rows.admit(prompts)
        logits = behind(self._rows, ways)
        self._rows.drop([])
        return logits


def behind(rows: Rows, ways: Ways) -> Tensor:
    """The logits [places, V] along ways that lead on from prompts.

    Args:
        rows: A row for each prompt, in place of which there is one for each way afterwards.
        ways: What is read behind them.
    """
    rows.drop(ways.copies)
    widest = max(map(len, ways.new))
    logits = rows.feed([length - 1 for length in rows.lengths], ways.new, last=widest)
    columns = [(row, widest - len(ways.new[row]) + place) for row, place in ways.places]
    index = torch.tensor(columns, device=logits.device)
    return logits[index[:, 0], index[:, 1]]
