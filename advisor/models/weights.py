"""The weights of a set's members: equal, numbers, from their answers to the dev questions, or from each prompt.

``accuracy`` is a member's accuracy on dev (GaC: Yu et al., EMNLP 2024, section 4.3). ``perplexity`` is PackLLM's
weighting, see :mod:`ensemble.score`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from ensemble.errors import InputError

EQUAL = "equal"
ACCURACY = "accuracy"
PERPLEXITY: Literal["perplexity"] = "perplexity"
_FORMS = f"{EQUAL}, {ACCURACY}, {PERPLEXITY}, or numbers such as 2,1,1"


def check_weights(weights: str, candidates: int) -> None:
    """Check the value of ``--weights`` for a pool or a set of so many candidates."""
    if weights in (EQUAL, ACCURACY, PERPLEXITY):
        return
    numbers = read_numbers(weights)
    if len(numbers) != candidates:
        raise InputError(f"--weights {weights}: {len(numbers)} numbers for {candidates} models; give one for each")


def read_numbers(weights: str) -> tuple[float, ...]:
    """Numbers with commas between them: none is negative, and one at least is above 0."""
    try:
        numbers = tuple(float(part) for part in weights.split(","))
    except ValueError:
        raise InputError(f"--weights {weights[:60]}: give {_FORMS}") from None
    if any(not math.isfinite(number) or number < 0 for number in numbers) or not sum(numbers) > 0:
        raise InputError(f"--weights {weights}: each number must be 0 or more, and one of them above 0")
    return numbers


def weights_from_dev(accuracies: Sequence[float]) -> tuple[float, ...]:
    """Weights, 0 to 1, from the members' accuracies in points; an InputError says that all are 0."""
    if not any(accuracies):
        raise InputError(f"--weights {ACCURACY}: the weights of all members are 0; leave out --weights")
    return tuple(accuracy / 100 for accuracy in accuracies)
