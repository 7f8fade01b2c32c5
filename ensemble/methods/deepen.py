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

As in the authors' code: ``optimiser="adamw", unit_rows=True, sharpness=100``. Their search is AdamW on the logits, with
a rate that falls along a cosine to a quarter over 10 steps, and the mean of the KL terms over the anchors as loss. One
difference remains in it: the result is the point with the lowest loss on the way, the start included. Theirs is the
last point, whose loss was above that of the start in 19 of 5,120 random rows with eta up to 0.3. Their code also leaves
a step to the primary if its likeliest token is EOS; here it is a step like any other.

The paper's ablations: ``anchors`` draws a random part of the common tokens (section 5.2, figure 4), and
``relative_norm=False`` leaves out the softmax of Eq. 4 (table 4, "w/o Rel-Norm"). A representation can then be
negative, which KL does not allow, and the paper does not name another loss. Here it is half the squared distance over
the largest squared length of a row, with which any step of mirror descent with eta up to 1 lowers the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.methods._mapping import MIN_COMMON, common_entries, unit_embeddings
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
_DECAYS, _WEIGHT_DECAY, _LEAST = (0.9, 0.999), 0.01, 1e-8
"""Of AdamW: the decays of its two averages, of the logits, and what is added to the divisor (torch's defaults)."""
_HALF_WAVE, _LOWEST_RATE = 10, 0.25
"""The steps in which AdamW's rate falls to its lowest, and this lowest part of it; then it rises again."""
Optimiser = Literal["mirror", "adamw"]
Move = Callable[[Tensor, Tensor, slice], Tensor]
"""From logarithms of a distribution [B, n], the loss's derivative by its probabilities [B, n], and the columns that the
n tokens have among all: new logarithms, up to a constant for each row."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of DeePEn.

    Attributes:
        steps: T in Eq. 7, 0 or more.
        learning_rate: Eta in Eq. 7, above 0.
        sharpness: Factor of the cosines before the softmax of Eq. 4, above 0; without effect if there is no softmax.
        anchors: Random common tokens that are the anchors, at least 16; 0 for all common tokens.
        anchor_seed: The seed of their draw, 0 or more.
        relative_norm: Whether Eq. 4 applies; if not, similarities are used as they are in Eq. 2.
        unit_rows: Whether each row of Eq. 2 is scaled to length 1 before Eq. 4.
        optimiser: How the search moves: "mirror" (mirror descent) or "adamw" (as the authors' code).
    """

    steps: int = 5
    learning_rate: float = 0.15
    sharpness: float = 10.0
    anchors: int = 0
    anchor_seed: int = 0
    relative_norm: bool = True
    unit_rows: bool = False
    optimiser: Optimiser = "mirror"

    def __post_init__(self) -> None:
        for name in ("steps", "anchor_seed"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        for name in ("learning_rate", "sharpness"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} is {value}; it must be above 0")
        if self.anchors != 0 and self.anchors < MIN_COMMON:
            raise InputError(f"anchors is {self.anchors}; it must be 0 (all common tokens) or at least {MIN_COMMON}")
        if self.optimiser not in get_args(Optimiser):
            raise InputError(f"optimiser is {self.optimiser!r}; it must be {' or '.join(get_args(Optimiser))}")


class RelativeSpace:
    """A member's relative matrix (Eq. 2 and 4), and the loss of Eq. 6.

    The matrix of all tokens and all anchors is too large for memory (Llama-3 and Qwen2: 128,000 times 109,566), so it
    is computed block by block, in so many cells, at each use. The result is exact. ``vectors`` [V, width] are the
    tokens' embeddings of length 1, the anchors first.
    """

    def __init__(self, vectors: Tensor, anchors: int, options: Options, cells: int) -> None:
        self.vectors = vectors
        self.anchors = anchors
        self._softmax = options.relative_norm
        self._rows = max(1, cells // anchors)
        self._scale = vectors.new_full((len(vectors), 1), options.sharpness if options.relative_norm else 1.0)
        self._largest = 1.0
        if options.unit_rows or not options.relative_norm:
            lengths = _row_lengths(vectors, vectors[:anchors])
            # A row of zeros, of an embedding of zeros, stays one.
            self._scale = self._scale / lengths.where(lengths > 0, 1) if options.unit_rows else self._scale
            self._largest = float((self._scale * lengths).square().amax())

    def relate(self, log_p: Tensor, slope: Tensor | None = None, move: Move | None = None) -> tuple[Tensor, Tensor]:
        """Take a step of the search; logarithms of the new distribution [B, V], and its representation [B, anchors].

        The step moves ``log_p`` [B, V] by ``slope`` [B, anchors], the loss's derivative by the representation.
        """
        anchors = self.vectors[: self.anchors].T
        moved, start = [], 0
        top = log_p.new_full((len(log_p), 1), torch.finfo(log_p.dtype).min)
        total = torch.zeros_like(top)
        related = self.vectors.new_zeros(len(log_p), self.anchors)
        parts = (self.vectors.split(self._rows), self._scale.split(self._rows), log_p.split(self._rows, dim=1))
        # One pass does both, because a token's new share needs only its own row of the matrix and the running sum.
        for block, scale, before in zip(*parts, strict=True):
            matrix = block * scale @ anchors
            matrix = matrix.softmax(dim=1) if self._softmax else matrix
            columns = slice(start, start := start + len(block))
            now = before
            if slope is not None and move is not None:
                now = move(before, (slope @ matrix.T).to(log_p.dtype), columns)
            # The largest value so far is subtracted, so that exp() does not overflow; earlier sums are rescaled to it.
            highest = torch.maximum(top, now.amax(dim=1, keepdim=True))
            rescale, share = (top - highest).exp(), (now - highest).exp()
            total = total * rescale + share.sum(dim=1, keepdim=True)
            related = related * rescale.to(related.dtype) + share.to(related.dtype) @ matrix
            top = highest
            moved.append(now)
        return torch.cat(moved, dim=1) - top - total.log(), related / total.to(related.dtype)

    def loss(self, target: Tensor, related: Tensor) -> Tensor:
        """The distance [B, 1] of a representation from a target, up to what is the same at each step.

        It is ``KL(target || related)`` without the entropy of the target, or the squared distance where representations
        can be negative.
        """
        # In float64: at the end of a search two losses differ by less than the rounding of a sum of float32.
        if not self._softmax:
            return (related.double() - target.double()).square().sum(dim=1, keepdim=True) / (2 * self._largest)
        least = torch.finfo(related.dtype).tiny
        return -(target.double() * related.clamp(min=least).double().log()).sum(dim=1, keepdim=True)

    def slope(self, target: Tensor, related: Tensor) -> Tensor:
        """The derivative [B, anchors] of the loss by the representation."""
        if not self._softmax:
            return (related - target) / self._largest
        # `related` can be 0 after rounding.
        return -target / related.clamp(min=torch.finfo(related.dtype).tiny)


def _row_lengths(vectors: Tensor, anchors: Tensor) -> Tensor:
    """The lengths [V, 1] of the rows of ``vectors @ anchors.T``, without this matrix."""
    # The smaller matrix is as large as the embeddings are wide; rounding may give a sum of squares below 0.
    return (vectors @ (anchors.T @ anchors)).mul_(vectors).sum(dim=1, keepdim=True).clamp(min=0).sqrt()


def search(space: RelativeSpace, log_p: Tensor, related: Tensor, target: Tensor, options: Options) -> Tensor:
    """Logarithms [B, V] of the primary's distribution whose representation is near to a target (Eq. 6 and 7).

    The search starts at ``log_p`` [B, V] with its representation ``related`` [B, anchors]; the ``target`` is the
    members' mean one. The loss is never higher at the end than at the start.
    """
    find = _by_adamw if options.optimiser == "adamw" else _by_mirror_descent
    return find(space, log_p, related, target, options)


def _by_mirror_descent(
    space: RelativeSpace, log_p: Tensor, related: Tensor, target: Tensor, options: Options
) -> Tensor:
    rate = log_p.new_full((len(log_p), 1), options.learning_rate)
    loss = space.loss(target, related)

    def move(before: Tensor, uphill: Tensor, _: slice) -> Tensor:
        return before - rate * uphill

    for _ in range(options.steps):
        moved, moved_related = space.relate(log_p, space.slope(target, related), move)
        moved_loss = space.loss(target, moved_related)
        # A step to NaN is not taken either; a row that is NaN from the start, because a logit is, stays so.
        worse = ~(moved_loss <= loss) & ~loss.isnan()
        log_p, related = torch.where(worse, log_p, moved), torch.where(worse, related, moved_related)
        loss, rate = torch.where(worse, loss, moved_loss), torch.where(worse, rate / 2, rate)
    return log_p


def _by_adamw(space: RelativeSpace, log_p: Tensor, related: Tensor, target: Tensor, options: Options) -> Tensor:
    best, least = log_p, space.loss(target, related)
    means, squares = torch.zeros_like(log_p), torch.zeros_like(log_p)
    for step in range(1, options.steps + 1):
        wave = (1 + math.cos(math.pi * (step - 1) / _HALF_WAVE)) / 2
        rate = options.learning_rate * (_LOWEST_RATE + (1 - _LOWEST_RATE) * wave)
        # Adam divides the gradient by its own size, but its constant makes small ones count less. So the gradient must
        # be that of the mean over the anchors, as in the authors' code, and not of the sum.
        slope = space.slope(target, related) / space.anchors
        # The mean of the derivatives over p, which the softmax of the logits takes away from each.
        level = (related * slope).sum(dim=1, keepdim=True).to(log_p.dtype)
        move = partial(_adamw_step, step=step, rate=rate, level=level, means=means, squares=squares)
        log_p, related = space.relate(log_p, slope, move)
        loss = space.loss(target, related)
        # A row that is NaN from the start, because a logit of any member is, becomes NaN.
        better = (loss < least) | least.isnan()
        best, least = torch.where(better, log_p, best), torch.where(better, loss, least)
    return best


def _adamw_step(
    before: Tensor,
    uphill: Tensor,
    columns: slice,
    *,
    step: int,
    rate: float,
    level: Tensor,
    means: Tensor,
    squares: Tensor,
) -> Tensor:
    """A step of AdamW (Loshchilov and Hutter, 2019) on logits; changes ``means`` and ``squares`` [B, V] in place.

    Logits up to a constant are enough: neither the gradient nor, after the softmax, the weight decay depends on it.
    """
    gradient = before.exp() * (uphill - level)
    mean = means[:, columns].mul_(_DECAYS[0]).add_(gradient, alpha=1 - _DECAYS[0])
    square = squares[:, columns].mul_(_DECAYS[1]).addcmul_(gradient, gradient, value=1 - _DECAYS[1])
    size = (square / (1 - _DECAYS[1] ** step)).sqrt() + _LEAST
    return before * (1 - rate * _WEIGHT_DECAY) - rate / (1 - _DECAYS[0] ** step) * mean / size


def make(setup: Setup, options: Options) -> TokenRule:
    """Make the rule; InputError for too few tokens in common, or embeddings that cannot be read."""
    return make_rule("deepen", setup, setup.weights, options)


def make_rule(method: str, setup: Setup, weights: Sequence[float], options: Options) -> TokenRule:
    """Make the rule with given weights for Eq. 5; see :func:`make`."""
    members, joint = list(setup.members), setup.joint
    common = _draw(method, common_entries(method, setup, range(len(members))), options)
    ids = [_anchors_first(tables.entry_of, tables.id_of[common]) for tables in joint.members]
    cells = _CELLS_CPU if common.device.type == "cpu" else _CELLS_GPU
    spaces = [
        RelativeSpace(unit_embeddings(method, member, "input", index), len(common), options, cells)
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


def _draw(method: str, common: Tensor, options: Options) -> Tensor:
    """The anchors among the common entries, in the same order; InputError if these are fewer than the anchors."""
    if not options.anchors:
        return common
    if options.anchors > len(common):
        raise InputError(
            f"anchors is {options.anchors}, and the members have {len(common)} tokens in common; use "
            "fewer, or 0 for all",
            of=f"method {method}",
        )
    # On the processor, so that the draw is the same for models on any device.
    order = torch.randperm(len(common), generator=torch.Generator().manual_seed(options.anchor_seed))
    return common[order[: options.anchors].sort().values.to(common.device)]
