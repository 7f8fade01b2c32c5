"""UNITE, union top-k ensembling: section 4.2 of "Determine-Then-Ensemble" (ICLR 2025).

The k most likely tokens of each member form a union. Each member's probabilities are renormalised on the union, and
their weighted mean decides. If one member wants ``Jam`` and another one ``James``, both are in the union. A member
whose vocabulary lacks ``James`` uses the logit of the first token of its spelling.

The script of the paper's authors for two models has another rule for members with a byte-level vocabulary, such as
Qwen2 and Llama 3, which the option ``published`` gives:

- A token that the member lacks is tokenized as vocabularies write it, with ``Ġ`` for a space, as if that were text.
- If another entry has that first id already, this entry has the logit 0. Of two entries with an id, the member's own
  token has it first. Of two that the member lacks, the one first in the joint vocabulary has it; in the script the
  order of a Python set decides, which changes from run to run.

The script excepts DeepSeek by its name. There a line break that only the other member wants is the text ``/n``, and
special tokens are candidates; both are not so here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.runtime.logits import Logits, are_remote, top_k, whole
from ensemble.step import compiled
from ensemble.step.distribution import Distribution, at_least_single, geometric, is_certain, mask_
from ensemble.step.token_method import Combine, Setup, TokenRule
from ensemble.vocabulary.joint import NONE, JointVocabulary, MemberTables, texts_of
from ensemble.vocabulary.token_bytes import BYTE_TO_CHARACTER

METHOD = Method(
    level="token",
    summary="the mean over the union of every member's top k tokens (Yao et al., ICLR 2025)",
    when="the first choice: any vocabularies, at little more than the cost of the members",
    distributed=True,
)


Mean = Literal["arithmetic", "geometric"]
"""``arithmetic`` as in the paper, or ``geometric`` (see :mod:`ensemble.methods.geometric`)."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of UNITE.

    Attributes:
        published: Whether a step has the rule of the authors' script for two models (see
            :mod:`ensemble.methods.unite`), for comparisons with it.
    """

    published: bool = False


def make(setup: Setup, options: Options) -> TokenRule:
    """Make the rule."""
    if options.published:
        return TokenRule(_published(setup))
    # The bounds that allow to skip logits (is_certain) are those of the arithmetic mean with fixed weights.
    return TokenRule(combined(setup), combine_greedy=combined(setup, winner=True))


def combined(setup: Setup, mean: Mean = "arithmetic", *, winner: bool = False) -> Combine:
    """Step 1 to 6 with a mean of the members' probabilities; ``winner`` as in :func:`union`."""
    shares = torch.tensor(setup.weights, dtype=torch.float64, device=setup.members[0].device)

    def combine(logits: Sequence[Logits], also: Tensor | None = None) -> Distribution:
        step = union(logits, setup.joint, setup.k, shares, also, winner=winner)
        return step if mean == "arithmetic" else geometric(step, shares)

    return combine


def _published(setup: Setup) -> Combine:
    """Steps 1 to 6 by the rule of the authors' script for two models."""
    if len(setup.members) > 2:
        raise InputError(
            "published is for one or two members; the authors' script for three has the rule without it",
            of="method unite",
        )
    if not all(member.is_here for member in setup.members):
        raise InputError(
            "published needs logits, and members behind servers send log-probabilities; leave it out", of="method unite"
        )
    byte_level = [member.vocabulary.is_byte_level for member in setup.members]
    tables = [_as_written(setup, n) if is_one else setup.joint.members[n] for n, is_one in enumerate(byte_level)]
    joint = JointVocabulary(setup.joint.size, tuple(tables))
    device = setup.members[0].device
    shares = torch.tensor(setup.weights, dtype=torch.float64, device=device)
    zeroed = torch.tensor(byte_level, device=device)[:, None, None]

    def combine(logits: Sequence[Logits], also: Tensor | None = None) -> Distribution:
        return union(logits, joint, setup.k, shares, also, zeroed=zeroed)

    return combine


def _as_written(setup: Setup, member: int) -> MemberTables:
    """The tables of a byte-level member where a token that it lacks is tokenized as the other vocabulary writes it."""
    tables, vocabulary = setup.joint.members[member], setup.members[member].vocabulary
    other = setup.members[-1 - member].vocabulary
    texts = texts_of(tuple(each.vocabulary for each in setup.members))
    lacking = (~tables.owned()).nonzero()[:, 0].tolist()
    space = BYTE_TO_CHARACTER[ord(" ")].encode()
    written = [
        "".join(BYTE_TO_CHARACTER[byte] for byte in texts[entry]).encode()
        if other.is_byte_level
        else texts[entry].replace(b" ", space)
        for entry in lacking
    ]
    id_of = tables.id_of.tolist()
    for entry, ids in zip(lacking, vocabulary.continue_batch(written), strict=True):
        id_of[entry] = ids[0] if ids and tables.entry_of[ids[0]] != NONE else NONE
    return replace(tables, id_of=torch.tensor(id_of, device=tables.id_of.device))


def union(
    logits: Sequence[Logits],
    joint: JointVocabulary,
    k: int,
    weights: Tensor,
    also: Tensor | None = None,
    *,
    winner: bool = False,
    zeroed: Tensor | None = None,
) -> Distribution:
    """Steps 1 to 6 of UNITE for a batch, by logits [B, V_i] of each member, or what another process tells of them.

    With ``also`` [B, n], entries to add to the union, probabilities are in float64. ``winner``: only the likeliest
    entry is needed; then logits elsewhere that cannot change it are not fetched, and the probabilities are approximate.
    ``zeroed`` [members, 1, 1]: those, all here, for which an entry has the logit 0 if another one has its id already.
    """
    for z, tables in zip(logits, joint.members, strict=True):
        if isinstance(z, Tensor):
            mask_(z, tables)
    remote = are_remote(logits)
    # The compiled code scores no entries, and does not know the published rule.
    by_tensors = remote or also is not None or zeroed is not None
    if not by_tensors and (step := compiled.union(whole(logits), joint, k, weights)) is not None:
        return step
    entry_of = [tables.entry_of for tables in joint.members]
    wanted, tops = _wanted(tops_of(logits, k), entry_of, joint.places, also)
    entries, present, places, ids, penalty = _look_up(wanted, joint.places, joint.penalties)
    if remote:
        # Logits of absent entries, and of entries that a member cannot express, are not worth sending.
        on_union = fetch_logits(logits, places, penalty == 0, ids != NONE, weights if winner else None)
    else:
        on_union = torch.stack([z.gather(1, place) for z, place in zip(whole(logits), places, strict=True)])
    if zeroed is not None:
        own = torch.stack([tables.take(place) for tables, place in zip(entry_of, places, strict=True)]) == entries
        on_union = on_union.masked_fill(zeroed & _taken(torch.stack(places), own, penalty == 0), 0.0)
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


def _taken(places: Tensor, own: Tensor, expressed: Tensor) -> Tensor:
    """[members, B, U]: the entries at whose place another one is before them; those that are ``own`` come first."""
    same = (places[..., :, None] == places[..., None, :]) & expressed[..., None, :]
    in_order = torch.ones(same.shape[-2:], dtype=torch.bool, device=places.device).tril(-1)
    return (same & (own[..., None, :] | in_order)).any(dim=3) & ~own


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
