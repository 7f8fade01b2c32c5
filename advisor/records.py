"""The values that the stages of the pipeline pass on: answers, profiles, rules and what the rules decided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ensemble.errors import InputError

FinishReason = Literal["eos", "stop", "length", "error"]
Status = Literal["primary", "selected", "rejected", "failed"]
Verdict = Literal["ensemble", "single", "cannot_tell"]

LEVEL = 0.05
"""Chance of a false alarm that is accepted by default; intervals have the confidence 1 - LEVEL."""
TRIES = 4
"""Sets that a search decodes by default, the one that the rules choose included."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One model's (or the ensemble's) graded response to one question.

    Attributes:
        id: The question's id within its task.
        text: The response, untrusted text.
        extracted: What the metric read from it, None where it found nothing.
        score: Between 0 and 1.
        finish_reason: Why generation ended; ``length`` means it was cut off, ``error`` that there is no response.
        error: One line of what went wrong, where ``finish_reason`` is ``error``.
        options: Of a choice task: the log-probability of each option, None where it cannot be written.
        group: The part of the task that the question belongs to.
    """

    id: str
    text: str
    extracted: str | None
    score: float
    finish_reason: FinishReason
    error: str | None = None
    options: tuple[float | None, ...] = ()
    group: str | None = None

    @property
    def length(self) -> int:
        """Characters of the response."""
        return len(self.text)


@dataclass(frozen=True, slots=True)
class Profile:
    """One candidate on one split: its answers, in the order of the split's questions."""

    model: str
    answers: tuple[Answer, ...]

    @property
    def accuracy(self) -> float:
        """Mean score, in points (0 to 100)."""
        return 100 * _mean([answer.score for answer in self.answers])

    @property
    def mean_length(self) -> float:
        """Mean length of the responses, in characters; questions without one do not count. 0 where there is none."""
        return _mean([answer.length for answer in self.answers if answer.error is None] or [0])

    @property
    def errors(self) -> int:
        """Questions that could not be answered: they count as wrong, and have no length."""
        return sum(answer.error is not None for answer in self.answers)

    @property
    def groups(self) -> dict[str, tuple[int, float]]:
        """Questions and accuracy (in points) of each part of the task, in the order of their names."""
        scores: dict[str, list[float]] = {}
        for answer in self.answers:
            if answer.group is not None:
                scores.setdefault(answer.group, []).append(answer.score)
        return {name: (len(scores[name]), 100 * _mean(scores[name])) for name in sorted(scores)}

    @property
    def truncated(self) -> int:
        """Responses that were cut off at the token limit."""
        return sum(answer.finish_reason == "length" for answer in self.answers)


@dataclass(frozen=True, slots=True)
class Standing:
    """What the rules look at: a candidate's accuracy in points and its mean length in characters, where known."""

    model: str
    accuracy: float
    mean_length: float | None


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits of section 4.1, both inclusive.

    Attributes:
        max_gap: Points of accuracy that a candidate may be behind the primary, 0 to 100.
        max_length_ratio: Longer mean length over shorter mean length, at least 1.
        max_models: Members in the set, the primary included, at least 1.
    """

    max_gap: float = 10.0
    max_length_ratio: float = 2.0
    max_models: int = 3

    def __post_init__(self) -> None:
        # NaN fails each of these comparisons, too.
        if not 0 <= self.max_gap <= 100:
            raise InputError(f"--max-gap {self.max_gap:g}: give points from 0 to 100")
        # result.json has the limits, and JSON has no infinity.
        if not (math.isfinite(self.max_length_ratio) and self.max_length_ratio >= 1):
            raise InputError(f"--max-length-ratio {self.max_length_ratio:g}: give a ratio of at least 1")
        if self.max_models < 1:
            raise InputError(f"--max-models {self.max_models}: give at least 1")


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one candidate, and why, as a sentence with the figures."""

    model: str
    status: Status
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The rules' outcome: a decision for each candidate, best first, and the chosen set, the primary first."""

    decisions: tuple[Decision, ...]
    selected: tuple[str, ...]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
