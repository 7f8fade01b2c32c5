"""UNITE, union top-k ensembling: section 4.2 of "Determine-Then-Ensemble" (ICLR 2025).

Each member's k most likely tokens are joined; each member's probabilities are renormalised on that union; their
(weighted) mean decides. ``Jam``, wanted by one member, and ``James``, wanted by another, meet in the union: where a
vocabulary lacks ``James``, the logit of the first token of its spelling stands for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.runtime.logits import Logits, RemoteLogits, are_remote, whole
from ensemble.step import means as mixing
from ensemble.step.distribution import Distribution, candidate_logits, is_certain
from ensemble.step.token_method import Combine, Setup, TokenRule, needed_and_safe
from ensemble.vocabulary.joint import NONE, JointVocabulary

METHOD = Method(
    level="token",
    summary="the mean over the union of every member's top k tokens (Yao et al., ICLR 2025)",
    when="the one to begin with: any vocabularies, and hardly dearer than its members",
    apart=True,
)


@dataclass(frozen=True, slots=True)
class Options:
    """What goes together with UNITE.

    Attributes:
        gate: ``safe`` combines only where it is safe and needed (see :mod:`ensemble.methods.safe`); None everywhere.
        mean: ``arithmetic``, the paper's, or ``geometric`` (see :mod:`ensemble.methods.geometric`).
        consistency: Whether members are weighted by how sure they are and how near the others, step by step (see
            :mod:`ensemble.methods.core`).
    """

    gate: str | None = None
    mean: str = "arithmetic"
    consistency: bool = False

    def __post_init__(self) -> None:
        if self.gate not in {None, "safe"}:
            raise InputError(f"gate {self.gate!r}: give safe, or None")
        if self.mean not in {"arithmetic", "geometric"}:
            raise InputError(f"mean {self.mean!r}: give arithmetic or geometric")


def make(setup: Setup, options: Options) -> TokenRule:
    """UNITE for some members, with what goes together with it.

    Raises:
        InputError: Weights are given beside those that consistency makes.
    """
    if options.consistency and len(set(setup.weights)) > 1:
        raise InputError("weights: consistency weighs the members, step by step; give no other weights beside it")
    combine = _combine(setup, setup.joint, setup.weights, options)
    if options.gate is None:
        # Other means have bounds of their own.
        plain = options == Options()
        decide = _combine(setup, setup.joint, setup.weights, options, winner=True) if plain else None
        return TokenRule(combine, combine_greedy=decide)
    primary = JointVocabulary(setup.joint.size, setup.joint.members[:1])
    return TokenRule(combine, _combine(setup, primary, (1.0,), Options()), needed_and_safe)


def _combine(
    setup: Setup, joint: JointVocabulary, weights: Sequence[float], options: Options, *, winner: bool = False
) -> Combine:
    shares = torch.tensor(weights, dtype=torch.float64, device=setup.members[0].device)

    def combine(logits: Sequence[Logits], also: Tensor | None = None) -> Distribution:
        step = union(logits, joint, setup.k, shares, also, winner=winner)
        if options.consistency:
            return mixing.consistent(step, geometric=options.mean == "geometric")
        return step if options.mean == "arithmetic" else mixing.geometric(step, shares)

    return combine


def top_k(scores: Sequence[Tensor], k: int) -> list[tuple[Tensor, Tensor]]:
    """For each member the k largest of its logits [B, V_i] and their ids, [B, k]; among equal ones the lower ids."""
    found: list[Sequence[Tensor]] = [z.topk(min(k + 1, z.shape[1]), dim=1) for z in scores]
    borders = torch.cat([values[:, k - 1 :] for values, _ in found if values.shape[1] > k] or [scores[0][:0, :2]])
    # Only a tie at the border can change which ids are in; it is rare, and a stable sort is slow. One look for all.
    if any(values.shape[1] <= k for values, _ in found) or bool((borders[:, :1] == borders[:, 1:]).any()):
        found = [z.sort(dim=1, descending=True, stable=True) for z in scores]
    return [(values[:, :k], ids[:, :k]) for values, ids in found]


@dataclass(frozen=True, slots=True)
class _Asked:
    """Where a step looks for logits.

    Attributes:
        places: For each member ids [B, U].
        penalty: [members, B, U] what is added there.
        absent: [B, U] which of the entries mean nothing.
        ids: [B, U] the primary's, NONE where it cannot express an entry.
        weights: [members], summing to 1.
        winner: Whether the likeliest entry is all that is wanted.
    """

    places: Sequence[Tensor]
    penalty: Tensor
    absent: Tensor
    ids: Tensor
    weights: Tensor
    winner: bool


class _Here:
    """The members' logits where they are in this process."""

    def __init__(self, logits: Sequence[Logits], joint: JointVocabulary) -> None:
        self._scores = [candidate_logits(z, tables) for z, tables in zip(whole(logits), joint.members, strict=True)]

    def tops(self, k: int) -> list[tuple[Tensor, Tensor]]:
        return top_k(self._scores, k)

    def at(self, asked: _Asked) -> Tensor:
        return torch.stack([z.gather(1, place) for z, place in zip(self._scores, asked.places, strict=True)])


class _Apart:
    """The members' logits where each is on its member's node: all are asked before the first answer is waited for."""

    def __init__(self, logits: Sequence[Logits]) -> None:
        self._members = cast("Sequence[RemoteLogits]", logits)

    def tops(self, k: int) -> list[tuple[Tensor, Tensor]]:
        return [z.top(k) for z in self._members]

    def at(self, asked: _Asked) -> Tensor:
        known = [z.known(place) for z, place in zip(self._members, asked.places, strict=True)]
        values, exact = (torch.stack(each) for each in zip(*known, strict=True))
        # What is no entry, or what a member cannot express, is not worth sending.
        counts = (asked.penalty == 0) & ~asked.absent
        missing = counts & ~exact
        if asked.winner:
            highest = values.masked_fill(~counts, -torch.inf)
            missing &= ~is_certain(highest, ~missing, asked.weights, asked.ids != NONE)[:, None]
        wanted = missing.flatten(1).any(dim=1).tolist()
        waits = [
            (n, z.request(place, missing[n]))
            for n, (z, place) in enumerate(zip(self._members, asked.places, strict=True))
            if wanted[n]
        ]
        for n, wait in waits:
            values[n][missing[n]] = wait().to(values)
        return values


def union(
    logits: Sequence[Logits],
    joint: JointVocabulary,
    k: int,
    weights: Tensor,
    also: Tensor | None = None,
    *,
    winner: bool = False,
) -> Distribution:
    """Steps 1 to 6 of a step for a batch.

    Args:
        logits: For each member its next-token logits [B, V_i], or what stands for them.
        joint: The tables, on the logits' device.
        k: Candidates that each member brings.
        weights: [members], summing to 1.
        also: [B, n] entries that the union holds besides; probabilities are in float64 then.
        winner: Whether the likeliest entry is all that is wanted: where it is certain, members on nodes of their own
            are not asked for logits that could not change it, and the probabilities are rough.
    """
    look = _Apart(logits) if are_remote(logits) else _Here(logits, joint)
    found = look.tops(k)
    # NONE where a member has fewer candidates than k, or rules some out.
    tops = [tables.entry_of.take(ids) for (_, ids), tables in zip(found, joint.members, strict=True)]
    wanted = torch.cat(tops, dim=1)
    wanted.masked_fill_(torch.cat([values for values, _ in found], dim=1) == -torch.inf, NONE)
    entries = (wanted if also is None else torch.cat([wanted, also], dim=1)).sort(dim=1).values
    absent = entries == NONE
    absent[:, 1:] |= entries[:, 1:] == entries[:, :-1]
    # NONE takes the last place of a table, as any index of -1; what is found there is masked out.
    places = [tables.place_of.take(entries) for tables in joint.members]
    penalty = torch.stack([tables.penalty_of.take(entries) for tables in joint.members])
    ids = joint.members[0].id_of.take(entries).masked_fill_(absent, NONE)
    on_union = look.at(_Asked(places, penalty, absent, ids, weights, winner)).add_(penalty)
    if also is not None:
        on_union = on_union.double()
    members = on_union.masked_fill_(absent, -torch.inf).softmax(dim=2)
    mean = (members * weights.to(members)[:, None, None]).sum(dim=0)
    split = wanted.split([top.shape[1] for top in tops], dim=1)
    return Distribution(entries, ~absent, ids, members, mean, split)
