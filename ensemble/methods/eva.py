"""EVA: other members' tokens are mapped to the primary's by their output embeddings, then averaged with a filter.

"Bridging the Gap between Different Vocabularies for LLM Ensemble" (Xu et al., NAACL 2024), a baseline in the papers on
DeePEn (appendix B) and SweetSpan. The defaults are those of the authors' published code:

- Embeddings are scaled to length 1, centred over the vocabulary, and scaled to length 1 again. Then they are mapped to
  one space by the supervised mapping of VecMap (Artetxe et al., AAAI 2018), learned from the common tokens: whitening,
  rotation, re-weighting by the roots of the singular values, de-whitening.
- The similarity of two tokens is CSLS: twice their cosine, less the target's highest cosine, so that a token that is
  near to everything is not the target of everything.
- A token is mapped to the ``cells`` tokens with the highest similarity (10) that reach ``threshold`` (0.1). If more
  than 5 similarities are almost equal (standard deviation up to 0.01) they carry no information, and the token does not
  count. A common token is treated like any other; EOS is mapped to EOS, and no other token is.
- At a step each member keeps its ``top`` likeliest tokens (320). A token's probability times the similarity goes to
  each of its targets. These sums are not scaled to 1, so a member counts less where its tokens have no good targets.
- A member stays in a step if its likeliest token is among the ``agree`` likeliest tokens (3) of another member, all on
  the primary's vocabulary. If no member stays, all do. The weights of the remaining members are renormalised.

Differences from the authors' code:

- Their code needs models of the same width. Here the singular value decomposition is the thin one, so that the common
  space has the smaller width; with equal widths it is the same. Directions that the common tokens do not span are left
  out, where their code divides by 0. With fewer common tokens than dimensions (84 and 128 in the demo), all singular
  values are 1 after whitening, and re-weighting has no effect.
- Candidates are the tokens with bytes, and EOS. Their code has all rows of the matrix, special tokens included.
- While given tokens are scored, members keep all tokens: else most scores would be those of probability 0.

The mapping is saved in the user's cache folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial, reduce

import torch
from torch import Tensor

from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.methods._mapping import (
    TokenMapping,
    average_mapped,
    common_and_foreign,
    common_entries,
    load_or_make,
    unit_,
    unit_embeddings,
)
from ensemble.step.token_method import Setup, TokenRule
from ensemble.vocabulary.joint import EOS, NONE

METHOD = Method(
    level="token",
    summary="the mean on the primary's vocabulary; other tokens are mapped by their embeddings (EVA, 2024)",
    when="comparisons, with three or more members: its filter drops a member that disagrees with all others",
    version=2,
)
_FLAT_CELLS, _FLAT_DEVIATION = 5, 0.01
"""More similarities than this, with at most this standard deviation, carry no information."""
_BLOCK = 2**24
"""Cosines that are in memory at a time."""
_COMMON = 2**13
"""Common tokens that are in memory at a time while the mapping is learned."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of EVA; the defaults are those of the authors' code.

    Attributes:
        cells: The most tokens of the primary that a token is mapped to, at least 1.
        threshold: The lowest similarity that counts, above 0.
        top: How many of its likeliest tokens a member keeps at a step; 0 for all.
        agree: A member stays if its likeliest token is among this many likeliest tokens of another member; 0 for no
            filter.
    """

    cells: int = 10
    threshold: float = 0.1
    top: int = 320
    agree: int = 3

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise InputError(f"threshold is {self.threshold}; it must be above 0 and at most 1")
        for name, meaning in (("top", "all tokens"), ("agree", "no filter")):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must be 0 ({meaning}) or more")
        if self.cells < 1:
            raise InputError(f"cells is {self.cells}; it must be at least 1")


def make(setup: Setup, options: Options) -> TokenRule:
    """Make the rule; InputError for too few tokens in common, or embeddings that cannot be read."""
    if len(setup.members) == 1:
        return TokenRule(average_mapped(setup, []))
    # All members are checked first, because the mappings below take long for large vocabularies.
    for n in range(1, len(setup.members)):
        common_entries("eva", setup, (0, n))
    embeddings = []
    for member, tables in zip(setup.members, setup.joint.members, strict=True):
        ids = torch.nonzero(tables.entry_of != NONE).squeeze(1)
        vectors = unit_embeddings("eva", member, "output", ids)
        embeddings.append(unit_(vectors.sub_(vectors.mean(dim=0))))
    # Models with the same tokenizer can have different embeddings, so these are in the key of the cache, too.
    hashes = [hashlib.sha256(vectors.contiguous().cpu().numpy().data).hexdigest() for vectors in embeddings]
    prints = [member.vocabulary.fingerprint for member in setup.members]
    mappings = []
    for n in range(1, len(setup.members)):
        key = f"eva {prints[0]} {prints[n]} {hashes[0]} {hashes[n]} {options.cells} {options.threshold}"
        mappings.append(load_or_make(key, partial(_by_embedding, setup, n, embeddings[0], embeddings[n], options)))
    reweigh = faithful(options.agree) if options.agree else None
    return TokenRule(average_mapped(setup, mappings, reweigh, top=options.top, by_mass=True))


def alignment(pairs: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The matrices [d, m] and [e, m] that map two models' embeddings to one space, in float64.

    ``pairs`` are the vectors [n, d] of common tokens and their counterparts [n, e], in one block or several.
    """
    squares: list[Tensor] = [torch.zeros(()), torch.zeros(())]
    crossed = torch.zeros(())
    for vectors, counterparts in pairs:
        sides = (vectors.double(), counterparts.double())
        squares = [square + side.T @ side for square, side in zip(squares, sides, strict=True)]
        crossed = crossed + sides[0].T @ sides[1]
    whitening = [_roots(square) for square in squares]
    left, strength, right = torch.linalg.svd(whitening[0][0] @ crossed @ whitening[1][0], full_matrices=False)
    # Nothing says which directions correspond that the common tokens do not span: rounding alone would pair them.
    known = strength > strength[0] * max(crossed.shape) * torch.finfo(strength.dtype).eps
    scale = strength[known].sqrt()
    first, second = (
        white @ turn * scale @ (turn.T @ back @ turn)
        for (white, back), turn in zip(whitening, (left[:, known], right[known].T), strict=True)
    )
    return first, second


def _roots(square: Tensor) -> tuple[Tensor, Tensor]:
    """``square ** -1/2``, which whitens, and ``square ** 1/2``, both within the span of a matrix [d, d]."""
    values, vectors = torch.linalg.eigh(square)
    # Eigenvalues of 0 come out as rounding errors, and their inverse roots would be enormous.
    spanned = values > values[-1] * len(values) * torch.finfo(values.dtype).eps
    root, vectors = values[spanned].sqrt(), vectors[:, spanned]
    return vectors / root @ vectors.T, vectors * root @ vectors.T


def _by_embedding(setup: Setup, member: int, primary: Tensor, other: Tensor, options: Options) -> TokenMapping:
    """The mapping of a member's tokens to the primary's tokens with similar embeddings.

    ``primary`` and ``other`` are the embeddings [rows, width] of length 1 of candidates, in ascending order of ids.
    """
    tables = (setup.joint.members[member], setup.joint.members[0])
    ids, primary_ids = (torch.nonzero(table.entry_of != NONE).squeeze(1) for table in tables)
    common, _ = common_and_foreign(setup.joint, member)
    rows = (torch.searchsorted(ids, common[0]), torch.searchsorted(primary_ids, common[1]))
    blocks = zip(*(index.split(_COMMON) for index in rows), strict=True)
    to_one, primary_to_one = alignment((other[theirs], primary[own]) for theirs, own in blocks)
    # EOS is mapped to EOS alone, so it is neither a target nor among the tokens that are mapped below.
    plain = tables[1].entry_of[primary_ids] != EOS
    targets, target_ids = unit_(primary[plain] @ primary_to_one.to(primary)), primary_ids[plain]
    size = max(1, _BLOCK // len(targets))

    def sources(at: Tensor) -> Tensor:
        return unit_(other[at] @ to_one.to(other)).to(targets)

    # Block by block, because the cosines of two whole vocabularies take tens of gigabytes.
    everything = torch.arange(len(ids), device=ids.device)
    kept = common[:, tables[0].entry_of[common[0]] == EOS]
    crowding = _crowding(targets, map(sources, everything.split(size)))
    cells = [(*kept, targets.new_ones(kept.shape[1]))]
    for block in everything[tables[0].entry_of[ids] != EOS].split(size):
        # One operation, because each further pass over billions of pairs takes minutes.
        likeness = torch.addmm(crowding, sources(block), targets.T, beta=-1, alpha=2)
        likeness, places = likeness.topk(min(options.cells, len(targets)), dim=1)
        share = _shares(likeness, options)
        row, column = torch.nonzero(share, as_tuple=True)
        cells.append((ids[block[row]], target_ids[places[row, column]], share[row, column]))
    return TokenMapping(*(torch.cat(parts) for parts in zip(*cells, strict=True)))


def _crowding(targets: Tensor, blocks: Iterable[Tensor]) -> Tensor:
    """Each target's highest cosine [targets] with all sources, which come in blocks."""
    return reduce(torch.maximum, ((sources @ targets.T).amax(dim=0) for sources in blocks))


def faithful(agree: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The filter: weights [members, B] without the members that no other member agrees with, by ``agree``."""

    def reweigh(members: Tensor, weights: Tensor) -> Tensor:
        best = members.argmax(dim=2)
        likely = members.topk(min(agree, members.shape[2]), dim=2)
        # agrees[i, j, row]: the best token of member i is among the likeliest tokens of member j. A token that no
        # probability went to is not likely, even if fewer tokens than `agree` got some.
        agrees = ((best[:, None, :, None] == likely.indices[None]) & (likely.values > 0)[None]).any(dim=3)
        agrees &= ~torch.eye(len(members), dtype=torch.bool, device=members.device)[:, :, None]
        staying = weights * agrees.any(dim=1)
        # If no member agrees with another one, the filter has no information and all members stay.
        return torch.where(staying.sum(dim=0, keepdim=True) > 0, staying, weights)

    return reweigh


def _shares(likeness: Tensor, options: Options) -> Tensor:
    """The share [tokens, cells] of each cell, 0 if it does not count."""
    counts = likeness >= options.threshold
    many = counts.sum(dim=1, keepdim=True)
    values = likeness.where(counts, 0)
    # A row without a similarity above the threshold divides by 0 here; all its shares are 0 below.
    mean = values.sum(dim=1, keepdim=True) / many
    deviation = (((values - mean).square() * counts).sum(dim=1, keepdim=True) / many).sqrt()
    return values * ~((many > _FLAT_CELLS) & (deviation <= _FLAT_DEVIATION))
