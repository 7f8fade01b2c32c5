"""How likely what was emitted was under the ensemble, and what else was likely there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from ensemble.distribution import Distribution
from ensemble.joint import NONE


@dataclass(frozen=True, slots=True)
class Likely:
    """An entry of the joint vocabulary.

    Attributes:
        data: Its bytes; None for EOS.
        logprob: The natural logarithm of the ensemble's probability of it.
    """

    data: bytes | None
    logprob: float


@dataclass(frozen=True, slots=True)
class Likelihood:
    """A step of a text.

    Probabilities are those of the method, before any temperature: over the union where it makes one, else over all
    entries.

    Attributes:
        emitted: What was emitted.
        alternatives: The likeliest entries that the primary can express, the likeliest first.
    """

    emitted: Likely
    alternatives: tuple[Likely, ...]


def likelihoods(
    step: Distribution, winners: Tensor, asked: Mapping[int, int], entry_bytes: Callable[[int], bytes | None]
) -> dict[int, Likelihood]:
    """The likelihoods of some rows of a step.

    Args:
        step: What the method made of it.
        winners: [B] the index of the chosen entry within each row.
        asked: For each of these rows, how many alternatives it has at most.
        entry_bytes: Gives the bytes of an entry of the joint vocabulary, None for EOS.
    """
    rows = list(asked)
    expressed = step.mean[rows].masked_fill(step.ids[rows] == NONE, 0)
    best = expressed.topk(min(max(asked.values()), expressed.shape[1]), dim=1)
    entries = step.entries[rows]
    chosen = winners[rows][:, None]
    emitted = zip(
        entries.gather(1, chosen)[:, 0].tolist(), expressed.gather(1, chosen)[:, 0].log().tolist(), strict=True
    )
    others = zip(entries.gather(1, best.indices).tolist(), best.values.log().tolist(), strict=True)
    return {
        row: Likelihood(
            Likely(entry_bytes(entry), logprob),
            tuple(
                Likely(entry_bytes(other), value)
                for other, value in zip(*(own[: asked[row]] for own in found), strict=True)
                if value > float("-inf")
            ),
        )
        for row, (entry, logprob), found in zip(rows, emitted, others, strict=True)
    }
