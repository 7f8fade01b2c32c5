r"""The normal form in which two short answers are compared, after the evaluation script of SQuAD.

    >>> normal("The  Eiffel Tower.")
    'eiffel tower'
    >>> normal("(A)"), normal("] )")       # SQuAD's would be empty, and so equal to each other
    ('a', '] )')
    >>> normal("-$1,000.50."), normal("vitamin A")  # SQuAD's: '100050', 'vitamin'
    ('-1000.50', 'vitamin a')

Lower case, no ASCII punctuation (nor € and £) but a number's minus and decimal point, no articles before a word, single
spaces. Where that leaves nothing, punctuation stays: brackets are answers too. Not covered: accents, numerals, other
punctuation beyond ASCII, other spellings of a number (see the metric `number`).
"""

from __future__ import annotations

import re
import string

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation + "\u2212€£")
_AROUND = re.escape(string.punctuation)
_BEFORE = re.escape(string.punctuation.replace("-", ""))
# A whole word, so that dates (4.10.1957), versions and ranges (1914-18) are none.
_NUMBER = re.compile(rf"[{_BEFORE}]*([-\u2212]?)[$€£]?(\d+|\d{{1,3}}(?:,\d{{3}})+)(\.\d+)?[{_AROUND}]*")
_ARTICLES = re.compile(r"\b(a|an|the)\b(?=\s+\S)")


def normal(text: str) -> str:
    """The normal form of a text; empty only for a text of nothing but white space."""
    lower = text.lower().split()
    bare = [kept for word in lower if (kept := _bare(word))]
    return " ".join(_ARTICLES.sub(" ", " ".join(bare)).split()) or " ".join(lower)


def _bare(word: str) -> str:
    number = _NUMBER.fullmatch(word)
    if number is None:
        return word.translate(_NO_PUNCTUATION)
    minus, whole, part = number.groups()
    return f"{'-' if minus else ''}{whole.replace(',', '')}{part or ''}"
