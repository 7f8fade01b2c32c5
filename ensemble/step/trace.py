"""The explanation of a step: what each member wanted, the union, and the entry that won."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


def explain(
    step: Distribution,
    row: int,
    winner: int,
    entry_bytes: Callable[[int], bytes | None],
    emitted: bytes | None,
    ids: int,
) -> Step:
    """Explain a row of a step.

    Args:
        step: The step.
        row: The row of the batch.
        winner: The index of the chosen entry in the row.
        entry_bytes: Gives the bytes of an entry of the joint vocabulary, None for EOS.
        emitted: The emitted bytes; None for EOS.
        ids: The number of the primary's ids.
    """
    entries = step.entries[row].tolist()
    if step.tops is None:
        # The winner of a draw may be far from the likeliest entries, and is shown in any case.
        shown = {winner, *step.mean[row].topk(min(SHOWN, len(entries))).indices.tolist()}
        best = step.members[:, row].topk(min(SHOWN // 2, len(entries))).indices.tolist()
        wanted = [{entries[n] for n in indices} for indices in best]
    else:
        shown = {*range(len(entries))}
        wanted = [set(top[row].tolist()) for top in step.tops]
    # Sorted by index first: the second sort is stable, so ties always come in the same order.
    order = sorted((n for n in sorted(shown) if bool(step.present[row, n])), key=lambda n: -float(step.mean[row, n]))
    candidates = []
    for n in order:
        token = int(step.ids[row, n])
        candidates.append(
            Candidate(
                data=entry_bytes(entries[n]),
                token=None if token == NONE or token >= ids else token,
                wanted_by=tuple(m for m, top in enumerate(wanted) if entries[n] in top),
                probabilities=tuple(float(p) for p in step.members[:, row, n]),
                mean=float(step.mean[row, n]),
            )
        )
    return Step(tuple(candidates), order.index(winner), emitted)
