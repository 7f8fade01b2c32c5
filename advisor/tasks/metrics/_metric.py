"""What a metric is."""

from __future__ import annotations

from typing import Protocol


class Metric(Protocol):
    """Scores a response.

    Attributes:
        packages: Distributions whose version can change a score; their versions go into the signature.
    """

    packages: tuple[str, ...] = ()

    def problem(self, _accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> str | None:
        """Why this metric cannot use these accepted texts and choices; None if it can, as most metrics any text."""
        return None

    def score(self, text: str, accepted: tuple[str, ...], choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """The score, 0 to 1, and the answer that was read from the text; the answer is None if the text has none.

        It never raises. Two texts with the same answer have the same score.
        """
