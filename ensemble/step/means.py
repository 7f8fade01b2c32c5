"""Other ways to make one distribution of the members' own than their weighted arithmetic mean."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ensemble.step.distribution import Distribution


def geometric(step: Distribution, weights: Tensor) -> Distribution:
    """The step with the weighted geometric mean, renormalised: ``P(w)`` in proportion to ``prod_i P_i(w)^a_i``.

    Args:
        step: With the members' own probabilities.
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
    surety = torch.special.entr(own).sum(dim=2).neg().softmax(dim=0)[:, :, None]
    nearness = (own - own.mean(dim=0)).abs().neg().exp()
    if geometric:
        return _renormalised(step, _log_product(step, surety[:, :, 0]) + (surety * nearness).sum(dim=0).log())
    mean = (surety * nearness * own).sum(dim=0)
    return replace(step, mean=mean / mean.sum(dim=1, keepdim=True))


def _log_product(step: Distribution, weights: Tensor) -> Tensor:
    """``sum_i a_i log P_i(w)`` [B, U], with weights [members, B] or [members, 1].

    Where a member cannot express an entry its factor is the smallest number rather than zero: so a member without a say
    excludes nothing, and what all can express goes before what some cannot.
    """
    smallest = torch.finfo(torch.float64).min / 2
    return (step.members.double().log().clamp(min=smallest) * weights.double()[:, :, None]).sum(dim=0)


def _renormalised(step: Distribution, logarithms: Tensor) -> Distribution:
    return replace(step, mean=logarithms.masked_fill(~step.present, -torch.inf).softmax(dim=1))
