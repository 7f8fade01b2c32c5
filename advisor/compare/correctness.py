"""How alike two candidates' right and wrong answers are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.records import Profile
from advisor.statistics import Floats


def kappas(graded: Floats) -> Floats:
    """Cohen's kappa of the correctness of all pairs: agreement beyond what follows from their accuracies.

    Args:
        graded: Models by questions, 0 or 1.

    Returns:
        Models by models, -1 to 1; NaN if both are right on every question or both on none: then
        chance alone agrees fully.
    """
    questions = graded.shape[1]
    # Counts instead of shares: whole numbers are exact, so that comparing finds a chance agreement of 1.
    right = graded.sum(axis=1)
    wrong = questions - right
    agreed = questions * (graded @ graded.T + (1 - graded) @ (1 - graded).T)
    by_chance = np.outer(right, right) + np.outer(wrong, wrong)
    room = questions**2 - by_chance
    kappa: Floats = np.divide(agreed - by_chance, room, out=np.full(agreed.shape, np.nan), where=room > 0)
    return kappa


def same_wrong_answers(profiles: Sequence[Profile]) -> Floats:
    """The share of questions on which two give the same wrong answer. Missing answers are not equal.

    Args:
        profiles: Answers to the same questions.

    Returns:
        Models by models, 0 to 1.
    """
    # Numbers instead of texts: numpy compares whole arrays of them, and a pool has thousands of pairs.
    numbers: dict[str, int] = {}
    wrong = np.array(
        [
            [
                -1
                if answer.score == 1 or answer.extracted is None
                else numbers.setdefault(answer.extracted, len(numbers))
                for answer in profile.answers
            ]
            for profile in profiles
        ]
    )
    return np.stack([((wrong == own) & (own >= 0)).mean(axis=1) for own in wrong])
