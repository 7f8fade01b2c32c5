"""The normal form in which two short answers are compared, after the evaluation script of SQuAD.

    >>> normal("The  Eiffel Tower.")
    'eiffel tower'
    >>> normal("(A)"), normal("] )")       # SQuAD's would be empty, and so equal to each other
    ('a', '] )')

Lower case, no ASCII punctuation, no articles, single spaces. Where that leaves nothing, articles stay, then
punctuation stays: options and brackets are answers too. Not covered: accents, numerals, punctuation beyond ASCII.
"""

from __future__ import annotations

import re
import string

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normal(text: str) -> str:
    """The normal form of a text; empty only for a text of nothing but white space."""
    lower = text.lower()
    bare = lower.translate(_NO_PUNCTUATION)
    for candidate in (_ARTICLES.sub(" ", bare), bare, lower):
        words = candidate.split()
        if words:
            return " ".join(words)
    return ""
