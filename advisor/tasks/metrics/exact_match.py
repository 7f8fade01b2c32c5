"""Exact match: the response is one of the accepted texts, both in normal form.

    >>> METRIC.score(" Sunset Boulevard.", ("Sunset Blvd", "Sunset Boulevard"), ())
    (1.0, 'sunset boulevard')

The whole response is compared, so the task needs stop strings or `extract` that leave only the answer. Not covered: an
answer inside a sentence (see `contains`), spellings that are not among the accepted texts.
"""

from __future__ import annotations

from advisor.tasks.metrics._normal import normal


class ExactMatch:
    """1 if the response equals an accepted text in normal form, else 0."""

    packages: tuple[str, ...] = ()

    def problem(self, _accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> str | None:
        """None: every text that is not blank can be used."""
        return None

    def score(self, text: str, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """Compare the whole text; the answer is its normal form."""
        answer = normal(text)
        # An empty answer is wrong even if a reference has an empty normal form.
        return float(bool(answer) and answer in {normal(reference) for reference in accepted}), answer or None


METRIC = ExactMatch()
