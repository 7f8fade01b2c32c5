"""Exact match: the response is one of the accepted texts, both in normal form.

    >>> METRIC.score(" Sunset Boulevard.", ("Sunset Blvd", "Sunset Boulevard"), ())
    (1.0, 'sunset boulevard')

The whole response is compared, so the task wants stop strings or `extract` that leave only the answer. Not covered: an
answer inside a sentence (see `contains`), spelling variants that are not among the accepted texts.
"""

from __future__ import annotations

from advisor.tasks.metrics._normal import normal


class ExactMatch:
    """1 where the response equals an accepted text in normal form, else 0."""

    packages: tuple[str, ...] = ()

    def problem(self, _accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> str | None:
        """Every text that is not blank can be matched."""
        return None

    def score(self, text: str, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """Compare the whole text; what was read is its normal form."""
        answer = normal(text)
        return float(bool(answer) and answer in {normal(reference) for reference in accepted}), answer or None


METRIC = ExactMatch()
