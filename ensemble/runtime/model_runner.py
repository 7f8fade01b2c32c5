"""The protocol of model runners: a batch of token rows in one model, and the next-token logits after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ensemble.runtime.draft import Drafter
from ensemble.runtime.logits import Logits

Ids = Sequence[int]


class ModelRunner(Protocol):
    """Runs one member's model on a batch of rows, in this process or in another one.

    A row is a sequence of token ids. Rows are numbered from 0, in the order in which they were admitted.
    """

    @property
    def row_count(self) -> int:
        """Rows in the batch."""
        ...

    def admit(self, prompts: Sequence[Ids]) -> Logits:
        """Append a row for each prompt; return the logits [prompts, V] after each of them."""
        ...

    def feed(self, keep: Sequence[int], new: Sequence[Ids]) -> Logits:
        """Cut each row to its first ``keep`` tokens and append its new ones.

        Args:
            keep: For each row, the tokens that stay.
            new: For each row, the tokens to append, at least one.

        Returns:
            The logits [rows, V] after each row.
        """
        ...

    def drop(self, kept: Sequence[int]) -> None:
        """Keep only the rows with these numbers, in this order."""
        ...

    def draft(self, keep: int, new: Ids, drafter: Drafter, max_tokens: int) -> tuple[list[int], Logits]:
        """Feed the only row (or admit it if the batch is empty), then continue it with drafted tokens.

        Args:
            keep: Tokens of the row that stay.
            new: Tokens to append.
            drafter: Chooses the tokens of the draft.
            max_tokens: The largest number of drafted tokens.

        Returns:
            The draft, and the logits [1 + drafted, V] after ``new`` and after each drafted token.
        """
        ...

    def read(self, keep: int, new: Ids, positions: Sequence[int]) -> Logits:
        """Feed the only row (or admit it if the batch is empty); return the logits at some positions.

        Args:
            keep: Tokens of the row that stay.
            new: Tokens to append.
            positions: Positions of tokens in the row, in ascending order, all at or after ``keep``.

        Returns:
            The logits [positions, V] after the tokens at these positions.
        """
        ...

    def score(
        self, prompts: Sequence[Ids], parents: Sequence[int], new: Sequence[Ids], places: Sequence[tuple[int, int]]
    ) -> Logits:
        """Read prompts once, then several continuations of each; return the logits at some places of these.

        The batch must be empty before, and is empty afterwards.

        Args:
            prompts: The prompts.
            parents: For each continuation, the number of its prompt.
            new: For each continuation, its prompt's last token and the tokens that follow.
            places: Pairs of the number of a continuation and the position of a token in its ``new``.

        Returns:
            The logits [places, V] after the tokens at these places.
        """
        ...
