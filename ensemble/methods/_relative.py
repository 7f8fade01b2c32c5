"""DeePEn's relative spaces: distributions by their likeness to anchors, and the search for the way back.

Section 3 of "Ensemble Learning for Heterogeneous Large Language Models with Deep Parallel Collaboration" (Huang et al.,
NeurIPS 2024). A token is known by its likeness to the anchors, the tokens that all members have (Eq. 2 and 4); a
distribution by the mean over its tokens; these are averaged (Eq. 5), and what the primary would have to want for that
is searched for (Eq. 6 and 7). The matrix of all tokens and all anchors (Llama-3 and Qwen2: 128,000 times 109,566) is
never held: a block of its rows is made, used and dropped, and nothing is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ensemble.errors import InputError
from ensemble.methods._embeddings import common_entries, owned_entries, unit_embeddings
from ensemble.runtime.logits import Logits, whole
from ensemble.step.distribution import Distribution, candidate_logits
from ensemble.step.token_method import Setup, TokenRule
from ensemble.vocabulary.joint import NONE

_CELLS = {"cpu": 2**22}
"""Of the matrix that are held at a time, by the kind of device: few enough that a processor's memory is used again."""
_CELLS_ELSEWHERE = 2**26


@dataclass(frozen=True, slots=True)
class Search:
    """How the way back is searched for.

    Attributes:
        steps: T in Eq. 7, 0 or more.
        learning_rate: Eta in Eq. 7, above 0.
        sharpness: What the cosines are multiplied by before the softmax of Eq. 4, above 0.
    """

    steps: int = 5
    learning_rate: float = 0.15
    sharpness: float = 10.0

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise InputError(f"steps is {self.steps}; it must be 0 or more")
        for name in ("learning_rate", "sharpness"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} is {value}; it must be above 0")


@dataclass(frozen=True, slots=True)
class RelativeSpace:
    """A member's normalised relative matrix (Eq. 4), made block by block.

    Attributes:
        vectors: [V, width] of length 1, the anchors' first.
        anchors: How many they are.
        sharpness: See :class:`Search`.
        cells: Of the matrix that are held at a time; a row at least.
    """

    vectors: Tensor
    anchors: int
    sharpness: float
    cells: int

    def relate(self, log_p: Tensor, pull: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Take a step of the search, and relate the distribution that it leads to.

        Both in one pass, because a token's new share depends on its own row of the matrix and a sum that is kept as it
        grows.

        Args:
            log_p: [B, V] logarithms of a distribution over the tokens.
            pull: [B, anchors] how much each anchor is to gain; None to go nowhere.

        Returns:
            The logarithms of the new distribution [B, V], and its relative representation [B, anchors].
        """
        rows = max(1, self.cells // self.anchors)
        anchors = self.vectors[: self.anchors].T
        moved = []
        top = log_p.new_full((len(log_p), 1), torch.finfo(log_p.dtype).min)
        total = torch.zeros_like(top)
        related = self.vectors.new_zeros(len(log_p), self.anchors)
        for block, before in zip(self.vectors.split(rows), log_p.split(rows, dim=1), strict=True):
            matrix = (block * self.sharpness @ anchors).softmax(dim=1)
            now = before if pull is None else before + (pull @ matrix.T).to(log_p.dtype)
            # The largest so far is taken off, so that no exponential overflows; what is summed up follows it.
            highest = torch.maximum(top, now.amax(dim=1, keepdim=True))
            kept, share = (top - highest).exp(), (now - highest).exp()
            total = total * kept + share.sum(dim=1, keepdim=True)
            related = related * kept.to(related.dtype) + share.to(related.dtype) @ matrix
            top = highest
            moved.append(now)
        return torch.cat(moved, dim=1) - top - total.log(), related / total.to(related.dtype)


def search(space: RelativeSpace, log_p: Tensor, related: Tensor, wanted: Tensor, how: Search) -> Tensor:
    """The logarithms [B, V] of the primary's distribution whose relative representation comes near to what is wanted.

    Args:
        space: The primary's.
        log_p: [B, V] where the search begins.
        related: [B, anchors] its relative representation.
        wanted: [B, anchors] the aggregated one.
        how: Steps and their length.
    """
    least = torch.finfo(related.dtype).tiny
    for _ in range(how.steps):
        log_p, related = space.relate(log_p, how.learning_rate * wanted / related.clamp(min=least))
    return log_p


def make_rule(method: str, setup: Setup, weights: Sequence[float], how: Search) -> TokenRule:
    """DeePEn for some members, with the weights of Eq. 5.

    Raises:
        InputError: They have too few tokens in common, or a model's embeddings cannot be read.
    """
    members, joint = list(setup.members), setup.joint
    common = common_entries(method, setup, range(len(members)))
    ids = [_anchors_first(tables.entry_of, tables.id_of[common]) for tables in joint.members]
    cells = _CELLS.get(common.device.type, _CELLS_ELSEWHERE)
    spaces = [
        RelativeSpace(unit_embeddings(method, member, "input", own), len(common), how.sharpness, cells)
        for member, own in zip(members, ids, strict=True)
    ]
    order = ids[0].argsort()
    entries = joint.members[0].entry_of[ids[0][order]]
    there = [owned_entries(tables)[entries] for tables in joint.members]
    precision = spaces[0].vectors.dtype

    def combine(logits: Sequence[Logits], also: Tensor | None = None) -> Distribution:
        candidates = [candidate_logits(z, tables) for z, tables in zip(whole(logits), joint.members, strict=True)]
        own = [(z if also is None else z.double()).log_softmax(dim=1) for z in candidates]
        related = [
            space.relate(log_p.index_select(1, index))[1] for space, log_p, index in zip(spaces, own, ids, strict=True)
        ]
        wanted = sum(weight * r.to(precision) for weight, r in zip(weights, related, strict=True))
        start = own[0].index_select(1, ids[0])
        found = start if len(own) == 1 else search(spaces[0], start, related[0], torch.as_tensor(wanted), how)
        mean = found.index_select(1, order).exp()
        shares = [
            log_p.index_select(1, tables.place_of[entries]).exp().mul_(mask).to(mean.dtype)
            for log_p, tables, mask in zip(own, joint.members, there, strict=True)
        ]
        rows = entries.expand(len(mean), -1)
        chosen = ids[0][order].expand(len(mean), -1)
        return Distribution(rows, torch.ones_like(rows, dtype=torch.bool), chosen, torch.stack(shares), mean)

    return TokenRule(combine)


def _anchors_first(entry_of: Tensor, anchors: Tensor) -> Tensor:
    """A member's candidate ids, the anchors' in their order and then the others'."""
    other = entry_of != NONE
    other[anchors] = False
    return torch.cat([anchors, torch.nonzero(other).squeeze(1)])
