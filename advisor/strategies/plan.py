"""A strategy that asks its models one by one, with all that is needed to run it."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.advice.strategies import Strategy
from advisor.strategies.answers import AnswerReader
from ensemble.models.spec import ModelSpec

ALONE = "average"
"""The method of a single model: it gives the whole vocabulary's probabilities, which draws and requests need."""
DevScores = tuple[tuple[str, ...], tuple[tuple[float, ...], ...]]
"""What a router learns from: the dev questions, and for each of them every member's score, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class StrategyPlan:
    """A strategy that asks its models one by one.

    Attributes:
        strategy: The strategy.
        members: Its models in its order: a model to load, or the entry of a model behind a server.
        max_new_tokens: The default limit of a response; None for the program's default.
        stop: The default stop strings.
        reader: Reads the answers; None if the strategy does not vote.
        learned: What a router learns from; empty for other strategies.
    """

    strategy: Strategy
    members: tuple[ModelSpec, ...]
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    reader: AnswerReader | None = None
    learned: DevScores = ((), ())


def is_score(value: object) -> bool:
    """Whether a value is a number from 0 to 1; NaN is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
