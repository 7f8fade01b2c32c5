"""Cascades and the weights of votes, from the extracted answers of several models.

:mod:`ensemble.methods._votes` counts the votes. Models are in the order of their accuracy, the best first. A cascade
asks them in this order and stops as soon as the models that are left cannot change the winner, so its answers are those
of the vote.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from advisor.records import Profile
from advisor.statistics import scores
from ensemble.methods._votes import NONE, Codes, answer_codes, count_votes


def codes_of(profiles: Sequence[Profile]) -> Codes:
    """The numbers of the answers of profiles, in their order; see :func:`answer_codes`."""
    return answer_codes([[answer.extracted for answer in profile.answers] for profile in profiles])


def is_decided(codes: Codes, left: int) -> NDArray[np.bool_]:
    """Whether a vote is decided, for each question, before the rest of the models is asked.

    Args:
        codes: The answers so far, models by questions.
        left: Models that were not asked yet, at least 0.
    """
    votes = count_votes(codes)
    winner = votes.argmax(axis=0)
    most = votes.max(axis=0)
    first = np.arange(len(codes))[:, None]
    # A rival that ties with the winner wins if a more accurate model gave it first.
    rival = (codes != np.take_along_axis(codes, winner[None], axis=0)) & (codes != NONE)
    beats = rival & ((votes + left > most) | ((votes + left == most) & (first < winner)))
    # An answer that no model gave so far wins only with more votes than the winner has.
    decided: NDArray[np.bool_] = ~beats.any(axis=0) & (left <= np.where(np.isfinite(most), most, 0))
    return decided


def cascade_calls(codes: Codes) -> NDArray[np.intp]:
    """The number of models that a cascade asks, for each question."""
    models, questions = codes.shape
    calls = np.full(questions, models)
    # Decided questions are not looked at again, which saves most of the time.
    open_questions = np.arange(questions)
    for asked in range(1, models):
        decided = is_decided(codes[:asked, open_questions], models - asked)
        calls[open_questions[decided]] = asked
        open_questions = open_questions[~decided]
    return calls


def vote_weights(profiles: Sequence[Profile]) -> tuple[float, ...]:
    """The weights of a weighted vote: how much more likely an answer becomes if a model gives it, as a logarithm.

    For a model that is right with probability p, and wrong answers that agree with probability c, the weight is
    log(p / (1 - p)) - log(c), at least 0: the optimal weight of independent voters with 1 / c equally likely wrong
    answers (for two answers Nitzan and Paroush 1982). Without c, the log odds of a model below 50% would be negative
    although its answer is evidence.

    Args:
        profiles: The models' answers to the dev questions, scored 0 or 1, at least two models.
    """
    graded = np.stack([scores(profile) for profile in profiles])
    codes = codes_of(profiles)
    wrong = ((graded < 1) & (codes != NONE)).astype(float)
    both_wrong = wrong @ wrong.T
    same = np.stack([((own == codes) & (own != NONE) & (graded < 1)).sum(axis=1) for own in codes])
    upper = np.triu_indices(len(profiles), 1)
    # Half a question is added to each count, so that no weight is infinite.
    agreement = (float(same[upper].sum()) + 0.5) / (float(both_wrong[upper].sum()) + 1)
    right = graded.sum(axis=1)
    odds = (right + 0.5) / (graded.shape[1] - right + 0.5)
    return tuple(np.maximum(np.log(odds) - np.log(agreement), 0.0).round(9).tolist())
