"""Contains: one of the accepted texts occurs in the response, both in the normal form of `exact_match`.

    >>> METRIC.score("It was Sunset Boulevard, in 1993.", ("Sunset Blvd", "Sunset Boulevard"), ())
    (1.0, 'Sunset Boulevard')

An accepted text must be whole words, with their signs: "12" is not in "112", and "C" is not in "C++". Not covered: a
response that names the accepted text to deny it, or that lists every candidate.
"""

from __future__ import annotations

import re

from advisor.tasks.metrics import Metric
from advisor.tasks.metrics.choice import LETTER_END
from advisor.tasks.metrics.exact_match import FOLDED, normal

_LETTERS = r"0-9A-Za-z_\u00c0-\u0dff\u1e00-\u1fff"  # of scripts with spaces between words
_BEFORE = rf"(?<![{_LETTERS}+#@&*/^~.-])(?<!\d:)"
_AFTER = rf"(?![{_LETTERS}+#@&*/^~-]|[.:][{_LETTERS}]|'(?!s\b)[{_LETTERS}])"


class Contains(Metric):
    """1 if an accepted text occurs in the response in normal form, else 0."""

    def score(self, text: str, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """Search for the accepted texts; the answer is the first of them that occurs."""
        response = normal(text)
        for reference in accepted:
            answer = normal(reference)
            if answer in ("a", "i"):  # an option, and not the article or the pronoun
                letter = rf"(?<!\w){answer}(?={LETTER_END})"
                is_there = re.search(letter, text.translate(FOLDED), re.IGNORECASE | re.VERBOSE) is not None
            else:
                before = _BEFORE if re.match(rf"[{_LETTERS}]", answer) else ""
                after = _AFTER if re.search(rf"[{_LETTERS}+#]$", answer) else ""
                is_there = bool(answer) and re.search(f"{before}{re.escape(answer)}{after}", response) is not None
            if is_there:
                return 1.0, reference
        return 0.0, None


METRIC = Contains()
