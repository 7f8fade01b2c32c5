"""The log-probability of an emitted token under the ensemble, and of the likeliest tokens at its step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ensemble.step.distribution import Distribution
from ensemble.vocabulary.joint import NONE


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token that a step may emit.

    Attributes:
        data: Its bytes; None for EOS.
        logprob: The natural logarithm of the ensemble's probability that it is emitted.
    """

    data: bytes | None
    logprob: float


@dataclass(frozen=True, slots=True)
class StepLogprobs:
    """The log-probabilities of one step.

    Probabilities are the method's, before any temperature: over the union if it makes one, else over all entries.
    Entries for which the primary emits the same token (the first of several that spell them) count together.

    Attributes:
        emitted: The emitted token.
        alternatives: The likeliest tokens that the primary can emit, the likeliest first.
    """

    emitted: TokenLogprob
    alternatives: tuple[TokenLogprob, ...]


def step_logprobs(
    step: Distribution, tokens: Tensor, counts: Mapping[int, int], data_of: Callable[[int], bytes | None]
) -> dict[int, StepLogprobs]:
    """The log-probabilities of some rows of a step.

    Args:
        step: The step.
        tokens: [B] what each row emits, as in ``step.ids``.
        counts: For each of these rows, the largest number of alternatives.
        data_of: Gives the bytes that a token adds to the text, None for EOS.
    """
    rows = list(counts)
    # Sorted on the device: grouping ids in Python would copy every entry to the host.
    ids, order = step.ids[rows].sort(dim=1)
    mean = step.mean[rows].masked_fill(step.ids[rows] == NONE, 0).gather(1, order)
    # After the sort, entries of one id are neighbours; each group of them is summed at the group's number.
    group = (ids.diff(dim=1, prepend=ids[:, :1]) != 0).cumsum(dim=1)
    sums = torch.zeros_like(mean).scatter_add_(1, group, mean)
    names = torch.full_like(ids, NONE).scatter_(1, group, ids)
    chosen = (sums * (names == tokens[rows][:, None])).sum(dim=1).log().tolist()
    # The largest number for all rows at once; each row takes its own number of them below.
    best = sums.topk(min(max(counts.values()), sums.shape[1]), dim=1)
    others = zip(names.gather(1, best.indices).tolist(), best.values.log().tolist(), strict=True)
    return {
        row: StepLogprobs(
            TokenLogprob(data_of(token), logprob),
            tuple(
                TokenLogprob(data_of(other), value)
                for other, value in zip(*(values[: counts[row]] for values in alternatives), strict=True)
                if value > -torch.inf
            ),
        )
        for row, token, logprob, alternatives in zip(rows, tokens[rows].tolist(), chosen, others, strict=True)
    }
