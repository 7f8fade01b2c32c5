"""The numbers that the files have for a candidate, a member, a method and the ensemble alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from advisor.runs.read.fields import Fields, Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """A model, a method or an ensemble, and what was measured on ``n`` questions. None stands for unknown.

    It holds a member of the set, another strategy for the set's answers, or a group of questions. Subclasses add what
    only a candidate, the ensemble or an evaluated method has.

    Attributes:
        accuracy: In points, 0 to 100, as its interval and the differences.
        corpus_score: Of all responses together, in points, with its interval; for tasks scored by BLEU or chrF.
        mean_length: In characters.
        truncated: Responses that ended at the token limit.
        seconds: For all responses.
        peak_memory: In bytes.
        delta: Accuracy minus that of the best single model.
        p_value: Of that difference.
    """

    name: str
    n: int = 0
    accuracy: float | None = None
    accuracy_ci: Interval | None = None
    corpus_score: float | None = None
    corpus_score_ci: Interval | None = None
    mean_length: float | None = None
    truncated: int = 0
    seconds: float | None = None
    tokens_per_second: float | None = None
    peak_memory: float | None = None
    delta: float | None = None
    delta_ci: Interval | None = None
    p_value: float | None = None

    @property
    def has_cost(self) -> bool:
        """Whether time, speed or memory is known."""
        return any(value is not None for value in (self.seconds, self.tokens_per_second, self.peak_memory))


def measurements(fields: Fields, n: int = 0) -> dict[str, Any]:
    """Return the arguments of :class:`Measurements` but the name, which the files keep under different keys."""
    numbers = ("accuracy", "corpus_score", "mean_length", "seconds", "tokens_per_second", "peak_memory", "delta")
    return {
        **{name: fields.number(name) for name in (*numbers, "p_value")},
        **{name: fields.interval(name) for name in ("accuracy_ci", "corpus_score_ci", "delta_ci")},
        "n": fields.count("n", n),
        "truncated": fields.count("truncated"),
    }
