"""What a judge says: grades of single responses, and comparisons of two.

A judge may prefer the response that it reads first. So each pair is judged in both orders, and a `Match` keeps the
order in which the responses were shown (Zheng et al., "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena", 2023,
section 3.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from advisor.records import join


class Grade(NamedTuple):
    """A judge's grade of one response.

    Attributes:
        question: The question's id.
        model: The model or set that gave the response.
        score: 0 (worst) to 1 (best); None if the judge gave no grade that can be read.
    """

    question: str
    model: str
    score: float | None


class Match(NamedTuple):
    """A judge's comparison of two responses to a question, in one order.

    Attributes:
        question: The question's id.
        first: The model or set whose response the judge read first.
        second: The one whose response it read second.
        score: What the first one scores: 1 if it is better, 0.5 for a tie, 0 if it is worse; any value between for a
            verdict by likelihood. None if the judge gave no verdict that can be read.
    """

    question: str
    first: str
    second: str
    score: float | None


def name_of_set(method: str, models: Sequence[str]) -> str:
    """The name of a set in grades and matches: several sets may decode with the same method."""
    return f"{method} of {join(models)}"
