"""A step's outcome, whatever the method: probabilities of some entries of the joint vocabulary; and which one wins."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ensemble.vocabulary.joint import NONE, MemberTables


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a method makes of a step, for a batch of B rows, over U entries.

    Attributes:
        entries: [B, U] entries of the joint vocabulary; those that are not present mean nothing.
        present: [B, U] which of them count.
        ids: [B, U] what the primary emits for each: one of its ids; from the number of its ids on, counted by entries,
            what it spells with several (see :func:`spelled`); NONE where it cannot express the entry.
        members: [members, B, U] each member's own probabilities; 0 for what is not present.
        mean: [B, U] what they are combined to; 0 for what is not present, not a number where a logit was none.
        tops: For each member its own top k [B, k], as entries; None where all entries of a vocabulary are there.
    """

    entries: Tensor
    present: Tensor
    ids: Tensor
    members: Tensor
    mean: Tensor
    tops: tuple[Tensor, ...] | None = None


def candidate_logits(logits: Tensor, tables: MemberTables) -> Tensor:
    """Logits [B, V] with EOS's as the largest of its ids', and minus infinity for all that is no candidate.

    Half precision becomes float32. Other logits are changed in place: a copy would cost a third of the search for the
    top k, and nothing else reads them. To do it again changes nothing.
    """
    z = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    # A single id of EOS has the logit that it has: moving it costs as much as all else here.
    eos = z[:, tables.eos_ids].amax(dim=1, keepdim=True) if len(tables.eos_ids) > 1 else None
    z.index_fill_(1, tables.outside, -torch.inf)
    if eos is not None:
        z[:, tables.eos_ids[:1]] = eos
    return z


def greedy(step: Distribution) -> Tensor:
    """The index [B] of the entry that wins: the likeliest of those that the primary can express (step 7 of UNITE).

    Ties go to the larger probability of the primary, then to its lower id.
    """
    mean = step.mean.masked_fill(step.ids == NONE, -1)
    best = mean == mean.amax(dim=1, keepdim=True)
    own = step.members[0].masked_fill(~best, -1)
    best &= own == own.amax(dim=1, keepdim=True)
    return step.ids.masked_fill(~best, torch.iinfo(torch.long).max).argmin(dim=1)


def sample(step: Distribution, temperature: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """The index [B] of an entry drawn from the mean, among those that the primary can express.

    Args:
        step: The step.
        temperature: [B] above 0; probabilities are raised to its inverse and renormalised.
        top_p: [B] in (0, 1]; only the most likely entries that together reach it are drawn from.
        uniform: [B] numbers in [0, 1), which decide the draws.
    """
    mean = step.mean.masked_fill(step.ids == NONE, 0)
    tempered = (mean.log() / temperature.to(mean)[:, None]).softmax(dim=1)
    ordered, index = tempered.sort(dim=1, descending=True, stable=True)
    before = ordered.cumsum(dim=1) - ordered
    kept = ordered.masked_fill(before >= top_p.to(mean)[:, None], 0)
    cumulative = kept.cumsum(dim=1)
    drawn = torch.searchsorted(cumulative, (uniform.to(cumulative) * cumulative[:, -1])[:, None], right=True)
    last = (kept > 0).sum(dim=1, keepdim=True) - 1
    return index.gather(1, drawn.minimum(last)).squeeze(1)
