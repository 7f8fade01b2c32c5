"""What two candidates have in common in being right and wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.records import Profile
from advisor.statistics import Floats


def kappas(graded: Floats) -> Floats:
    """Cohen's kappa of being right, of all pairs: agreement beyond what their accuracies alone would bring.

    Args:
        graded: Models by questions, 0 or 1.

    Returns:
        Models by models, -1 to 1; NaN where both are right on every question or both on none: they agree by chance
        alone then.
    """
    questions = graded.shape[1]
    # Counts, and not shares, as whole numbers are exact: a chance of 1 is found by comparing.
    right = graded.sum(axis=1)
    wrong = questions - right
    agreed = questions * (graded @ graded.T + (1 - graded) @ (1 - graded).T)
    by_chance = np.outer(right, right) + np.outer(wrong, wrong)
    room = questions**2 - by_chance
    kappa: Floats = np.divide(agreed - by_chance, room, out=np.full(agreed.shape, np.nan), where=room > 0)
    return kappa


def same_wrong_answers(profiles: Sequence[Profile]) -> Floats:
    """The share of questions on which two give the same wrong answer; to give none is no answer in common.

    Args:
        profiles: Answers to the same questions.

    Returns:
        Models by models, 0 to 1.
    """
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
