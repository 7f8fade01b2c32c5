"""Which entries of a joint vocabulary begin with which others, as tables that a step can look up on its device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ensemble.vocabulary.joint import NONE, entries
from ensemble.vocabulary.token_bytes import Vocabulary


class Prefixes:
    """The order of all byte strings, in which those with a common beginning are neighbours.

    Args:
        vocabularies: Of the members, in the order of their joint vocabulary.
        device: Where the tables are.
    """

    def __init__(self, vocabularies: Sequence[Vocabulary], device: torch.device) -> None:
        numbers = entries(vocabularies)
        # EOS is no text, and the column after the last entry is for what is absent: neither begins with anything.
        rank, end = ([NONE] * (len(numbers) + 2) for _ in range(2))
        beginnings: list[bytes] = []
        ordered = sorted(numbers)
        for place, data in enumerate(ordered):
            while beginnings and not data.startswith(beginnings[-1]):
                end[numbers[beginnings.pop()]] = place
            beginnings.append(data)
            rank[numbers[data]] = place
        for data in beginnings:
            end[numbers[data]] = len(ordered)
        self._rank, self._end = (torch.tensor(table, device=device) for table in (rank, end))

    def are_begun_by(self, longer: Tensor, shorter: Tensor) -> Tensor:
        """Whether each entry is the other one, or begins with it; shapes as in broadcasting. False for EOS."""
        rank = self._rank[longer]
        return (self._rank[shorter] <= rank) & (rank < self._end[shorter])

    def lengths_order(self, among: Tensor) -> Tensor:
        """Numbers by which prefixes of one text are in the order of their lengths, the shortest first."""
        return self._rank[among]


@lru_cache(maxsize=8)  # rules are made often: for each prompt, if its perplexity weighs the members
def prefixes_of(vocabularies: tuple[Vocabulary, ...], device: torch.device) -> Prefixes:
    """The tables of some members, made once."""
    return Prefixes(vocabularies, device)
