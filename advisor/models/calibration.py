"""Figures of choice tasks: the accuracy of guessing, and accuracy by the likelihood of a byte."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from advisor.records import Profile
from advisor.tasks.task import Task


def chance_of(task: Task) -> float | None:
    """The expected accuracy of guessing on a choice task, in points; None for other tasks."""
    if task.metric != "choice":
        return None
    return 100 * float(np.mean([1 / len(example.choices) for example in task.examples]))


def accuracy_by_bytes(profile: Profile, task: Task) -> float | None:
    """Accuracy in points if each option's log-probability is divided by its bytes, like ``acc_bytes`` of lm-eval.

    The sum alone favours short options. (lm-eval's ``acc_norm`` divides by characters.)

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
