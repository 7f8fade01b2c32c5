"""DeePEn-Avg: "Ensemble Learning for Heterogeneous Large Language Models with Deep Parallel Collaboration", section 3.

(Huang et al., NeurIPS 2024.) The anchors are all tokens that the members have in common (section 5.2), EOS included. A
token is represented by its similarity to each anchor (Eq. 2 and 4), and a distribution by the mean over its tokens. The
weighted mean of the members' representations is taken (Eq. 5, weights equal unless given). Then gradient steps move the
primary's distribution until its own representation is near to the mean (Eq. 6 and 7; T = 5). The paper searches eta
between 0.05 and 0.30 for each task; the default here is 0.15.

Choices where the paper is silent, and differences from it:

- Embeddings: the input embeddings, as in the authors' published code.
- Eq. 4 as published is nearly flat, because cosines lie between -1 and 1 and there are many anchors: with
  ``sharpness=1`` none of 100 texts of the demo's models differed from the primary's own text. Here the cosines are
  multiplied by ``sharpness``; 10 was chosen among 1, 5, 10, 20 and 40 on these 100 questions.
- Eq. 7 does not say how p remains a distribution. Here the step is taken on the logarithm of p, which is then
  normalised (``p <- p exp(-eta dl/dp) / Z``, mirror descent on the simplex), so probabilities stay positive. The loss
  is KL(mean || own).
- A step that would raise the loss is not taken, and the next one of that row is half as long. With a fixed step the
  search can diverge: with sharp distributions the loss of most rows was higher at the end than at the start.
- Distributions are over candidates: special tokens except EOS, and ids without a token, have no probability.

The authors' code searches by AdamW on the logits instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.methods._mapping import common_entries, unit_embeddings
from ensemble.runtime.logits import Logits, whole
from ensemble.step.distribution import Distribution, candidate_logits
from ensemble.step.token_method import Setup, TokenRule
from ensemble.vocabulary.joint import NONE

METHOD = Method(
    level="token",
    summary="the mean in a space of similarities to common tokens, mapped back by a search (DeePEn, 2024)",
    when="comparisons only: every step goes through all pairs of tokens, which are billions in real vocabularies",
    version=2,
)
_CELLS_CPU = 2**22
"""Cells of the relative matrix that are in memory at a time, few enough for a processor's cache."""
_CELLS_GPU = 2**26


@dataclass(frozen=True, slots=True)
class Options:
    """Options of DeePEn.

    Attributes:
        steps: T in Eq. 7, 0 or more.
        learning_rate: Eta in Eq. 7, above 0.
        sharpness: Factor of the cosines before the softmax of Eq. 4, above 0.
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


class RelativeSpace:
    """A member's relative matrix (Eq. 2 and 4), and the loss of Eq. 6.

    The matrix of all tokens and all anchors is too large for memory (Llama-3 and Qwen2: 128,000 times 109,566), so it
    is computed block by block, in so many ``cells``, at each use. The result is exact. ``vectors`` [V, width] are the
    tokens' embeddings of length 1, the anchors first.
    """

    def __init__(self, vectors: Tensor, anchors: int, sharpness: float, cells: int) -> None:
        self.vectors = vectors
        self.anchors = anchors
        self._sharpness = sharpness
        self._rows = max(1, cells // anchors)

    def relate(self, log_p: Tensor, step: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Take a step of the search; logarithms of the new distribution [B, V], and its representation [B, anchors].

        The ``step`` is the loss's derivative [B, anchors] by the representation, and how far [B, 1] to go against it;
        None takes none.
        """
        anchors = self.vectors[: self.anchors].T
        moved = []
        top = log_p.new_full((len(log_p), 1), torch.finfo(log_p.dtype).min)
        total = torch.zeros_like(top)
        related = self.vectors.new_zeros(len(log_p), self.anchors)
        parts = (self.vectors.split(self._rows), log_p.split(self._rows, dim=1))
        # One pass does both, because a token's new share needs only its own row of the matrix and the running sum.
        for block, before in zip(*parts, strict=True):
            matrix = (block * self._sharpness @ anchors).softmax(dim=1)
            now = before
            if step is not None:
                slope, rate = step
                now = before - rate * (slope @ matrix.T).to(log_p.dtype)
            # The largest value so far is subtracted, so that exp() does not overflow; earlier sums are rescaled to it.
            highest = torch.maximum(top, now.amax(dim=1, keepdim=True))
            rescale, share = (top - highest).exp(), (now - highest).exp()
            total = total * rescale + share.sum(dim=1, keepdim=True)
            related = related * rescale.to(related.dtype) + share.to(related.dtype) @ matrix
            top = highest
            moved.append(now)
        return torch.cat(moved, dim=1) - top - total.log(), related / total.to(related.dtype)

    def loss(self, target: Tensor, related: Tensor) -> Tensor:
        """``KL(target || related)`` [B, 1] of a representation, without the entropy of the target, which stays."""
        # In float64: at the end of a search two losses differ by less than the rounding of a sum of float32.
        least = torch.finfo(related.dtype).tiny
        return -(target.double() * related.clamp(min=least).double().log()).sum(dim=1, keepdim=True)

    def slope(self, target: Tensor, related: Tensor) -> Tensor:
        """The derivative [B, anchors] of the loss by the representation."""
        # `related` can be 0 after rounding.
        return -target / related.clamp(min=torch.finfo(related.dtype).tiny)


def search(space: RelativeSpace, log_p: Tensor, related: Tensor, target: Tensor, options: Options) -> Tensor:
    """Logarithms [B, V] of the primary's distribution whose representation is near to a target (Eq. 6 and 7).

    The search starts at ``log_p`` [B, V] with its representation ``related`` [B, anchors]; the ``target`` is the
    members' mean one. The loss is never higher at the end than at the start.
    """
    rate = log_p.new_full((len(log_p), 1), options.learning_rate)
    loss = space.loss(target, related)
    for _ in range(options.steps):
        moved, moved_related = space.relate(log_p, (space.slope(target, related), rate))
        moved_loss = space.loss(target, moved_related)
        # A step to NaN is not taken either; a row that is NaN from the start, because a logit is, stays so.
        worse = ~(moved_loss <= loss) & ~loss.isnan()
        log_p, related = torch.where(worse, log_p, moved), torch.where(worse, related, moved_related)
        loss, rate = torch.where(worse, loss, moved_loss), torch.where(worse, rate / 2, rate)
    return log_p


def make(setup: Setup, options: Options) -> TokenRule:
    """Make the rule; InputError for too few tokens in common, or embeddings that cannot be read."""
    return make_rule("deepen", setup, setup.weights, options)


def make_rule(method: str, setup: Setup, weights: Sequence[float], options: Options) -> TokenRule:
    """Make the rule with given weights for Eq. 5; see :func:`make`."""
    members, joint = list(setup.members), setup.joint
    common = common_entries(method, setup, range(len(members)))
    ids = [_anchors_first(tables.entry_of, tables.id_of[common]) for tables in joint.members]
    cells = _CELLS_CPU if common.device.type == "cpu" else _CELLS_GPU
    spaces = [
        RelativeSpace(unit_embeddings(method, member, "input", index), len(common), options.sharpness, cells)
        for member, index in zip(members, ids, strict=True)
    ]
    # Inside, a member's tokens are sorted with the anchors first; the result is in the order of the primary's ids.
    order = ids[0].argsort()
    entries = joint.members[0].entry_of[ids[0][order]]
    present = [tables.owned()[entries] for tables in joint.members]
    precision = spaces[0].vectors.dtype

    def combine(logits: Sequence[Logits], also: Tensor | None = None) -> Distribution:
        candidates = [candidate_logits(z, tables) for z, tables in zip(whole(logits), joint.members, strict=True)]
        # Scored entries can be so unlikely that their probability is 0 in float32.
        own = [(z if also is None else z.double()).log_softmax(dim=1) for z in candidates]
        related = [
            space.relate(log_p.index_select(1, index))[1] for space, log_p, index in zip(spaces, own, ids, strict=True)
        ]
        # Members can have different dtypes; the primary's decides.
        target = sum(weight * r.to(precision) for weight, r in zip(weights, related, strict=True))
        start = own[0].index_select(1, ids[0])
        # A single member already is at the target.
        found = start if len(own) == 1 else search(spaces[0], start, related[0], torch.as_tensor(target), options)
        mean = found.index_select(1, order).exp()
        shares = [
            log_p.index_select(1, tables.place_of[entries]).exp().mul_(mask).to(mean.dtype)
            for log_p, tables, mask in zip(own, joint.members, present, strict=True)
        ]
        rows = entries.expand(len(mean), -1)
        chosen = ids[0][order].expand(len(mean), -1)
        return Distribution(rows, torch.ones_like(rows, dtype=torch.bool), chosen, torch.stack(shares), mean)

    return TokenRule(combine)


def _anchors_first(entry_of: Tensor, anchors: Tensor) -> Tensor:
    """A member's candidate ids: the anchors in their order, then the others."""
    other = entry_of != NONE
    other[anchors] = False
    return torch.cat([anchors, torch.nonzero(other).squeeze(1)])
