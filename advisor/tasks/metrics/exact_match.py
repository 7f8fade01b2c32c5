r"""Exact match: the response is one of the accepted texts, both in normal form.

    >>> METRIC.score(" Sunset Boulevard.", ("Sunset Blvd", "Sunset Boulevard"), ())
    (1.0, 'sunset boulevard')

The whole response is compared, so the task needs stop strings or `extract` that leave only the answer. Not covered: an
answer inside a sentence (see `contains`), spellings that are not among the accepted texts.

The normal form is that of the evaluation script of SQuAD, in lower case with single spaces:

    >>> normal("The  Eiffel Tower.")
    'eiffel tower'
    >>> normal("(A)"), normal("] )")       # SQuAD's script gives two empty texts, which are equal
    ('a', '] )')
    >>> normal("-$1,000.50."), normal("vitamin A")  # SQuAD's script: '100050', 'vitamin'
    ('-1000.50', 'vitamin a')

ASCII punctuation, € and £ are removed, but a number keeps its minus and its decimal point. Articles before a word are
removed. Not covered: accents, numerals, other punctuation beyond ASCII, other spellings of a number (see `number`).
"""

from __future__ import annotations

import re
import string

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation + "\u2212€£")
_AROUND = re.escape(string.punctuation)
_BEFORE = re.escape(string.punctuation.replace("-", ""))
# It must match a whole word, since dates (4.10.1957), versions and ranges (1914-18) are not numbers.
_NUMBER = re.compile(rf"[{_BEFORE}]*([-\u2212]?)[$€£]?(\d+|\d{{1,3}}(?:,\d{{3}})+)(\.\d+)?[{_AROUND}]*")
_ARTICLES = re.compile(r"\b(a|an|the)\b(?=\s+\S)")


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


def normal(text: str) -> str:
    """The normal form of a text; empty only if the text is white space."""
    lower = text.lower().split()
    bare = [stripped for word in lower if (stripped := _bare(word))]
    # A text of punctuation alone keeps it: brackets can be an answer.
    return " ".join(_ARTICLES.sub(" ", " ".join(bare)).split()) or " ".join(lower)


def _bare(word: str) -> str:
    number = _NUMBER.fullmatch(word)
    if number is None:
        return word.translate(_NO_PUNCTUATION)
    minus, whole, decimals = number.groups()
    return f"{'-' if minus else ''}{whole.replace(',', '')}{decimals or ''}"
