"""What happened at a step: what each member wanted, the union, and who won."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ensemble.joint import NONE
from ensemble.methods.unite import Union


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry of a step's union.

    Attributes:
        data: Its bytes; None for EOS.
        token: The primary's id for it; None where the primary cannot express it.
        wanted_by: The members that have it among their top k, by number.
        probabilities: Each member's own probability, renormalised on the union.
        mean: Their weighted mean.
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
        candidates: The union, the largest mean first.
        chosen: The number of the candidate that won.
        data: The bytes that were emitted: those of the primary's id; None for EOS.
    """

    candidates: tuple[Candidate, ...]
    chosen: int
    data: bytes | None

    @property
    def won_by(self) -> tuple[int, ...]:
        """The members, by number, that have no likelier candidate on the union than the one that won."""
        members = zip(*(candidate.probabilities for candidate in self.candidates), strict=True)
        return tuple(m for m, own in enumerate(members) if own[self.chosen] == max(own))

    @property
    def disagreement(self) -> float:
        """How far the members' probabilities on the union are apart, from 0 (the same) to 1 (nothing in common).

        Their Jensen-Shannon divergence, each counting alike, divided by its maximum: the logarithm of their number.
        """
        members = list(zip(*(candidate.probabilities for candidate in self.candidates), strict=True))
        if len(members) < 2:
            return 0.0
        middle = [sum(each) / len(members) for each in zip(*members, strict=True)]
        divergence = _entropy(middle) - sum(map(_entropy, members)) / len(members)
        return min(max(divergence / math.log(len(members)), 0.0), 1.0)


def _entropy(probabilities: Sequence[float]) -> float:
    return -sum(p * math.log(p) for p in probabilities if p > 0)


def explain(
    union: Union, row: int, winner: int, entry_bytes: Callable[[int], bytes | None], emitted: bytes | None
) -> Step:
    """Describe a row of a step.

    Args:
        union: The step.
        row: The row of the batch.
        winner: The index of the chosen entry within the row.
        entry_bytes: Gives the bytes of an entry of the joint vocabulary, None for EOS.
        emitted: The bytes of the primary's id that was emitted.
    """
    entries = union.entries[row].tolist()
    present = [n for n, there in enumerate(union.present[row].tolist()) if there]
    order = sorted(present, key=lambda n: -float(union.mean[row, n]))
    wanted = [set(top[row].tolist()) for top in union.tops]
    candidates = []
    for n in order:
        token = int(union.ids[row, n])
        candidates.append(
            Candidate(
                data=entry_bytes(entries[n]),
                token=None if token == NONE else token,
                wanted_by=tuple(m for m, top in enumerate(wanted) if entries[n] in top),
                probabilities=tuple(float(p) for p in union.members[:, row, n]),
                mean=float(union.mean[row, n]),
            )
        )
    return Step(tuple(candidates), order.index(winner), emitted)
