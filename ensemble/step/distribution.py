"""A step's outcome for any method: probabilities of some entries of the joint vocabulary, and which entry wins.

The members' distributions become one by their weights, or by the geometric mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ensemble.errors import InputError
from ensemble.vocabulary.joint import NONE, MemberTables

_TEMPERATURES = (1e-36, 1e36)
"""The temperatures that float32 can divide a log-probability by; beyond them the result no longer changes."""
_MARGIN = 1e-5
"""Probability by which a certain winner is ahead: more than the rounding of a softmax in float32."""
Weights = Sequence[float] | None
"""One number for each member, or equal ones."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A method's distribution at a step, for a batch of B rows, over U entries.

    Attributes:
        entries: [B, U] entries of the joint vocabulary; those that are not present have no meaning.
        present: [B, U] which of them count.
        ids: [B, U] what the primary emits for each: one of its ids; its number of ids plus the entry, if it spells the
            entry with several ids (see :class:`ensemble.step.sampler.Detokenizer`); NONE if it cannot express it.
        members: [members, B, U] each member's probabilities; 0 for entries that are not present.
        mean: [B, U] the combined probabilities; 0 for entries that are not present, NaN where a logit was NaN.
        tops: For each member its top k [B, k], as entries; None if the distribution has all entries of a vocabulary.
    """

    entries: Tensor
    present: Tensor
    ids: Tensor
    members: Tensor
    mean: Tensor
    tops: tuple[Tensor, ...] | None = None


def mask_(logits: Tensor, tables: MemberTables) -> None:
    """Give EOS the largest logit of its ids', and minus infinity to ids that are no candidates.

    The logits [B, V] are changed in place: a copy would cost more than the search for the top k, and nothing else reads
    them. A second call changes nothing.
    """
    # A single EOS id keeps its logit: to write it again would cost as much as the rest of this function.
    eos = logits[:, tables.eos_ids].amax(dim=1, keepdim=True) if len(tables.eos_ids) > 1 else None
    if len(tables.outside):
        logits.index_fill_(1, tables.outside, -torch.inf)
    if eos is not None:
        logits[:, tables.eos_ids[:1]] = eos


def candidate_logits(logits: Tensor, tables: MemberTables) -> Tensor:
    """:func:`mask_` for methods over whole vocabularies: the logits [B, V], in single precision or above."""
    mask_(logits, tables)
    return at_least_single(logits)


def at_least_single(values: Tensor) -> Tensor:
    """Half precision as float32, other values as they are."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def greedy(step: Distribution) -> Tensor:
    """The index [B] of the winner: the likeliest entry that the primary can express (step 7 of UNITE).

    Ties go to the larger probability of the primary, then to its lower id.
    """
    # Minus one is below every probability, so a row whose probabilities are all 0 still has a winner.
    mean = step.mean.masked_fill(step.ids == NONE, -1)
    own = step.members[0].masked_fill(mean != mean.amax(dim=1, keepdim=True), -1)
    others = own != own.amax(dim=1, keepdim=True)
    return step.ids.masked_fill(others, torch.iinfo(torch.long).max).argmin(dim=1)


def sample(
    step: Distribution, temperature: Tensor, top_p: Tensor, uniform: Tensor, top_k: Tensor | None = None
) -> Tensor:
    """The index [B] of an entry drawn from the mean among those that the primary can express; else :func:`greedy`.

    All arguments are [B]: ``temperature`` above 0, to whose inverse probabilities are raised; ``top_p`` in (0, 1], of
    what the ``top_k`` likeliest entries have (0 for all); and ``uniform`` in [0, 1), which decides the draws.
    """
    mean = step.mean.masked_fill(step.ids == NONE, 0)
    tempered = (mean.log() / temperature.clamp(*_TEMPERATURES).to(mean)[:, None]).softmax(dim=1)
    # A stable sort: equal probabilities would else come in another order on another device.
    ordered, index = tempered.sort(dim=1, descending=True, stable=True)
    if top_k is not None:
        place = torch.arange(ordered.shape[1], device=ordered.device)
        most = top_k.where(top_k > 0, ordered.shape[1])[:, None]
        ordered = ordered.masked_fill(place >= most, 0)
        ordered = ordered / ordered.sum(dim=1, keepdim=True)
    before = ordered.cumsum(dim=1) - ordered
    beyond = before >= top_p.to(mean)[:, None]
    # The likeliest entry stays in any case: a top_p below the smallest float32 is 0 here.
    beyond[:, 0] = False
    kept = ordered.masked_fill(beyond, 0)
    cumulative = kept.cumsum(dim=1)
    drawn = torch.searchsorted(cumulative, (uniform.to(cumulative) * cumulative[:, -1])[:, None], right=True)
    count = (kept > 0).sum(dim=1, keepdim=True)
    # Rounding may put a draw after the last entry that is kept. And a row of NaN keeps none: the index -1 would stop
    # all rows on a CPU, and on a GPU the whole process.
    winners = index.gather(1, drawn.minimum(count - 1).clamp(min=0))
    return torch.where(count > 0, winners, greedy(step)[:, None]).squeeze(1)


def is_certain(highest: Tensor, exact: Tensor, weights: Tensor, can_win: Tensor) -> Tensor:
    """The rows [B] in which the same entry wins whatever the unknown logits are.

    A member in another process sends its top candidates. The logits of other entries are unknown, and at most that of
    the last candidate. With ``e_v = exp(z_v)``, an entry's probability ``e_w / (e_w + sum of the others' e_v)`` is
    smallest where its own logit is smallest and all others are largest, and the other way round. The winner's smallest
    mean must be above the others' largest. A row with NaN is uncertain. ``highest`` [members, B, U] are logits, where
    ``exact``, or their upper limits, and minus infinity for entries that are not present.
    """
    # In float32 the sums below round away what a small entry adds, and the bounds would not be bounds.
    high = highest.double()
    # Logits may be beyond 700, where their exponential is infinite; the ratios below do not change.
    above = (high - high.amax(dim=2, keepdim=True)).exp_()
    below = above * exact
    shares = weights.double()[:, None, None]
    least = (shares * (below / (below + above.sum(dim=2, keepdim=True) - above))).sum(dim=0)
    most = (shares * (above / (above + below.sum(dim=2, keepdim=True) - below))).sum(dim=0)
    first = least.masked_fill_(~can_win, -1).max(dim=1, keepdim=True)
    rest = most.masked_fill_(~can_win, -1).scatter_(1, first.indices, -1).amax(dim=1)
    return first.values[:, 0] > rest + _MARGIN


def normalised(weights: Weights, members: int) -> tuple[float, ...]:
    """A share for each member, 1 in all, equal without numbers; InputError for weights that give no shares."""
    if isinstance(weights, str):
        raise InputError(f"weights {weights!r}: give a list of numbers")
    if weights is None:
        return (1 / members,) * members
    if len(weights) != members:
        raise InputError(f"{len(weights)} weights for {members} models; give one for each")
    if any(not math.isfinite(weight) or weight < 0 for weight in weights) or sum(weights) <= 0:
        raise InputError(f"weights {list(weights)}: each must be 0 or more, and one of them above 0")
    if math.isinf(sum(weights)):
        weights = [weight / max(weights) for weight in weights]
    return tuple(weight / sum(weights) for weight in weights)


def geometric(step: Distribution, weights: Tensor) -> Distribution:
    """The step with the geometric mean by ``weights``: ``P(w)`` in proportion to ``prod_i P_i(w)^a_i``, 1 in all."""
    # An entry that a member cannot express gets the smallest factor instead of zero. So a member of weight 0 excludes
    # nothing, and an entry that all members can express goes before one that some cannot.
    smallest = torch.finfo(torch.float64).min / 2
    logarithms = (step.members.double().log().clamp(min=smallest) * weights.double()[:, None, None]).sum(dim=0)
    return replace(step, mean=logarithms.masked_fill(~step.present, -torch.inf).softmax(dim=1))
