"""CoRE: "Harnessing Consistency for Robust Test-Time LLM Ensemble" (Zeng et al., Findings of EACL 2026), on UNITE.

``P_i`` are the members' probabilities on UNITE's union, and member 0 is the primary. With
``d_i(w) = |P_i(w) - mean_j P_j(w)|``:

- token level: ``s_i(w) = f(d_i(w))``, where the kernel ``f`` is 1 without a distance and small at large ones. Where
  ``P_i(w) + P_0(w)`` is at most 1e-12, it is 0. ``t_i`` is ``s_i`` divided by its mean over the entries where it is not
  0;
- model level: ``m_i = sum_w s_i(w) / H(P_i)``, ``H`` being the entropy. ``m_0`` is raised to the sum of the others, so
  that the primary has at least half of the weight. The weights ``v_i`` are the ``m_i`` divided by their sum;
- ``P(w)`` is in proportion to ``v_0 P_0(w) + sum_(i > 0) v_i t_i(w) P_i(w)``;
- if P's likeliest token and the primary's are equal, or one of them begins with the other, or the primary's is EOS, the
  step is the primary's: ``P = P_0``.

This is the authors' published code, with its kernels and constants, for tasks with free answers. For multiple-choice
tasks the code has only ``m_i = 1 / H(P_i)``, without the token level and without the last rule; here this holds where
options are scored.

Differences from the code: it takes the softmax of each assistant's top ten logits, and maps them to tokens of the main
model by a table; here every member has its probability of every entry of the union, as in UNITE. So the members agree
more often on what is not impossible. The sum of ``P`` is not 1 in the code, which does not change the likeliest token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ensemble.errors import InputError
from ensemble.methods import Method, unite
from ensemble.runtime.logits import Logits
from ensemble.step.distribution import Distribution, greedy
from ensemble.step.token_method import Setup, TokenRule
from ensemble.vocabulary.joint import EOS
from ensemble.vocabulary.prefixes import prefixes_of

METHOD = Method(
    level="token",
    summary="UNITE where tokens and members count by their consistency with the mean (CoRE, Zeng et al., EACL 2026)",
    when="a best model as primary, which keeps at least half of the weight; it does not take weights",
    distributed=True,
    version=2,
)
STRENGTHS = {"rbf": 2.0, "linear": 1.0, "power": 5.0, "rec": 1.0, "sig": 5.0}
"""The kernels, and the number in each of them that the authors' code has."""
_EPSILON = 1e-12


@dataclass(frozen=True, slots=True)
class Options:
    """Options of CoRE.

    With a distance ``d`` and the strength ``b`` the kernels are:

    - ``rbf``, the authors' default: ``(exp(-b d) - exp(-b)) / (1 - exp(-b))``, ``b`` = 2;
    - ``linear``: ``1 - d``, without a strength;
    - ``power``: ``(1 - d)^b``, ``b`` = 5;
    - ``rec``: ``1 / (1 + b d)``, ``b`` = 1, from which the smallest value of the step is taken away, divided so that
      the largest is 1;
    - ``sig``: ``1 - sigmoid(b (d - 1/2))``, ``b`` = 5.

    Attributes:
        kernel: The function of the token level.
        strength: ``b``, above 0; None for the authors' value.
    """

    kernel: str = "rbf"
    strength: float | None = None

    def __post_init__(self) -> None:
        if self.kernel not in STRENGTHS:
            raise InputError(f"kernel {self.kernel!r}: give {', '.join(STRENGTHS)}")
        if self.strength is not None and (self.kernel == "linear" or not self.strength > 0):
            raise InputError(f"strength {self.strength}: give a number above 0, and none for kernel linear")


def make(setup: Setup, options: Options) -> TokenRule:
    """Make the rule.

    Raises:
        InputError: Weights are given; the method computes its own.
    """
    if len(set(setup.weights)) > 1:
        raise InputError("weights: core weighs the members at each step; do not give weights with it")
    device = setup.members[0].device
    equal = torch.tensor(setup.weights, dtype=torch.float64, device=device)
    prefixes = prefixes_of(tuple(member.vocabulary for member in setup.members), device)
    first = setup.joint.members[0].entry_of

    def combine(logits: Sequence[Logits], also: Tensor | None = None) -> Distribution:
        return consistent(unite.union(logits, setup.joint, setup.k, equal, also), options, choice=also is not None)

    def keep_primary(step: Distribution) -> Distribution:
        """The last rule: the primary's own distribution where the two likeliest tokens spell the same text."""
        winners = torch.stack([greedy(step), greedy(replace(step, mean=step.members[0]))])
        # What is emitted counts, which is shorter than the entry where the primary lacks it.
        chosen, own = first[step.ids.gather(1, winners.T)].T
        kept = prefixes.are_begun_by(chosen, own) | prefixes.are_begun_by(own, chosen) | (own == EOS)
        # A NaN stays in the mean, so that the step reports it.
        kept &= ~step.mean.sum(dim=1).isnan()
        return replace(step, mean=torch.where(kept[:, None], step.members[0].to(step.mean), step.mean))

    return TokenRule(combine, revise=keep_primary)


def consistent(step: Distribution, options: Options, *, choice: bool) -> Distribution:
    """The step with CoRE's mean.

    Args:
        step: With the members' probabilities, the primary's first.
        options: The kernel.
        choice: Whether to use the authors' formula for multiple-choice tasks.
    """
    own = step.members.double()
    scores = _kernel((own - own.mean(dim=0)).abs(), options)
    counted = own + own[0] > _EPSILON
    scores = torch.where(counted, scores, 0)
    # All distances of a step can be the same. Then kernel `rec` has 0 for all, where the code would divide by 0.
    scores = torch.where((scores == 0).all(dim=2, keepdim=True).all(dim=0), counted.to(scores), scores)
    total = scores.sum(dim=2, keepdim=True)
    # The clamp is the code's: impossible entries add a little to the entropy.
    clamped = own.clamp(min=_EPSILON)
    entropy = -(clamped * clamped.log()).masked_fill(~step.present, 0).sum(dim=2, keepdim=True)
    models = (torch.ones_like(total) if choice else total) / (entropy + _EPSILON)
    models = torch.cat([models[:1].maximum(models[1:].sum(dim=0, keepdim=True)), models[1:]])
    weights = models / models.sum(dim=0)
    if not choice:
        # Not "!= 0": of two members, both have the same smallest score, and rounding must not tell them apart.
        # A member with 0 for all entries, as `rec` has for the one that is the farthest off everywhere, has no weight.
        filtered = scores / total.clamp(min=_EPSILON) * (scores > _EPSILON).sum(dim=2, keepdim=True)
        # The code leaves the primary's probabilities as they are.
        own = torch.cat([own[:1], own[1:] * filtered[1:]])
    mean = (weights * own).sum(dim=0)
    return replace(step, mean=mean / mean.sum(dim=1, keepdim=True))


def _kernel(distance: Tensor, options: Options) -> Tensor:
    """The token-level consistency of distances [members, B, U]."""
    strength = STRENGTHS[options.kernel] if options.strength is None else options.strength
    match options.kernel:
        case "rbf":
            least = torch.exp(torch.tensor(-strength, dtype=distance.dtype))
            return ((-strength * distance).exp() - least) / (1 - least)
        case "linear":
            return 1 - distance
        case "power":
            return (1 - distance) ** strength
        case "rec":
            near = 1 / (1 + strength * distance)
            least = near.amin(dim=(0, 2), keepdim=True)
            # A vocabulary has tokens that no member wants. Their distance is 0, so the largest value is 1.
            # Rounding must not tell equal distances apart.
            above = torch.where(near - least > _EPSILON, near - least, 0)
            return above / (1 - least + 1e-8)
        case _:
            return 1 - torch.sigmoid(strength * (distance - 0.5))
