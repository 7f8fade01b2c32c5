"""How much each member counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from ensemble.errors import InputError

Weights = Sequence[float] | Literal["consistency"] | None
"""One number for each member, weights that are found step by step, or equal ones."""


def with_consistency(weights: Weights, options: Mapping[str, object]) -> dict[str, object]:
    """A method's options, with what weights say of them.

    Raises:
        InputError: Weights are a word that is none.
    """
    if isinstance(weights, str) and weights != "consistency":
        raise InputError(f"weights {weights!r}: give a number for each model, consistency, or None")
    return {**options, "consistency": True} if isinstance(weights, str) else dict(options)


def normalised(weights: Weights, members: int) -> tuple[float, ...]:
    """A share for each member, 1 in all; equal ones where no numbers are given.

    Raises:
        InputError: They are not one for each member, or are no shares.
    """
    if weights is None or isinstance(weights, str):
        return (1 / members,) * members
    if len(weights) != members:
        raise InputError(f"{len(weights)} weights for {members} models; give one for each")
    if any(not math.isfinite(weight) or weight < 0 for weight in weights) or sum(weights) <= 0:
        raise InputError(f"weights {list(weights)}: each must be 0 or more, and one of them above 0")
    return tuple(weight / sum(weights) for weight in weights)
