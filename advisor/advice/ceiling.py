"""The ceiling: how much any strategy that takes one of the models' answers can gain over the best single model.

A vote, a cascade or a router is right only where one of its models is. So it gains at most on the questions on which
the best single model is wrong and another one is right. Draws of one model, and sets that decode together, may write
answers that no model gave: they are not bounded.
"""

from __future__ import annotations

import numpy as np

from advisor.statistics import Floats
from advisor.strategies.strategy import Strategy


def is_bounded(strategy: Strategy) -> bool:
    """Whether a strategy takes one of the answers that its models gave alone."""
    return strategy.ASKS and strategy.responses_per_member == 1


def ceiling_of(best: Floats, members: Floats) -> float:
    """The most that strategies of some models can gain over the best single model on these questions, in points.

    Args:
        best: The scores of the best single model, one for each question, 0 to 1.
        members: The scores of the strategy's models, models by questions.
    """
    return 100 * float(np.maximum(members.max(axis=0) - best, 0.0).mean())
