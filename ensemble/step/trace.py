"""The explanation of a step: what each member wanted, the union, and the entry that won, with log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ensemble.runtime.forward_pass import to_device
from ensemble.step.distribution import Distribution
from ensemble.vocabulary.joint import NONE

SHOWN = 20
"""Candidates to keep of a step over whole vocabularies; half of them count as a member's top k."""
LEAST = 0.0005
"""The smallest probability worth showing: below it, every member's share is printed as 0.0%."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry of a step's distribution.

    Attributes:
        data: Its bytes; None for EOS.
        token: The primary's id for it; None if the primary cannot express it, or only with several ids.
        wanted_by: The members that have it among their top k, by number.
        probabilities: Each member's probability; only the primary's if it decided alone.
        mean: The combined probability.
    """

    data: bytes | None
    token: int | None
    wanted_by: tuple[int, ...]
    probabilities: tuple[float, ...]
    mean: float

    @property
    def text(self) -> str:
        """The bytes as text, with replacement; ``<eos>`` for EOS."""
        return "<eos>" if self.data is None else self.data.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a generation.

    Attributes:
        candidates: The union, the likeliest first; for a method over whole vocabularies, the likeliest entries.
        chosen: The number of the candidate that won.
        data: The emitted bytes; None for EOS.
    """

    candidates: tuple[Candidate, ...]
    chosen: int
    data: bytes | None

    def likeliest(self, most: int) -> list[int]:
        """The numbers of the candidates to show: at most ``most`` of the likeliest, and the one that won."""
        return [
            n
            for n, candidate in enumerate(self.candidates)
            if n == self.chosen or (n < most and max(candidate.probabilities) >= LEAST)
        ]

    @property
    def won_by(self) -> tuple[int, ...]:
        """The numbers of the members whose likeliest candidate on the union won."""
        members = zip(*(candidate.probabilities for candidate in self.candidates), strict=True)
        return tuple(m for m, own in enumerate(members) if own[self.chosen] == max(own))

    @property
    def disagreement(self) -> float:
        """How much the members' probabilities on the union differ, from 0 (equal) to 1 (nothing in common).

        It is their Jensen-Shannon divergence with equal weights, divided by its maximum, the logarithm of their number.
        """
        members = list(zip(*(candidate.probabilities for candidate in self.candidates), strict=True))
        if len(members) < 2:
            return 0.0
        middle = [sum(each) / len(members) for each in zip(*members, strict=True)]
        divergence = _entropy(middle) - sum(map(_entropy, members)) / len(members)
        # Rounding may leave the range a little.
        return min(max(divergence / math.log(len(members)), 0.0), 1.0)


def _entropy(probabilities: Sequence[float]) -> float:
    return -sum(p * math.log(p) for p in probabilities if p > 0)


def packed_candidates(step: Distribution, winners: Tensor) -> list[Tensor]:
    """The numbers for :func:`explain`, on the device of the step; ``winners`` [B, 1] are indices of entries.

    They are the winners, and of S entries to show their indices [B, S], entries, presence, ids and means; for each
    member its probabilities [B, S] of them; for each member the entries that it wants.
    """
    entries, width = step.entries, step.entries.shape[1]
    if step.tops is not None:
        shown = torch.arange(width, device=entries.device).expand(len(entries), -1)
        wanted = step.tops
    else:
        # The winner of a draw may be far from the likeliest entries, and is shown in any case.
        shown = torch.cat([winners, step.mean.topk(min(SHOWN, width)).indices], dim=1)
        wanted = tuple(entries.gather(1, own.topk(min(SHOWN // 2, width)).indices) for own in step.members)
    of_entries = [each.gather(1, shown) for each in (entries, step.present, step.ids, step.mean, *step.members)]
    return [winners, shown, *of_entries, *wanted]


def explain(
    numbers: Sequence[Sequence[float]], entry_bytes: Callable[[int], bytes | None], emitted: bytes | None, ids: int
) -> Step:
    """Explain a row of a step by the tensors of :func:`packed_candidates`; the bytes of EOS are None."""
    (winner,), shown, entries, present, tokens, means, *of_members = numbers
    members, wanted = of_members[: len(of_members) // 2], of_members[len(of_members) // 2 :]
    # Each entry once, at its index in the row. They are in the order of the indices, and a stable sort keeps it.
    places = {int(index): place for place, index in enumerate(shown) if present[place]}
    order = sorted(sorted(places), key=lambda index: -means[places[index]])
    probabilities = list(zip(*members, strict=True))
    wanted_by: dict[float, tuple[int, ...]] = {}
    for member, own in enumerate(wanted):
        for entry in {*own}:
            wanted_by[entry] = (*wanted_by.get(entry, ()), member)
    candidates = []
    for place in map(places.__getitem__, order):
        entry, token = entries[place], int(tokens[place])
        candidates.append(
            Candidate(
                data=entry_bytes(int(entry)),
                token=None if token == NONE or token >= ids else token,
                wanted_by=wanted_by.get(entry, ()),
                probabilities=probabilities[place],
                mean=means[place],
            )
        )
    return Step(tuple(candidates), order.index(int(winner)), emitted)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token that a step may emit."""

    data: bytes | None  # its bytes; None for EOS
    logprob: float  # the natural logarithm of the ensemble's probability that it is emitted


@dataclass(frozen=True, slots=True)
class StepLogprobs:
    """The log-probabilities of a step: of the emitted token, and of the likeliest, in descending order.

    Probabilities are the method's, before any temperature: over the union if it makes one, else over all entries.
    Entries for which the primary emits the same token (the first of several that spell them) count together.
    """

    emitted: TokenLogprob
    alternatives: tuple[TokenLogprob, ...]


def packed_logprobs(step: Distribution, tokens: Tensor, counts: Mapping[int, int]) -> Tensor:
    """For :func:`step_logprobs`, on the step's device: [B, 1 + 2 n] for n alternatives, in float64.

    ``tokens`` [B, 1] are what each row emits, as in ``step.ids``. Rows without a number in ``counts`` have no meaning.
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
    """The log-probabilities of a row of :func:`packed_logprobs`; ``data_of`` gives a token's bytes, None for EOS."""
    most = len(numbers) // 2
    best = zip(numbers[1 : 1 + count], numbers[1 + most :], strict=False)
    alternatives = tuple(TokenLogprob(data_of(int(other)), value) for value, other in best if value > -math.inf)
    return StepLogprobs(TokenLogprob(data_of(token), numbers[0]), alternatives)
