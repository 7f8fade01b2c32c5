"""UNITE, union top-k ensembling: section 4.2 of "Determine-Then-Ensemble" (ICLR 2025).

Each member's k most likely tokens are joined; each member's probabilities are renormalised on that union; their
(weighted) mean decides. ``Jam``, wanted by one member, and ``James``, wanted by another, meet in the union: where a
vocabulary lacks ``James``, the logit of the first token of its spelling stands for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ensemble.joint import NONE, JointVocabulary, MemberTables


@dataclass(frozen=True, slots=True)
class Union:
    """The union of a step, for a batch of B rows, padded to U entries.

    Attributes:
        entries: [B, U] entries of the joint vocabulary, ascending; a repeated one is padding.
        present: [B, U] which of them count.
        ids: [B, U] the primary's id for each, NONE where it cannot express the entry.
        members: [members, B, U] each member's own probabilities, renormalised on the union; 0 for padding.
        mean: [B, U] their weighted mean.
        tops: for each member its own top k [B, k], as entries.
    """

    entries: Tensor
    present: Tensor
    ids: Tensor
    members: Tensor
    mean: Tensor
    tops: tuple[Tensor, ...]


def candidate_logits(logits: Tensor, tables: MemberTables) -> Tensor:
    """Logits [B, V] with EOS's as the largest of its ids', and minus infinity for all that is no candidate.

    Half precision becomes float32. Other logits are changed in place: a copy would cost a third of the search for the
    top k, and nothing else reads them.
    """
    z = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    eos = z[:, tables.eos_ids].amax(dim=1, keepdim=True) if len(tables.eos_ids) else None
    z.index_fill_(1, tables.outside, -torch.inf)
    if eos is not None:
        z[:, tables.eos_ids[:1]] = eos
    return z


def top_k(z: Tensor, k: int) -> Tensor:
    """Ids [B, k] of the k largest logits of each row; among equal ones the lower ids."""
    if k >= z.shape[1]:
        return z.sort(dim=1, descending=True, stable=True).indices
    values, ids = z.topk(k + 1, dim=1)
    # Only a tie at the border can change which ids are in; it is rare, and a stable sort is slow.
    if bool((values[:, k - 1] == values[:, k]).any()):
        return z.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return ids[:, :k]


def _wanted(z: Tensor, tables: MemberTables, k: int) -> Tensor:
    """A member's top k [B, k] as entries; NONE where it has fewer candidates than k, or rules some out."""
    ids = top_k(z, k)
    return tables.entry_of[ids].masked_fill(z.gather(1, ids) == -torch.inf, NONE)


def union(
    logits: Sequence[Tensor], joint: JointVocabulary, k: int, weights: Tensor, also: Tensor | None = None
) -> Union:
    """Steps 1 to 6 of a step for a batch.

    Args:
        logits: For each member its next-token logits [B, V_i].
        joint: The tables, on the logits' device.
        k: Candidates that each member brings.
        weights: [members], summing to 1.
        also: [B, n] entries that the union holds besides.
    """
    scores = [candidate_logits(z, tables) for z, tables in zip(logits, joint.members, strict=True)]
    tops = [_wanted(z, tables, k) for z, tables in zip(scores, joint.members, strict=True)]
    entries = torch.cat([*tops, also] if also is not None else tops, dim=1).sort(dim=1).values
    present = entries != NONE
    present[:, 1:] &= entries[:, 1:] != entries[:, :-1]
    looked_up = entries.clamp(min=0)
    primary_ids = torch.empty(0)
    probabilities = []
    for n, (z, tables) in enumerate(zip(scores, joint.members, strict=True)):
        ids = tables.id_of[looked_up]
        if n == 0:
            primary_ids = ids.masked_fill(~present, NONE)
        wanted = z.gather(1, ids.clamp(min=0)).masked_fill(~present | (ids == NONE), -torch.inf)
        probabilities.append(wanted.softmax(dim=1))
    members = torch.stack(probabilities)
    mean = (members * weights.to(members)[:, None, None]).sum(dim=0)
    return Union(entries, present, primary_ids, members, mean, tuple(tops))


def greedy(step: Union) -> Tensor:
    """Step 7: the index [B] into the union of the entry that wins, among those that the primary can express.

    Ties go to the larger probability of the primary, then to its lower id.
    """
    mean = step.mean.masked_fill(step.ids == NONE, -1)
    best = mean == mean.amax(dim=1, keepdim=True)
    own = step.members[0].masked_fill(~best, -1)
    best &= own == own.amax(dim=1, keepdim=True)
    return step.ids.masked_fill(~best, torch.iinfo(torch.long).max).argmin(dim=1)


def sample(step: Union, temperature: float, top_p: float, uniform: Tensor) -> Tensor:
    """Step 7 by chance: the index [B] of an entry drawn from the mean, among those that the primary can express.

    Args:
        step: The union of the step.
        temperature: Above 0; probabilities are raised to its inverse and renormalised.
        top_p: In (0, 1]; only the most likely entries that together reach it are drawn from.
        uniform: [B] numbers in [0, 1), one for each row, which decide the draws.
    """
    mean = step.mean.masked_fill(step.ids == NONE, 0)
    tempered = (mean.log() / temperature).softmax(dim=1)
    ordered, index = tempered.sort(dim=1, descending=True, stable=True)
    before = ordered.cumsum(dim=1) - ordered
    kept = ordered.masked_fill(before >= top_p, 0)
    cumulative = kept.cumsum(dim=1)
    drawn = torch.searchsorted(cumulative, (uniform.to(cumulative) * cumulative[:, -1])[:, None], right=True)
    last = (kept > 0).sum(dim=1, keepdim=True) - 1
    return index.gather(1, drawn.minimum(last)).squeeze(1)
