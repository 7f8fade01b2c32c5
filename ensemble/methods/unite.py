"""UNITE, union top-k ensembling: section 4.2 of "Determine-Then-Ensemble" (ICLR 2025).

The k most likely tokens of each member form a union. Each member's probabilities are renormalised on the union, and
their weighted mean decides. If one member wants ``Jam`` and another one ``James``, both are in the union. A member
whose vocabulary lacks ``James`` uses the logit of the first token of its spelling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.runtime.logits import Logits, are_remote, whole
from ensemble.step import compiled
from ensemble.step import means as mixing
from ensemble.step.distribution import Distribution, at_least_single, is_certain, mask_
from ensemble.step.fused import fused
from ensemble.step.token_method import Combine, Setup, TokenRule, needed_and_safe
from ensemble.vocabulary.joint import NONE, JointVocabulary

_RANKED, _RANKED_AT_ONCE = 32, 2**14
"""Below these sizes (values of a row over k, values of all rows) a row is searched whole; measured."""
_SORTED, _SORTED_AT_ONCE = 16, 2**10
"""The same where they are sorted: few values, and those in double precision."""
_CONVERTED = 2**18
"""Values of half precision that are converted at a time."""
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
        gate: ``safe`` combines the members only where it is safe and needed (see :mod:`ensemble.methods.safe`, whose
            distribution is also sharpened); None combines them at every step.
        mean: ``arithmetic`` as in the paper, or ``geometric`` (see :mod:`ensemble.methods.geometric`).
        consistency: Whether each step weights the members by their certainty and their agreement with the others (see
            :mod:`ensemble.methods.consistency`).
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
    """For each member the k largest of its logits [B, V_i] and their ids, both [B, k]; lower ids first among equals.

    It needs no copy from the device. Where a logit is NaN, one of the k values of its row is NaN.
    """
    found = [_first(z, min(k, z.shape[1])) for z in scores]
    return [(z.gather(1, ids), ids) for z, ids in zip(scores, found, strict=True)]


def _first(values: Tensor, k: int) -> Tensor:
    """The positions [B, k] of the k largest values [B, n]; lower positions first among equals."""
    rows, width = values.shape
    # Of few values a sort is the quickest, being a single operation.
    if rows * width <= _SORTED_AT_ONCE or (values.dtype == torch.float64 and width <= _SORTED * k):
        return values.sort(dim=1, descending=True, stable=True).indices[:, :k]
    if values.dtype != torch.float64 and (width <= _RANKED * k or rows * width <= _RANKED_AT_ONCE):
        return _first_by_key(values, k)
    # The row is cut into chunks of neighbours, and the chunks are put in the order of their first values: those that
    # come before all others of their chunk. If a chunk is not among the first k, then k values of other chunks come
    # before its first value, and so before all its values. Therefore the k largest are in the first k chunks. The first
    # value of a chunk is its maximum, and of two equal maxima the one in the lower chunk has the lower position. So the
    # order of the chunks is that of their maxima, among equals by number, which this function finds.
    size = 2 ** round(math.log2(width / k) / 2)
    whole = width - width % size
    chunks = _first(_maxima(values[:, :whole], size), k).sort(dim=1).values
    positions = (chunks[:, :, None] * size + _constant(_range, size, values.device)).flatten(1)
    if whole < width:
        # What is left over at the end of the rows is less than a chunk, and always taken.
        rest = _constant(_range, width, values.device)[whole:].expand(rows, -1)
        positions = torch.cat([positions, rest], dim=1)
    # The chunks are in ascending order, so among equals the lower place is the lower position.
    best: Tensor = positions.gather(1, _first(values.gather(1, positions), k))
    return best


def _maxima(values: Tensor, size: int) -> Tensor:
    """The maxima [B, n / size] of chunks of neighbours."""
    shape = (-1, values.shape[1] // size, size)
    if values.dtype not in (torch.float16, torch.bfloat16) or values.device.type != "cpu":
        return values.view(shape).amax(dim=2)
    # A processor computes in single precision. To convert a few rows at a time keeps them in its cache.
    parts = values.split(max(1, _CONVERTED // values.shape[1]))
    return torch.cat([part.float().view(shape).amax(dim=2) for part in parts])


def _first_by_key(values: Tensor, k: int) -> Tensor:
    """See :func:`_first`; for types of at most single precision, several times as fast as a sort of many values.

    torch.topk leaves the order of equals open. So equals are made different, in double precision: from each value
    ``v`` the ``(|v| + 2^-149) * 2^-48`` fold of its position is subtracted. Two different values of single precision
    are at least ``(|v| + 2^-149) * 2^-25`` apart, where v is the one farther from 0. So up to position 2^23 nothing
    that is smaller comes before what is larger.
    """
    # An infinite value would swallow what is subtracted; beyond the range of single precision any other number will do.
    wide = values.double().clamp_(-1e39, 1e39)
    keys = wide.addcmul(wide.abs().add_(2.0**-149), _constant(_steps, values.shape[1], values.device))
    return keys.topk(k, dim=1).indices


def _range(width: int, device: torch.device) -> Tensor:
    return torch.arange(width, device=device)


def _steps(width: int, device: torch.device) -> Tensor:
    return torch.arange(width, dtype=torch.float64, device=device) * -(2.0**-48)


def _constant(make: Callable[[int, torch.device], Tensor], width: int, device: torch.device) -> Tensor:
    """What a function makes for a width: the tensor of an earlier step, but in compiled code, which makes its own."""
    return make(width, device) if torch.compiler.is_compiling() else _kept(make, width, device)


@lru_cache(maxsize=128)  # a few for each size of vocabulary
def _kept(make: Callable[[int, torch.device], Tensor], width: int, device: torch.device) -> Tensor:
    return make(width, device)


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
    for z, tables in zip(logits, joint.members, strict=True):
        if isinstance(z, Tensor):
            mask_(z, tables)
    remote = are_remote(logits)
    if not remote and also is None and (step := compiled.union(whole(logits), joint, k, weights)) is not None:
        return step
    if not remote:
        shared = [tables.entry_of for tables in joint.members]
        parts = _on_tensors(whole(logits), shared, joint.places, joint.penalties, k, weights, also)
        return Distribution(*parts)
    largest = tops_of(logits, k)
    wanted, tops = _wanted(largest, [tables.entry_of for tables in joint.members], joint.places, also)
    entries, present, places, ids, penalty = _look_up(wanted, joint.places, joint.penalties)
    # Logits of absent entries, and of entries that a member cannot express, are not worth sending.
    on_union = fetch_logits(logits, places, penalty == 0, ids != NONE, weights if winner else None)
    members, mean = _mean(on_union, penalty, weights, exact=also is not None)
    return Distribution(entries, present, ids, members, mean, tops)


@fused
def _on_tensors(
    logits: Sequence[Tensor],
    entry_of: Sequence[Tensor],
    all_places: Tensor,
    penalties: Tensor,
    k: int,
    weights: Tensor,
    also: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    """A step whose logits are all here: the fields of :class:`Distribution`."""
    wanted, tops = _wanted(top_k(logits, k), entry_of, all_places, also)
    entries, present, places, ids, penalty = _look_up(wanted, all_places, penalties)
    on_union = torch.stack([z.gather(1, place) for z, place in zip(logits, places, strict=True)])
    members, mean = _mean(on_union, penalty, weights, exact=also is not None)
    return entries, present, ids, members, mean, tops


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
    """The entries [B, U] of the union in order and which are present; each one's place in the members, id and penalty.

    Penalties are [members, B, U], all else [B, U].
    """
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
