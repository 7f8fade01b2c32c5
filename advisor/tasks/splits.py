"""The split of each question: shots, dev and held-out questions are drawn by seed and never overlap.

All draws use one seeded order. Dev samples come from its front and shots from its back, so the number of shots does not
change the dev sample while the data has enough questions for both.

Not covered: the same question in other words.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence

from advisor.tasks.questions import Question


def seeded(questions: Sequence[Question], seed: int) -> list[Question]:
    """All questions in the order of the seed; those of the same text keep their order."""
    # A key of each text alone: a smaller sample is the start of a larger one, and a new record moves no other.
    return sorted(questions, key=lambda question: hashlib.sha256(f"{seed}\n{question.text}".encode()).digest())


def draw_shots(questions: Sequence[Question], count: int, seed: int) -> list[Question]:
    """Draw ``count`` different questions from the back of the order; fewer if there are fewer."""
    # A file with exactly this number was written for them: its author has chosen their order, and what repeats (the
    # five of MMLU's college physics have one question twice).
    if len(questions) == count:
        return list(questions)
    different: dict[str, Question] = {}
    for question in questions:
        different.setdefault(question.text, question)
    if len(different) <= count:
        return list(different.values())
    drawn: dict[str, Question] = {}
    for question in reversed(seeded(questions, seed)):
        if len(drawn) == count:
            break
        drawn.setdefault(question.text, question)
    return list(drawn.values())


def without(questions: Sequence[Question], others: Collection[Question]) -> list[Question]:
    """The questions that are not among the others, in their order."""
    # By rendered text, since real data has the same question in several files (TriviaQA's dev file is the first part of
    # its test file) and under several ids.
    taken = {other.text for other in others}
    return [question for question in questions if question.text not in taken]


def sample(questions: Sequence[Question], size: int, seed: int) -> list[Question]:
    """The first ``size`` questions of the seeded order, back in the order of the data.

    Clusters are taken whole, as many as fit; if none fits, the smallest one.
    """
    if any(question.cluster is not None for question in questions):
        chosen = _whole_clusters(questions, size, seed)
        return [question for question in questions if question.cluster in chosen]
    positions = {id(question): position for position, question in enumerate(questions)}
    return sorted(seeded(questions, seed)[:size], key=lambda question: positions[id(question)])


def outside_clusters(questions: Sequence[Question], others: Collection[Question]) -> list[Question]:
    """The questions that share no cluster with the others, in their order."""
    taken = {other.cluster for other in others} - {None}
    return [question for question in questions if question.cluster not in taken]


def limited(questions: Sequence[Question], limit: int | None, seed: int) -> list[Question]:
    """The first ``limit`` questions in the seeded order; for None all of them, in the order of the data."""
    return list(questions) if limit is None else seeded(questions, seed)[:limit]


def _whole_clusters(questions: Sequence[Question], size: int, seed: int) -> set[str | None]:
    sizes = Counter(question.cluster for question in questions)
    chosen, count = set[str | None](), 0
    # As for questions, a key of each label alone: a new cluster moves no other.
    for label in sorted(sizes, key=lambda label: hashlib.sha256(f"{seed}\n{label}".encode()).digest()):
        if count + sizes[label] <= size:
            chosen.add(label)
            count += sizes[label]
    return chosen or {min(sizes, key=lambda label: sizes[label])}
