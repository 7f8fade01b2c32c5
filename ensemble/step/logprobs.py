"""The log-probability of an emitted token under the ensemble, and of the likeliest tokens at its step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ensemble.runtime.forward_pass import to_device
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


def packed_logprobs(step: Distribution, tokens: Tensor, counts: Mapping[int, int]) -> Tensor:
    """The numbers for :func:`step_logprobs`, on the device of the step: [B, 1 + 2 n] for n alternatives, in float64.

    Args:
        step: The step.
        tokens: [B, 1] what each row emits, as in ``step.ids``.
        counts: For each row that needs them the number of alternatives; the numbers of other rows have no meaning.
    """
    ids, mean = step.ids, step.mean
    some = None if len(counts) == len(ids) else to_device(torch.tensor(list(counts)), ids.device)
    if some is not None:
        # Of a whole vocabulary, a row takes long.
        ids, mean, tokens = ids[some], mean[some], tokens[some]
    mean = mean.masked_fill(ids == NONE, 0)
    # Sorted on the device: grouping ids in Python would copy every entry to the host.
    ids, order = ids.sort(dim=1)
    # After the sort, entries of one id are neighbours; each group of them is summed at the group's number.
    group = (ids.diff(dim=1, prepend=ids[:, :1]) != 0).cumsum(dim=1)
    sums = torch.zeros_like(mean).scatter_add_(1, group, mean.gather(1, order))
    names = torch.full_like(ids, NONE).scatter_(1, group, ids)
    chosen = (sums * (names == tokens)).sum(dim=1, keepdim=True).log()
    # The largest number for all rows at once; each row takes its own number of them on the host.
    best = sums.topk(min(max(counts.values()), sums.shape[1]), dim=1)
    numbers = torch.cat([chosen.double(), best.values.log(), names.gather(1, best.indices)], dim=1)
    return numbers if some is None else numbers.new_zeros(len(step.ids), numbers.shape[1]).index_copy_(0, some, numbers)


def step_logprobs(
    numbers: Sequence[float], token: int, count: int, data_of: Callable[[int], bytes | None]
) -> StepLogprobs:
    """The log-probabilities of a row of a step.

    Args:
        numbers: The row of :func:`packed_logprobs`.
        token: What the row emits.
        count: The row's number of alternatives.
        data_of: Gives the bytes that a token adds to the text, None for EOS.
    """
    most = len(numbers) // 2
    best = zip(numbers[1 : 1 + count], numbers[1 + most :], strict=False)
    alternatives = tuple(TokenLogprob(data_of(int(other)), value) for value, other in best if value > -math.inf)
    return StepLogprobs(TokenLogprob(data_of(token), numbers[0]), alternatives)
