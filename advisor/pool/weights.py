"""The weights of a set's members: equal, numbers, from their answers to the dev questions, or from each prompt.

GaC (Yu et al., EMNLP 2024, section 4.3) tries two kinds from a development set:

- ``accuracy``: a member's accuracy.
- ``ece``: its accuracy minus its expected calibration error, both from 0 to 1; 0 if the error is larger.

The error is that of :func:`advisor.profile.calibration.calibration_error`. ``perplexity`` is PackLLM's weighting, see
:mod:`ensemble.score.scorer`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from advisor.tasks.task import Task
from ensemble.errors import InputError

EQUAL = "equal"
FROM_DEV = ("accuracy", "ece")
PERPLEXITY: Literal["perplexity"] = "perplexity"
_FORMS = f"{EQUAL}, {', '.join(FROM_DEV)}, {PERPLEXITY}, or numbers such as 2,1,1"


def check_weights(weights: str, candidates: int, task: Task) -> None:
    """Check the value of ``--weights``.

    Args:
        weights: The value.
        candidates: How many models numbers are for: those of the pool, or of the set.
        task: The dev questions.

    Raises:
        InputError: The value has another form, the numbers do not fit, or the task gives no confidences.
    """
    # Values per character, as in ARC, are no log-probabilities.
    if weights == "ece" and (task.metric != "choice" or task.scoring == "normalised"):
        raise InputError(f"--weights ece: {task.name} does not choose by the probability of options; use accuracy")
    if weights in (EQUAL, *FROM_DEV, PERPLEXITY):
        return
    numbers = read_numbers(weights)
    if len(numbers) != candidates:
        raise InputError(f"--weights {weights}: {len(numbers)} numbers for {candidates} models; give one for each")


def read_numbers(weights: str) -> tuple[float, ...]:
    """Numbers with commas between them.

    Raises:
        InputError: They are not, or one is negative, or all are 0.
    """
    try:
        numbers = tuple(float(part) for part in weights.split(","))
    except ValueError:
        raise InputError(f"--weights {weights[:60]}: give {_FORMS}") from None
    if any(not math.isfinite(number) or number < 0 for number in numbers) or not sum(numbers) > 0:
        raise InputError(f"--weights {weights}: each number must be 0 or more, and one of them above 0")
    return numbers


def weights_from_dev(kind: str, accuracies: Sequence[float], errors: Sequence[float]) -> tuple[float, ...]:
    """Weights from the members' answers to the dev questions, from 0 to 1.

    Args:
        kind: One of FROM_DEV, for the message.
        accuracies: Each member's accuracy, in points, the primary's first.
        errors: What is taken away from each: its expected calibration error, from 0 to 1, for ``ece``, else 0.

    Raises:
        InputError: All of them are 0.
    """
    weights = tuple(max(0.0, accuracy / 100 - error) for accuracy, error in zip(accuracies, errors, strict=True))
    if not sum(weights) > 0:
        raise InputError(f"--weights {kind}: the weights of all members are 0; leave out --weights")
    return weights
