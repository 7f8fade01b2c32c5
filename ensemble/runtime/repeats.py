"""Where a text repeats itself: what followed its last tokens before is a draft that no model has to write."""

from __future__ import annotations

from collections.abc import Sequence

_LENGTH = 3
"""Tokens that must be the same. Fewer are often followed by something else."""


class Repeats:
    """A growing sequence of ids, and the last place of each few ids in a row."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        # For each run of ids, the place after its last occurrence that is followed by an id.
        self._after: dict[tuple[int, ...], int] = {}

    def read(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Read on: the ids are a prompt and tokens after it, which only grow."""
        # Only what is new is read, so a step costs the same however long the text is.
        known = len(self._ids)
        new = [*prompt[known:], *tokens[max(0, known - len(prompt)) :]]
        for place, token in enumerate(new, start=known):
            if place >= _LENGTH:
                self._after[tuple(self._ids[-_LENGTH:])] = place
            self._ids.append(token)

    def draft(self, most: int) -> list[int]:
        """What followed the last occurrence of the last ids; at most so many ids, empty if there is none."""
        start = self._after.get(tuple(self._ids[-_LENGTH:]))
        if start is None:
            return []
        # A text that repeats itself with a short period goes on with the draft itself.
        period = len(self._ids) - start
        return [self._ids[start + n % period] for n in range(most)]
