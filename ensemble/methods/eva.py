"""EVA: every other member's token goes to primary tokens with like output embeddings, then averaging with a filter.

"Bridging the Gap between Different Vocabularies for LLM Ensemble" (Xu et al., NAACL 2024), a baseline of the papers on
DeePEn (appendix B) and SweetSpan. A projection between the output embeddings of two models is learned from the tokens
that both have; the likeness of projected embeddings says which of the primary's tokens another's token counts for. A
member whose likeliest token nobody else finds likely is left out of the step.

The papers at hand say no more; the rest was chosen, with the numbers of the authors' published code:

- Embeddings have length 1, then mean 0 over the vocabulary, then length 1 again. Between models of one width the
  projection is the best orthogonal one (Procrustes), else the least squares one. DeePEn's authors could not use EVA
  for models of different widths.
- Tokens that both have, and EOS, go to themselves. Any other goes to the ``cells`` tokens of the highest cosine
  (10), of those that reach ``threshold`` (0.1), in proportion to it. More than 5 whose cosines are all but equal
  (standard deviation up to 0.01) say nothing: such a token, like one without any, counts for nothing, and what is left
  of the member's distribution is renormalised. The authors correct cosines for hubs (CSLS) first; that would take all
  pairs of both vocabularies, and is left out.
- A member stays in a step if its likeliest token is among the ``agree`` likeliest (3) of another, all seen on the
  primary's vocabulary. If none stays, all do. The weights of those that stay are renormalised.

The mapping is made block by block and kept in the user's cache folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.methods._embeddings import common_entries, unit_, unit_embeddings
from ensemble.methods._mapped import Mapping, average, kept, tokens
from ensemble.step.token_method import Setup, TokenRule
from ensemble.vocabulary.joint import NONE

METHOD = Method(
    level="token",
    summary="the mean on the primary's vocabulary, others' tokens counted for those of like embeddings (EVA, 2024)",
    when="to compare with it: three or more members, so that its filter finds who is alone",
)
_MANY, _ALIKE = 5, 0.01
_BLOCK = 2**24
"""Cosines that are held at a time."""
_COMMON = 2**13
"""Common tokens that the projection is learned from at a time."""


@dataclass(frozen=True, slots=True)
class Options:
    """EVA's settings.

    Attributes:
        cells: Tokens of the primary that a token goes to at most, at least 1.
        threshold: The lowest cosine that counts, above 0.
        agree: Among how many of another member's likeliest tokens a member's likeliest must be; 0 for no filter.
    """

    cells: int = 10
    threshold: float = 0.1
    agree: int = 3

    def __post_init__(self) -> None:
        if self.cells < 1:
            raise InputError(f"cells is {self.cells}; a token goes to at least 1")
        if not 0 < self.threshold <= 1:
            raise InputError(f"threshold is {self.threshold}; it must be above 0 and at most 1")
        if self.agree < 0:
            raise InputError(f"agree is {self.agree}; it must be 0 (no filter) or more")


def make(setup: Setup, options: Options) -> TokenRule:
    """EVA for some members.

    Raises:
        InputError: A member has too few tokens in common with the primary, or embeddings that cannot be read.
    """
    if len(setup.members) == 1:
        return TokenRule(average(setup, []))
    candidates = [torch.nonzero(tables.entry_of != NONE).squeeze(1) for tables in setup.joint.members]
    for n in range(1, len(setup.members)):
        common_entries("eva", setup, (0, n))
    first, *others = (
        _Embedded.of(centred_(unit_embeddings("eva", member, "output", ids)))
        for member, ids in zip(setup.members, candidates, strict=True)
    )
    mappings = []
    for n, other in enumerate(others, start=1):
        prints = [member.vocabulary.fingerprint for member in (setup.members[0], setup.members[n])]
        key = " ".join(["eva", *prints, first.digest, other.digest, f"{options.cells} {options.threshold}"])
        mappings.append(kept(key, partial(by_embedding, setup, n, first.vectors, other.vectors, options)))
    return TokenRule(average(setup, mappings, faithful(options.agree) if options.agree else None))


def centred_(vectors: Tensor) -> Tensor:
    """Vectors [V, width] of length 1 around their mean, in place."""
    return unit_(vectors.sub_(vectors.mean(dim=0)))


def projection(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """What takes some vectors near to their counterparts: a matrix [d, e] in float64, orthogonal where d = e.

    Args:
        pairs: The vectors and their counterparts, [n, d] and [n, e], in one block or several.
    """
    crossed, squared = torch.zeros(()), torch.zeros(())
    for theirs, counterparts in pairs:
        wide = theirs.double()
        crossed = crossed + wide.T @ counterparts.double()
        squared = squared + wide.T @ wide
    if crossed.shape[0] == crossed.shape[1]:
        left, _, right = torch.linalg.svd(crossed)
        matrix: Tensor = left @ right
    else:
        matrix = torch.linalg.pinv(squared, hermitian=True) @ crossed
    return matrix


def by_embedding(setup: Setup, member: int, primary: Tensor, other: Tensor, options: Options) -> Mapping:
    """The mapping of a member's tokens to those of the primary with like embeddings.

    Args:
        setup: The members.
        member: Whose tokens.
        primary: [rows, width] the primary's embeddings of length 1, those of its candidates in ascending order of ids.
        other: Likewise the member's.
        options: How many tokens one goes to, and how like they must be.
    """
    ids, own_ids = (
        torch.nonzero(tables.entry_of != NONE).squeeze(1)
        for tables in (setup.joint.members[member], setup.joint.members[0])
    )
    beside = tokens(setup.joint, member)
    rows = (torch.searchsorted(ids, beside.common[0]), torch.searchsorted(own_ids, beside.common[1]))
    blocks = zip(*(own.split(_COMMON) for own in rows), strict=True)
    matrix = projection((other[theirs], primary[counterparts]) for theirs, counterparts in blocks).to(other.dtype)
    cells = [(*beside.common, primary.new_ones(beside.common.shape[1]))]
    for foreign in beside.foreign.split(max(1, _BLOCK // len(own_ids))):
        projected = unit_(other[torch.searchsorted(ids, foreign)] @ matrix).to(primary.dtype)
        likeness, places = (projected @ primary.T).topk(min(options.cells, len(own_ids)), dim=1)
        share = _truncated(likeness, options.threshold)
        row, column = torch.nonzero(share, as_tuple=True)
        cells.append((foreign[row], own_ids[places[row, column]], share[row, column]))
    return Mapping(*(torch.cat(parts) for parts in zip(*cells, strict=True)))


def faithful(agree: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The filter: weights [members, B] without the members that nobody agrees with.

    Args:
        agree: See :class:`Options`.
    """

    def reweigh(members: Tensor, weights: Tensor) -> Tensor:
        best = members.argmax(dim=2)
        likely = members.topk(min(agree, members.shape[2]), dim=2).indices
        # [whose token, among whose likeliest, row]
        found = (best[:, None, :, None] == likely[None]).any(dim=3)
        found &= ~torch.eye(len(members), dtype=torch.bool, device=members.device)[:, :, None]
        staying = weights * found.any(dim=1)
        total = staying.sum(dim=0, keepdim=True)
        return torch.where(total > 0, staying / total, weights)

    return reweigh


def _truncated(likeness: Tensor, threshold: float) -> Tensor:
    """The share [tokens, cells] of each cell, 0 where it does not count."""
    counts = likeness >= threshold
    many = counts.sum(dim=1, keepdim=True)
    mean = (likeness * counts).sum(dim=1, keepdim=True) / many
    deviation = (((likeness - mean).square() * counts).sum(dim=1, keepdim=True) / many).sqrt()
    share = likeness * (counts & ~((many > _MANY) & (deviation <= _ALIKE)))
    return share / share.sum(dim=1, keepdim=True).clamp(min=torch.finfo(share.dtype).tiny)


@dataclass(frozen=True, slots=True)
class _Embedded:
    """Embeddings, and a digest of them that a cache can be keyed by."""

    vectors: Tensor
    digest: str

    @classmethod
    def of(cls, vectors: Tensor) -> _Embedded:
        return cls(vectors, hashlib.sha256(vectors.contiguous().cpu().numpy().data).hexdigest())
