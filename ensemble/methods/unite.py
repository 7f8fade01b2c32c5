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
        logits: [members, B, U] each member's logits; minus infinity for padding and for what it cannot express.
        members: [members, B, U] each member's own probabilities, renormalised on the union; 0 for padding.
        mean: [B, U] their weighted mean.
        tops: for each member its own top k [B, k], as entries.
    """

    entries: Tensor
    present: Tensor
    ids: Tensor
    logits: Tensor
    members: Tensor
    mean: Tensor
    tops: tuple[Tensor, ...]


def candidate_logits(logits: Tensor, tables: MemberTables) -> Tensor:
    """Logits [B, V] with EOS's as the largest of its ids', and minus infinity for all that is no candidate.

    Half precision becomes float32. Other logits are changed in place: a copy would cost a third of the search for the
    top k, and nothing else reads them.
    """
    z = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    # A single id of EOS has the logit that it has: moving it costs as much as all else here.
    eos = z[:, tables.eos_ids].amax(dim=1, keepdim=True) if len(tables.eos_ids) > 1 else None
    z.index_fill_(1, tables.outside, -torch.inf)
    if eos is not None:
        z[:, tables.eos_ids[:1]] = eos
    return z


def top_k(scores: Sequence[Tensor], k: int) -> list[tuple[Tensor, Tensor]]:
    """For each member the k largest of its logits [B, V_i] and their ids, [B, k]; among equal ones the lower ids."""
    found: list[Sequence[Tensor]] = [z.topk(min(k + 1, z.shape[1]), dim=1) for z in scores]
    borders = torch.cat([values[:, k - 1 :] for values, _ in found if values.shape[1] > k] or [scores[0][:0, :2]])
    # Only a tie at the border can change which ids are in; it is rare, and a stable sort is slow. One look for all.
    if any(values.shape[1] <= k for values, _ in found) or bool((borders[:, :1] == borders[:, 1:]).any()):
        found = [z.sort(dim=1, descending=True, stable=True) for z in scores]
    return [(values[:, :k], ids[:, :k]) for values, ids in found]


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
    found = top_k(scores, k)
    # NONE where a member has fewer candidates than k, or rules some out.
    tops = [tables.entry_of.take(ids) for (_, ids), tables in zip(found, joint.members, strict=True)]
    wanted = torch.cat(tops, dim=1)
    wanted.masked_fill_(torch.cat([values for values, _ in found], dim=1) == -torch.inf, NONE)
    entries = (wanted if also is None else torch.cat([wanted, also], dim=1)).sort(dim=1).values
    absent = entries == NONE
    absent[:, 1:] |= entries[:, 1:] == entries[:, :-1]
    # NONE takes the last place of a table, as any index of -1; what is found there is masked out.
    on_union = torch.stack(
        [
            z.gather(1, tables.place_of.take(entries)).add_(tables.penalty_of.take(entries))
            for z, tables in zip(scores, joint.members, strict=True)
        ]
    )
    members = on_union.masked_fill_(absent, -torch.inf).softmax(dim=2)
    mean = (members * weights.to(members)[:, None, None]).sum(dim=0)
    ids = joint.members[0].id_of.take(entries).masked_fill_(absent, NONE)
    return Union(entries, ~absent, ids, on_union, members, mean, wanted.split([top.shape[1] for top in tops], dim=1))


def log_mean(step: Union, weights: Tensor) -> Tensor:
    """The logarithm of the mean [B, U], exact where a probability is too small for its type."""
    return (step.logits.log_softmax(dim=2) + weights.to(step.logits).log()[:, None, None]).logsumexp(dim=0)


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
