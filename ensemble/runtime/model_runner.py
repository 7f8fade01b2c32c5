"""The protocol of model runners: a batch of token rows in one model, and the next-token logits after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ensemble.runtime.draft import Drafts
from ensemble.runtime.logits import Logits

Ids = Sequence[int]


class ModelRunner(Protocol):
    """Runs one member's model on a batch of rows, in this process or in another one.

    A row is a sequence of token ids. Rows are numbered from 0, in the order in which they were admitted.
    """

    reads_rows: bool
    """Whether :meth:`read` gives logits along its rows only, and not after any context."""

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

    def draft(self, keep: Sequence[int], new: Sequence[Ids], drafts: Drafts) -> Logits:
        """Feed the rows, then continue each with drafted tokens. Rows beyond those of the batch are admitted.

        Args:
            keep: For each row, the tokens that stay; 0 for a row that is admitted.
            new: For each row, the tokens to append, at least one.
            drafts: Chooses the tokens, and holds them afterwards.

        Returns:
            The logits [places, V] after ``new`` and after each drafted token, row by row.
        """
        ...

    def write_ahead(self, contexts: Sequence[Ids], max_tokens: int) -> None:
        """Begin to write on its own after contexts, if the model is elsewhere; the next :meth:`read` uses what it told.

        Args:
            contexts: The contexts.
            max_tokens: Tokens to write after each.
        """
        ...

    def already_known(self, contexts: Sequence[Ids]) -> Sequence[Ids]:
        """The first of some contexts along a draft: where the model wrote ahead, as far as it wrote the same text."""
        ...

    def read(self, keep: Sequence[int], new: Sequence[Ids], contexts: Sequence[Sequence[Ids]]) -> Logits:
        """Feed the rows; return the logits after some contexts. Rows beyond those of the batch are admitted.

        Args:
            keep: For each row, the tokens that stay; 0 for a row that is admitted.
            new: For each row, the tokens to append.
            contexts: For each row, the contexts, at least one; the shortest has at least ``keep + 1`` tokens. If
                ``reads_rows``, each is a beginning of the row.

        Returns:
            The logits [contexts, V], row by row.
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
