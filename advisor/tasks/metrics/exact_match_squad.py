"""Exact match in the normal form of SQuAD's evaluation script, as papers on TriviaQA and Natural Questions report it.

    >>> METRIC.score("the spider-man!", ("Spiderman",), ())
    (1.0, 'spiderman')

A task file takes it by `metric: exact_match` with `normalise: squad`. Not covered: answers that differ only in signs
("C" and "C++" are equal), other punctuation than that of ASCII.
"""

from __future__ import annotations

import re
import string

from advisor.tasks.metrics.exact_match import ExactMatch

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _normal(text: str) -> str:
    lower = text.lower()
    words = re.sub(r"\b(?:a|an|the)\b(?=\s+\S)", " ", lower.translate(_NO_PUNCTUATION)).split()
    return " ".join(words or lower.split())  # brackets and operators can be an answer


METRIC = ExactMatch(_normal)
