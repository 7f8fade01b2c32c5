"""How likely what was emitted was under the ensemble, and what else was likely there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ensemble.step.distribution import Distribution
from ensemble.vocabulary.joint import NONE


@dataclass(frozen=True, slots=True)
class Likely:
    """Something that a step may emit.

    Attributes:
        data: Its bytes; None for EOS.
        logprob: The natural logarithm of the ensemble's probability that it is emitted.
    """

    data: bytes | None
    logprob: float


@dataclass(frozen=True, slots=True)
class Likelihood:
    """A step of a text.

    Probabilities are those of the method, before any temperature: over the union where it makes one, else over all
    entries. Entries for which the primary emits the same token (the first of several that spell them) count together.

    Attributes:
        emitted: What was emitted.
        alternatives: The likeliest that the primary can emit, the likeliest first.
    """

    emitted: Likely
    alternatives: tuple[Likely, ...]


def likelihoods(
    step: Distribution, tokens: Tensor, asked: Mapping[int, int], spell: Callable[[int], bytes | None]
) -> dict[int, Likelihood]:
    """The likelihoods of some rows of a step.

    Args:
        step: What the method made of it.
        tokens: [B] what each row emits, as in ``step.ids``.
        asked: For each of these rows, how many alternatives it has at most.
        spell: Gives the bytes that a token adds to the text, None for EOS.
    """
    rows = list(asked)
    ids, order = step.ids[rows].sort(dim=1)
    mean = step.mean[rows].masked_fill(step.ids[rows] == NONE, 0).gather(1, order)
    # What has the same id stands side by side by now, and is summed in one place.
    group = (ids.diff(dim=1, prepend=ids[:, :1]) != 0).cumsum(dim=1)
    sums = torch.zeros_like(mean).scatter_add_(1, group, mean)
    names = torch.full_like(ids, NONE).scatter_(1, group, ids)
    chosen = (sums * (names == tokens[rows][:, None])).sum(dim=1).log().tolist()
    best = sums.topk(min(max(asked.values()), sums.shape[1]), dim=1)
    others = zip(names.gather(1, best.indices).tolist(), best.values.log().tolist(), strict=True)
    return {
        row: Likelihood(
            Likely(spell(token), logprob),
            tuple(
                Likely(spell(other), value)
                for other, value in zip(*(own[: asked[row]] for own in found), strict=True)
                if value > -torch.inf
            ),
        )
        for row, token, logprob, found in zip(rows, tokens[rows].tolist(), chosen, others, strict=True)
    }
