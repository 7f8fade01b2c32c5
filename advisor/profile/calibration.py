"""Figures from the likelihoods of options: calibration, and accuracy by the likelihood of a byte."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from advisor.records import Profile
from advisor.tasks.task import Task

BINS = 15  # as in Guo et al. (2017), so that figures can be compared with published ones


def chance_of(task: Task) -> float | None:
    """The expected accuracy of guessing on a choice task, in points; None for other tasks."""
    if task.metric != "choice":
        return None
    return 100 * float(np.mean([1 / len(example.choices) for example in task.examples]))


def calibration_error(profile: Profile) -> float | None:
    """Expected calibration error: the distance between a model's confidence in its choices and its accuracy, 0 to 1.

    Confidence is the probability of the likeliest option, the softmax of the options' log-probabilities. Questions are
    put into bins of equal width by their confidence. The error is the mean over the bins, weighted by their questions,
    of the distance between accuracy and mean confidence (Naeini et al. 2015; equation 3 of Guo et al. 2017, "On
    Calibration of Modern Neural Networks"). On few questions, chance alone makes it larger than 0.

    Args:
        profile: The answers; those without likelihoods do not count.

    Returns:
        The error; None if no answer has likelihoods.
    """
    answers = [answer for answer in profile.answers if answer.options]
    if not answers:
        return None
    confidence = np.array([softmax(_values(answer.options)).max() for answer in answers])
    right = np.array([answer.score for answer in answers])
    # A confidence on a border belongs to the lower bin, as in the paper: its intervals are open at their lower end.
    of_bin = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.bincount(of_bin, weights=right - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(answers))


def accuracy_by_bytes(profile: Profile, task: Task) -> float | None:
    """Accuracy in points if each option's log-probability is divided by its bytes, like ``acc_bytes`` of lm-eval.

    The sum alone favours short options. (lm-eval's ``acc_norm`` divides by characters.)

    Args:
        profile: Answers to questions of the task; an answer without likelihoods counts as wrong.
        task: A choice task.

    Returns:
        The accuracy; None if no answer has likelihoods, or they are those of letters, which all have one byte.
    """
    if task.scoring == "letters" or not any(answer.options for answer in profile.answers):
        return None
    examples = {example.id: example for example in task.examples}
    values = []
    for answer in profile.answers:
        if answer.options:
            example = examples[answer.id]
            lengths = [len(choice.encode()) for choice in example.choices]
            # The lowest index wins a tie, as in lm-eval.
            best = int(np.argmax(_values(answer.options) / lengths))
            values.append(task.score(example, example.choices[best]).value)
    # By all answers: a question without likelihoods counts as wrong, as it does in the accuracy beside this figure.
    return 100 * sum(values) / len(profile.answers)


def _values(options: tuple[float | None, ...]) -> NDArray[np.float64]:
    # JSON has no infinity, so the cache stores an impossible option as null.
    return np.array([-math.inf if value is None else value for value in options])
