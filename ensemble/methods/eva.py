"""EVA: other members' tokens are mapped to the primary's by their output embeddings, then averaged with a filter.

"Bridging the Gap between Different Vocabularies for LLM Ensemble" (Xu et al., NAACL 2024), a baseline in the papers on
DeePEn (appendix B) and SweetSpan. A projection between the output embeddings of two models is learned from their common
tokens. The similarity of projected embeddings decides which of the primary's tokens another member's token counts for.
A member is left out of a step if no other member finds its likeliest token likely.

These papers say no more; the rest was chosen, with the numbers of the authors' published code:

- Embeddings are scaled to length 1, centred over the vocabulary, and scaled to length 1 again. Between models of the
  same width the projection is the best orthogonal one (Procrustes), otherwise the least squares solution. DeePEn's
  authors could not use EVA for models of different widths.
- Common tokens, and EOS, are mapped to themselves. Any other token is mapped to the ``cells`` tokens with the highest
  cosine (10) that reach ``threshold`` (0.1), in proportion to the cosine. If more than 5 cosines are almost equal
  (standard deviation up to 0.01) they carry no information: then the token does not count, like a token without a
  similar one, and the rest of the member's distribution is renormalised. The authors first correct cosines for hubs
  (CSLS), which needs all pairs of both vocabularies; this is left out.
- A member stays in a step if its likeliest token is among the ``agree`` likeliest tokens (3) of another member, all on
  the primary's vocabulary. If no member stays, all do. The weights of the remaining members are renormalised.

The mapping is saved in the user's cache folder.
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
from ensemble.methods._token_mapping import TokenMapping, average_mapped, common_and_foreign, load_or_make
from ensemble.step.token_method import Setup, TokenRule
from ensemble.vocabulary.joint import NONE

METHOD = Method(
    level="token",
    summary="the mean on the primary's vocabulary; other tokens are mapped by their embeddings (EVA, 2024)",
    when="comparisons, with three or more members: its filter drops a member that disagrees with all others",
)
_FLAT_CELLS, _FLAT_DEVIATION = 5, 0.01
"""More cosines than this, with at most this standard deviation, carry no information."""
_BLOCK = 2**24
"""Cosines that are in memory at a time."""
_COMMON = 2**13
"""Common tokens that are in memory at a time while the projection is learned."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of EVA.

    Attributes:
        cells: The most tokens of the primary that a token is mapped to, at least 1.
        threshold: The lowest cosine that counts, above 0.
        agree: A member stays if its likeliest token is among this many likeliest tokens of another member; 0 for no
            filter.
    """

    cells: int = 10
    threshold: float = 0.1
    agree: int = 3

    def __post_init__(self) -> None:
        if self.cells < 1:
            raise InputError(f"cells is {self.cells}; it must be at least 1")
        if not 0 < self.threshold <= 1:
            raise InputError(f"threshold is {self.threshold}; it must be above 0 and at most 1")
        if self.agree < 0:
            raise InputError(f"agree is {self.agree}; it must be 0 (no filter) or more")


def make(setup: Setup, options: Options) -> TokenRule:
    """Make the rule.

    Raises:
        InputError: A member has too few tokens in common with the primary, or embeddings that cannot be read.
    """
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
    return TokenRule(average_mapped(setup, mappings, faithful(options.agree) if options.agree else None))


def projection(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """The matrix [d, e] that maps vectors near to their counterparts, in float64; orthogonal if d = e.

    Args:
        pairs: The vectors [n, d] and their counterparts [n, e], in one block or several.
    """
    crossed, squared = torch.zeros(()), torch.zeros(())
    for vectors, counterparts in pairs:
        wide = vectors.double()
        crossed = crossed + wide.T @ counterparts.double()
        squared = squared + wide.T @ wide
    if crossed.shape[0] == crossed.shape[1]:
        # Orthogonal Procrustes: the rotation that minimises the squared distances.
        left, _, right = torch.linalg.svd(crossed)
        matrix: Tensor = left @ right
    else:
        # The pseudo-inverse, because few common tokens may not span all dimensions.
        matrix = torch.linalg.pinv(squared, hermitian=True) @ crossed
    return matrix


def _by_embedding(setup: Setup, member: int, primary: Tensor, other: Tensor, options: Options) -> TokenMapping:
    """The mapping of a member's tokens to the primary's tokens with similar embeddings.

    Args:
        setup: The members.
        member: The member's number.
        primary: [rows, width] the primary's embeddings of length 1, of its candidates in ascending order of ids.
        other: The same for the member.
        options: How many tokens a token is mapped to, and how similar they must be.
    """
    ids, primary_ids = (
        torch.nonzero(tables.entry_of != NONE).squeeze(1)
        for tables in (setup.joint.members[member], setup.joint.members[0])
    )
    common, foreign = common_and_foreign(setup.joint, member)
    rows = (torch.searchsorted(ids, common[0]), torch.searchsorted(primary_ids, common[1]))
    blocks = zip(*(index.split(_COMMON) for index in rows), strict=True)
    matrix = projection((other[theirs], primary[counterparts]) for theirs, counterparts in blocks).to(other.dtype)
    cells = [(*common, primary.new_ones(common.shape[1]))]
    # Block by block, because the cosines of two whole vocabularies take tens of gigabytes.
    for block in foreign.split(max(1, _BLOCK // len(primary_ids))):
        projected = unit_(other[torch.searchsorted(ids, block)] @ matrix).to(primary.dtype)
        cosines, places = (projected @ primary.T).topk(min(options.cells, len(primary_ids)), dim=1)
        share = _shares(cosines, options.threshold)
        row, column = torch.nonzero(share, as_tuple=True)
        cells.append((block[row], primary_ids[places[row, column]], share[row, column]))
    return TokenMapping(*(torch.cat(parts) for parts in zip(*cells, strict=True)))


def faithful(agree: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The filter: weights [members, B] without the members that no other member agrees with.

    Args:
        agree: See :class:`Options`.
    """

    def reweigh(members: Tensor, weights: Tensor) -> Tensor:
        best = members.argmax(dim=2)
        likely = members.topk(min(agree, members.shape[2]), dim=2).indices
        # agrees[i, j, row]: the best token of member i is among the likeliest tokens of member j.
        agrees = (best[:, None, :, None] == likely[None]).any(dim=3)
        agrees &= ~torch.eye(len(members), dtype=torch.bool, device=members.device)[:, :, None]
        staying = weights * agrees.any(dim=1)
        total = staying.sum(dim=0, keepdim=True)
        # If no member agrees with another one, the filter has no information and all members stay.
        return torch.where(total > 0, staying / total, weights)

    return reweigh


def _shares(cosines: Tensor, threshold: float) -> Tensor:
    """The share [tokens, cells] of each cell, 0 if it does not count."""
    counts = cosines >= threshold
    many = counts.sum(dim=1, keepdim=True)
    # A row without a cosine above the threshold divides by 0 here; all its shares are 0 below.
    mean = (cosines * counts).sum(dim=1, keepdim=True) / many
    deviation = (((cosines - mean).square() * counts).sum(dim=1, keepdim=True) / many).sqrt()
    share = cosines * (counts & ~((many > _FLAT_CELLS) & (deviation <= _FLAT_DEVIATION)))
    return share / share.sum(dim=1, keepdim=True).clamp(min=torch.finfo(share.dtype).tiny)
