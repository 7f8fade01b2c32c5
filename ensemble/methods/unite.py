"""UNITE, union top-k ensembling: section 4.2 of "Determine-Then-Ensemble" (ICLR 2025).

The k most likely tokens of each member form a union. Each member's probabilities are renormalised on the union, and
their weighted mean decides. If one member wants ``Jam`` and another one ``James``, both are in the union. A member
whose vocabulary lacks ``James`` uses the logit of the first token of its spelling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ensemble.methods import Method
from ensemble.runtime.logits import Logits, are_remote, top_k, whole
from ensemble.step import compiled
from ensemble.step.distribution import Distribution, at_least_single, geometric, is_certain, mask_
from ensemble.step.token_method import Combine, Setup, TokenRule
from ensemble.vocabulary.joint import NONE, JointVocabulary

METHOD = Method(
    level="token",
    summary="the mean over the union of every member's top k tokens (Yao et al., ICLR 2025)",
    when="the first choice: any vocabularies, at little more than the cost of the members",
    distributed=True,
)


Mean = Literal["arithmetic", "geometric"]
"""``arithmetic`` as in the paper, or ``geometric`` (see :mod:`ensemble.methods.geometric`)."""


def make(setup: Setup, options: None) -> TokenRule:  # noqa: ARG001
    """Make the rule."""
    # The bounds that allow to skip logits (is_certain) are those of the arithmetic mean with fixed weights.
    return TokenRule(combined(setup), combine_greedy=combined(setup, winner=True))


def combined(setup: Setup, mean: Mean = "arithmetic", *, winner: bool = False) -> Combine:
    """Step 1 to 6 with a mean of the members' probabilities; ``winner`` as in :func:`union`."""
    shares = torch.tensor(setup.weights, dtype=torch.float64, device=setup.members[0].device)

    def combine(logits: Sequence[Logits], also: Tensor | None = None) -> Distribution:
        step = union(logits, setup.joint, setup.k, shares, also, winner=winner)
        return step if mean == "arithmetic" else geometric(step, shares)

    return combine


def union(
    logits: Sequence[Logits],
    joint: JointVocabulary,
    k: int,
    weights: Tensor,
    also: Tensor | None = None,
    *,
    winner: bool = False,
) -> Distribution:
    """Steps 1 to 6 of UNITE for a batch, by logits [B, V_i] of each member, or what another process tells of them.

    With ``also`` [B, n], entries to add to the union, probabilities are in float64. ``winner``: only the likeliest
    entry is needed; then logits elsewhere that cannot change it are not fetched, and the probabilities are approximate.
    """
    for z, tables in zip(logits, joint.members, strict=True):
        if isinstance(z, Tensor):
            mask_(z, tables)
    remote = are_remote(logits)
    if not remote and also is None and (step := compiled.union(whole(logits), joint, k, weights)) is not None:
        return step
    entry_of = [tables.entry_of for tables in joint.members]
    wanted, tops = _wanted(tops_of(logits, k), entry_of, joint.places, also)
    entries, present, places, ids, penalty = _look_up(wanted, joint.places, joint.penalties)
    if remote:
        # Logits of absent entries, and of entries that a member cannot express, are not worth sending.
        on_union = fetch_logits(logits, places, penalty == 0, ids != NONE, weights if winner else None)
    else:
        on_union = torch.stack([z.gather(1, place) for z, place in zip(whole(logits), places, strict=True)])
    members, mean = _mean(on_union, penalty, weights, exact=also is not None)
    return Distribution(entries, present, ids, members, mean, tops)


def _wanted(
    largest: Sequence[tuple[Tensor, Tensor]], entry_of: Sequence[Tensor], all_places: Tensor, also: Tensor | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The entries [B, n] that make up the union, with duplicates and NONE; and those of each member."""
    tops = [entries.take(ids) for (_, ids), entries in zip(largest, entry_of, strict=True)]
    # One NONE more, which the tables have as the id of what is no entry.
    none = all_places[-1:, -1:].expand(len(tops[0]), 1)
    wanted = torch.cat([*tops, none] if also is None else [*tops, also, none], dim=1)
    # An entry is NONE where a member has fewer candidates than k, or excludes some of them.
    values = torch.cat([values for values, _ in largest], dim=1)
    wanted[:, : values.shape[1]].masked_fill_(values == -torch.inf, NONE)
    split = wanted[:, : values.shape[1]].split_with_sizes([top.shape[1] for top in tops], dim=1)
    return wanted, tuple(split)


def _look_up(
    wanted: Tensor, all_places: Tensor, penalties: Tensor
) -> tuple[Tensor, Tensor, list[Tensor], Tensor, Tensor]:
    """The union's entries in order, presence, and each one's places, ids [B, U] and penalties [members, B, U]."""
    in_order = wanted.sort(dim=1).values
    # Sorted entries put duplicates side by side; all but the first of them are absent. So are all NONE, the first entry
    # of which is left out.
    present = in_order[:, 1:] != in_order[:, :-1]
    # The tables have a column for what is absent: minus infinity for every member, and no id.
    entries = torch.where(present, in_order[:, 1:], penalties.shape[1] - 1)
    flat = entries.view(-1)
    *places, ids = all_places.index_select(1, flat).view(-1, *entries.shape).unbind()
    penalty = penalties.index_select(1, flat).view(-1, *entries.shape)
    return entries, present, places, ids, penalty


def _mean(on_union: Tensor, penalty: Tensor, weights: Tensor, *, exact: bool) -> tuple[Tensor, Tensor]:
    """Each member's probabilities [members, B, U] on the union, and their weighted mean [B, U]."""
    # Scored entries can be so unlikely that their probability is 0 in float32.
    on_union = (on_union.double() if exact else at_least_single(on_union)).add_(penalty)
    members = on_union.softmax(dim=2)
    return members, (members * weights.to(members).view(-1, 1, 1)).sum(dim=0)


def tops_of(logits: Sequence[Logits], k: int) -> list[tuple[Tensor, Tensor]]:
    """:func:`~ensemble.runtime.logits.top_k` of each member, of which some are elsewhere."""
    return [top_k(z, k) if isinstance(z, Tensor) else z.top(k) for z in logits]


def _known(z: Logits, ids: Tensor) -> tuple[Tensor, Tensor]:
    """A member's logits [B, U] at some ids, and which of them are exact; the others are upper limits."""
    return (z.gather(1, ids), torch.ones_like(ids, dtype=torch.bool)) if isinstance(z, Tensor) else z.known(ids)


def fetch_logits(
    logits: Sequence[Logits], places: Sequence[Tensor], counts: Tensor, can_win: Tensor, weights: Tensor | None
) -> Tensor:
    """Logits [members, B, U] at ids (``places``, [B, U] each); NaN in rows where a member cannot give what is needed.

    ``counts`` [members, B, U] are those needed, and ``can_win`` [B, U] the entries that the primary can express. With
    ``weights``, rows whose winner is certain without more logits are skipped.
    """
    fetched = False
    while True:
        known = [_known(z, place) for z, place in zip(logits, places, strict=True)]
        # Members may compute in different types.
        width = max((values.dtype for values, _ in known), key=lambda dtype: dtype.itemsize)
        values = torch.stack([part.to(width) for part, _ in known])
        missing = counts & ~torch.stack([exact for _, exact in known])
        if weights is not None:
            # An unknown logit is at most the smallest one that its member sent.
            highest = values.masked_fill(~counts, -torch.inf)
            missing &= ~is_certain(highest, ~missing, weights, can_win)[:, None]
        needed = [
            (z, place, wanted)
            for z, place, wanted in zip(logits, places, missing, strict=True)
            if not isinstance(z, Tensor) and bool(wanted.any())
        ]
        if not needed:
            return values
        if fetched:
            for z, _, wanted in needed:
                z.give_up(wanted.any(dim=1))
            continue
        # All requests are sent before the first reply is awaited, so that the members answer at the same time.
        for wait in [z.fetch(place, wanted) for z, place, wanted in needed]:
            wait()
        fetched = True
