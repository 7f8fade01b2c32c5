"""Contains: one of the accepted texts occurs in the response, both in normal form.

    >>> METRIC.score("It was Sunset Boulevard, in 1993.", ("Sunset Blvd", "Sunset Boulevard"), ())
    (1.0, 'Sunset Boulevard')

An accepted text in ASCII must be whole words ("12" is not in "112"). Not covered: a response that names the accepted
text to deny it, or that lists every candidate.
"""

from __future__ import annotations

import re

from advisor.tasks.metrics.exact_match import normal


class Contains:
    """1 if an accepted text occurs in the response in normal form, else 0."""

    packages: tuple[str, ...] = ()

    def problem(self, _accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> str | None:
        """None: every text that is not blank can be used."""
        return None

    def score(self, text: str, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """Search for the accepted texts; the answer is the first of them that occurs."""
        response = normal(text)
        for reference in accepted:
            if _occurs(normal(reference), response):
                return 1.0, reference
        return 0.0, None


def _occurs(answer: str, response: str) -> bool:
    # Other scripts may have no spaces between words.
    if not answer.isascii():
        return answer in response
    # The normal form keeps a minus and a point only in numbers: "5" is neither in "-5" nor in "1.5".
    return re.search(rf"(?<![\w.-]){re.escape(answer)}(?!\w|\.\d)", response) is not None


METRIC = Contains()
