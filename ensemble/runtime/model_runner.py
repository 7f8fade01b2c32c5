"""The protocol of model runners: a batch of token rows in one model, and the next-token logits after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ensemble.runtime.draft import Drafts
from ensemble.runtime.logits import Logits

Ids = Sequence[int]


class ModelRunner(Protocol):
    """Runs a member on a batch of rows of token ids, numbered from 0 in the order of admission."""

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
        """Cut each row to ``keep`` tokens and append ``new``, at least one each; the logits [rows, V] after them."""
        ...

    def drop(self, kept: Sequence[int]) -> None:
        """Keep only the rows with these numbers, in this order."""
        ...

    def draft(self, keep: Sequence[int], new: Sequence[Ids], drafts: Drafts) -> Logits:
        """Feed the rows, new ones too (``keep`` 0), then draft; the logits [places, V] after each token."""
        ...

    def write_ahead(self, contexts: Sequence[Ids], max_tokens: int) -> None:
        """Begin to write after contexts, if the model is elsewhere; the next :meth:`read` uses what it told."""
        ...

    def already_known(self, contexts: Sequence[Ids]) -> Sequence[Ids]:
        """The first of some contexts along a draft: where the model wrote ahead, as far as it wrote the same text."""
        ...

    def read(self, keep: Sequence[int], new: Sequence[Ids], contexts: Sequence[Sequence[Ids]]) -> Logits:
        """Feed the rows, new ones too (``keep`` 0); the logits [contexts, V] after their contexts, row by row.

        A context has at least ``keep + 1`` tokens, and is a beginning of the row if ``reads_rows``.
        """
        ...

    def score(
        self, prompts: Sequence[Ids], parents: Sequence[int], new: Sequence[Ids], places: Sequence[tuple[int, int]]
    ) -> Logits:
        """Read prompts, then continuations from their last token on, in an empty batch; the logits [places, V].

        ``places`` are pairs: the number of a continuation, and the position of a token in its ``new``.
        """
        ...
