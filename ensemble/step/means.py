"""How the members' distributions become one: their weights, and the geometric mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ensemble.errors import InputError
from ensemble.step.distribution import Distribution

Weights = Sequence[float] | Literal["perplexity"] | None
"""One number for each member, weights that are computed for each prompt, or equal ones."""


def normalised(weights: Weights, members: int) -> tuple[float, ...]:
    """A share for each member, 1 in all; equal ones if no numbers are given.

    Raises:
        InputError: The weights are a text other than ``perplexity``, there is not one number for each member, a number
            is negative, or all are 0.
    """
    if isinstance(weights, str) and weights != "perplexity":
        raise InputError(f"weights {weights!r}: give a list of numbers, or 'perplexity'")
    if weights is None or isinstance(weights, str):
        return (1 / members,) * members
    if len(weights) != members:
        raise InputError(f"{len(weights)} weights for {members} models; give one for each")
    if any(not math.isfinite(weight) or weight < 0 for weight in weights) or sum(weights) <= 0:
        raise InputError(f"weights {list(weights)}: each must be 0 or more, and one of them above 0")
    if math.isinf(sum(weights)):
        weights = [weight / max(weights) for weight in weights]
    return tuple(weight / sum(weights) for weight in weights)


def geometric(step: Distribution, weights: Tensor) -> Distribution:
    """The step with the weighted geometric mean, renormalised: ``P(w)`` in proportion to ``prod_i P_i(w)^a_i``.

    Args:
        step: With the members' probabilities.
        weights: [members], summing to 1.
    """
    # An entry that a member cannot express gets the smallest factor instead of zero. So a member of weight 0 excludes
    # nothing, and an entry that all members can express goes before one that some cannot.
    smallest = torch.finfo(torch.float64).min / 2
    logarithms = (step.members.double().log().clamp(min=smallest) * weights.double()[:, None, None]).sum(dim=0)
    return replace(step, mean=logarithms.masked_fill(~step.present, -torch.inf).softmax(dim=1))
