"""UNITE, union top-k ensembling: section 4.2 of "Determine-Then-Ensemble" (ICLR 2025).

The k most likely tokens of each member form a union. Each member's probabilities are renormalised on the union, and
their weighted mean decides. If one member wants ``Jam`` and another one ``James``, both are in the union. A member
whose vocabulary lacks ``James`` uses the logit of the first token of its spelling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.runtime.logits import Logits, are_remote, whole
from ensemble.step import means as mixing
from ensemble.step.distribution import Distribution, candidate_logits, is_certain
from ensemble.step.token_method import Combine, Setup, TokenRule, needed_and_safe
from ensemble.vocabulary.joint import NONE, JointVocabulary

METHOD = Method(
    level="token",
    summary="the mean over the union of every member's top k tokens (Yao et al., ICLR 2025)",
    when="the first choice: any vocabularies, at little more than the cost of the members",
    distributed=True,
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of UNITE.

    Attributes:
        gate: ``safe`` combines the members only where it is safe and needed (see :mod:`ensemble.methods.safe`); None
            combines them at every step.
        mean: ``arithmetic`` as in the paper, or ``geometric`` (see :mod:`ensemble.methods.geometric`).
        consistency: Whether each step weights the members by their certainty and their agreement with the others (see
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
    """Make the rule.

    Raises:
        InputError: Weights are given together with ``consistency``, which computes its own.
    """
    if options.consistency and len(set(setup.weights)) > 1:
        raise InputError("weights: consistency weighs the members at each step; do not give weights with it")
    combine = _combine(setup, setup.joint, setup.weights, options)
    if options.gate is not None:
        # The primary's own distribution, for the steps where the gate is closed.
        primary = JointVocabulary(setup.joint.size, setup.joint.members[:1])
        return TokenRule(combine, _combine(setup, primary, (1.0,), Options()), needed_and_safe)
    # The bounds that allow to skip logits (is_certain) are those of the arithmetic mean with fixed weights.
    plain = options == Options()
    return TokenRule(
        combine, combine_greedy=_combine(setup, setup.joint, setup.weights, options, winner=True) if plain else None
    )


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
    """For each member the k largest of its logits [B, V_i] and their ids, both [B, k]; lower ids first among equals."""
    largest: list[Sequence[Tensor]] = [z.topk(min(k + 1, z.shape[1]), dim=1) for z in scores]
    borders = torch.cat([values[:, k - 1 :] for values, _ in largest if values.shape[1] > k] or [scores[0][:0, :2]])
    # topk leaves the order of equal logits open, which matters only for a tie at place k. Ties are rare and a stable
    # sort is slow, so it runs only after a tie. All members are compared at once: each check waits for the device.
    if any(values.shape[1] <= k for values, _ in largest) or bool((borders[:, :1] == borders[:, 1:]).any()):
        largest = [z.sort(dim=1, descending=True, stable=True) for z in scores]
    return [(values[:, :k], ids[:, :k]) for values, ids in largest]


def union(
    logits: Sequence[Logits],
    joint: JointVocabulary,
    k: int,
    weights: Tensor,
    also: Tensor | None = None,
    *,
    winner: bool = False,
) -> Distribution:
    """Steps 1 to 6 of UNITE for a batch.

    Args:
        logits: For each member its next-token logits [B, V_i], or what another process tells of them.
        joint: The tables, on the device of the logits.
        k: Candidates of each member.
        weights: [members], with sum 1.
        also: [B, n] entries to add to the union; then probabilities are in float64.
        winner: Whether only the likeliest entry is needed. Then logits on other nodes that cannot change it are not
            fetched, and the probabilities are approximate.
    """
    held = [
        candidate_logits(z, tables) if isinstance(z, Tensor) else z
        for z, tables in zip(logits, joint.members, strict=True)
    ]
    remote = are_remote(held)
    largest = tops_of(held, k) if remote else top_k(whole(held), k)
    # An entry is NONE where a member has fewer candidates than k, or excludes some of them.
    tops = [tables.entry_of.take(ids) for (_, ids), tables in zip(largest, joint.members, strict=True)]
    wanted = torch.cat(tops, dim=1)
    wanted.masked_fill_(torch.cat([values for values, _ in largest], dim=1) == -torch.inf, NONE)
    entries = (wanted if also is None else torch.cat([wanted, also], dim=1)).sort(dim=1).values
    # Sorted entries put duplicates side by side; all but the first of them are absent.
    absent = entries == NONE
    absent[:, 1:] |= entries[:, 1:] == entries[:, :-1]
    # The index NONE (-1) reads the last row of a table; `absent` masks these values below.
    places = [tables.place_of.take(entries) for tables in joint.members]
    penalty = torch.stack([tables.penalty_of.take(entries) for tables in joint.members])
    ids = joint.members[0].id_of.take(entries).masked_fill_(absent, NONE)
    if remote:
        # Logits of absent entries, and of entries that a member cannot express, are not worth sending.
        counts = (penalty == 0) & ~absent
        on_union = fetch_logits(held, places, counts, ids != NONE, weights if winner else None)
    else:
        on_union = torch.stack([z.gather(1, place) for z, place in zip(whole(held), places, strict=True)])
    on_union.add_(penalty)
    if also is not None:
        # Scored entries can be so unlikely that their probability is 0 in float32.
        on_union = on_union.double()
    members = on_union.masked_fill_(absent, -torch.inf).softmax(dim=2)
    mean = (members * weights.to(members)[:, None, None]).sum(dim=0)
    split = wanted.split([top.shape[1] for top in tops], dim=1)
    return Distribution(entries, ~absent, ids, members, mean, split)


def tops_of(logits: Sequence[Logits], k: int) -> list[tuple[Tensor, Tensor]]:
    """:func:`top_k` where some members are elsewhere."""
    return [top_k([z], k)[0] if isinstance(z, Tensor) else z.top(k) for z in logits]


def _known(z: Logits, ids: Tensor) -> tuple[Tensor, Tensor]:
    """A member's logits [B, U] at some ids, and which of them are exact; the others are upper limits."""
    return (z.gather(1, ids), torch.ones_like(ids, dtype=torch.bool)) if isinstance(z, Tensor) else z.known(ids)


def fetch_logits(
    logits: Sequence[Logits], places: Sequence[Tensor], counts: Tensor, can_win: Tensor, weights: Tensor | None
) -> Tensor:
    """Logits [members, B, U] at given ids, of members of which some are in other processes.

    Args:
        logits: Each member's.
        places: For each member the ids [B, U].
        counts: [members, B, U] which of them are needed.
        can_win: [B, U] the entries that the primary can express.
        weights: [members], to skip rows whose winner is certain without more logits; None to fetch all.

    Returns:
        The logits; NaN in rows where a member cannot give what is needed.
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
