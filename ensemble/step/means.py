"""How the members' distributions become one: their weights, and means other than the weighted arithmetic one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ensemble.errors import InputError
from ensemble.step.distribution import Distribution

Weights = Sequence[float] | Literal["consistency", "perplexity"] | None
"""One number for each member, weights that are computed at each step or for each prompt, or equal ones."""


def with_consistency(weights: Weights, options: Mapping[str, object]) -> dict[str, object]:
    """A method's options, with ``consistency`` set if the weights say so.

    Raises:
        InputError: The weights are a text other than ``consistency`` and ``perplexity``.
    """
    if isinstance(weights, str) and weights not in ("consistency", "perplexity"):
        raise InputError(f"weights {weights!r}: give a list of numbers, 'consistency' or 'perplexity'")
    return {**options, "consistency": True} if weights == "consistency" else dict(options)


def normalised(weights: Weights, members: int) -> tuple[float, ...]:
    """A share for each member, 1 in all; equal ones if no numbers are given.

    Raises:
        InputError: There is not one number for each member, or a number is negative, or all are 0.
    """
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
    return _renormalised(step, _log_product(step, weights[:, None]))


def consistent(step: Distribution, *, geometric: bool) -> Distribution:
    """The step with the members weighted by their consistency.

    With ``m(w)`` the plain mean of the members' probabilities over the entries of the step:

    - a member's weight is ``v_i``, in proportion to ``exp(-H_i)``, ``H_i`` being the entropy of ``P_i``: one over the
      number of entries among which it is undecided; the ``v_i`` sum to 1;
    - a token's weight in a member is ``c_i(w) = exp(-|P_i(w) - m(w)|)``;
    - ``P(w)`` is in proportion to ``sum_i v_i c_i(w) P_i(w)``, or, as a geometric mean, to
      ``(sum_i v_i c_i(w)) prod_i P_i(w)^v_i``.
    """
    own = step.members.double()
    certainty = torch.special.entr(own).sum(dim=2).neg().softmax(dim=0)[:, :, None]
    nearness = (own - own.mean(dim=0)).abs().neg().exp()
    if geometric:
        return _renormalised(step, _log_product(step, certainty[:, :, 0]) + (certainty * nearness).sum(dim=0).log())
    mean = (certainty * nearness * own).sum(dim=0)
    return replace(step, mean=mean / mean.sum(dim=1, keepdim=True))


def _log_product(step: Distribution, weights: Tensor) -> Tensor:
    """``sum_i a_i log P_i(w)`` [B, U], with weights [members, B] or [members, 1]."""
    # An entry that a member cannot express gets the smallest factor instead of zero. So a member of weight 0 excludes
    # nothing, and an entry that all members can express goes before one that some cannot.
    smallest = torch.finfo(torch.float64).min / 2
    return (step.members.double().log().clamp(min=smallest) * weights.double()[:, :, None]).sum(dim=0)


def _renormalised(step: Distribution, logarithms: Tensor) -> Distribution:
    return replace(step, mean=logarithms.masked_fill(~step.present, -torch.inf).softmax(dim=1))
