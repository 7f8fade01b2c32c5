"""A strategy that asks its models one by one, with all that is needed to run it."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.pool.pool_file import PoolEntry
from advisor.strategies.strategy import Strategy
from advisor.strategies.vote_reader import VoteReader
from ensemble.models.spec import ModelSpec

ALONE = "average"
"""The method of a single model: it gives the whole vocabulary's probabilities, which draws and requests need."""


@dataclass(frozen=True, slots=True)
class StrategyPlan:
    """A strategy that asks its models one by one.

    Attributes:
        strategy: The strategy, with the dev questions if it reads them.
        members: Its models in its order: a model to load, or the entry of a model behind a server.
        max_new_tokens: The default limit of a response; None for the program's default.
        stop: The default stop strings.
        reader: Reads the answers; None if the strategy counts none.
    """

    strategy: Strategy
    members: tuple[ModelSpec | PoolEntry, ...]
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    reader: VoteReader | None = None
