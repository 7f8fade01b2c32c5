"""Who is in which split: shots, dev and held-out questions, drawn by seed and never overlapping.

All draws go through one seeded order, which depends on each question's text alone. So a smaller sample is the start of
a larger one, and adding a record to the data moves no other. Dev samples are taken from the front of the order and
shots from its back: the number of shots does not change the dev sample while there is room for both.

Questions are told apart by their rendered text, since real data has the same question in several files (TriviaQA's dev
file is the first part of its test file) and under several ids. Not covered: the same question in other words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar


class Asked(Protocol):
    """Anything with a question."""

    @property
    def text(self) -> str:
        """The rendered question, without shots."""


T = TypeVar("T", bound=Asked)


def seeded(questions: Sequence[T], seed: int) -> list[T]:
    """All questions in the order of the seed; those of the same text keep their order."""
    return sorted(questions, key=lambda question: hashlib.sha256(f"{seed}\n{question.text}".encode()).digest())


def draw_shots(questions: Sequence[T], count: int, seed: int) -> list[T]:
    """``count`` different questions from the back of the order; fewer where there are no more.

    Where there are just as many, nothing is drawn: they keep the order in which somebody has chosen them.
    """
    different: dict[str, T] = {}
    for question in questions:
        different.setdefault(question.text, question)
    if len(different) <= count:
        return list(different.values())
    drawn: dict[str, T] = {}
    for question in reversed(seeded(questions, seed)):
        if len(drawn) == count:
            break
        drawn.setdefault(question.text, question)
    return list(drawn.values())


def without(questions: Sequence[T], others: Collection[Asked]) -> list[T]:
    """The questions that are not among the others, in their order."""
    taken = {other.text for other in others}
    return [question for question in questions if question.text not in taken]


def sample(questions: Sequence[T], size: int, seed: int) -> list[T]:
    """The first ``size`` of the order, put back into the order of the data."""
    positions = {id(question): position for position, question in enumerate(questions)}
    return sorted(seeded(questions, seed)[:size], key=lambda question: positions[id(question)])


def limited(questions: Sequence[T], limit: int | None, seed: int) -> list[T]:
    """The first ``limit`` of the order, in that order; for None all, in the order of the data."""
    return list(questions) if limit is None else seeded(questions, seed)[:limit]
