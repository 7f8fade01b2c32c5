"""The ceiling: how much any strategy that takes one of the models' answers can gain over the best single model.

A vote, a cascade or a router is right only where one of its models is. So it gains at most on the questions on which
the best single model is wrong and another one is right. Draws of one model, sets that decode together and fusions may
write answers that no model gave: they are not bounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from advisor.records import FIGURE_ALPHA
from advisor.runs.schema.samples import RIGHT
from advisor.statistics import Floats, Interval, Labels, cluster_totals
from advisor.strategies.strategy import Strategy

FEWEST_QUESTIONS = 30
"""Of a group that gets a ceiling: with fewer, the limit is above ten points even if no question is left."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What strategies that take one of some models' answers can gain at most.

    Attributes:
        points: The mean over the questions of how much the best of the models is better than the best single model;
            for scores of 0 and 1, the share of questions on which that one is wrong and another one is right.
        interval: Its 95% interval, in points. The upper end is what such a strategy cannot gain more than.
        all_wrong: The share of questions on which no model is right, in points.
        n: The questions.
    """

    points: float
    interval: Interval
    all_wrong: float
    n: int


def is_bounded(strategy: Strategy) -> bool:
    """Whether a strategy takes one of the answers that its models gave alone."""
    return not strategy.WRITES and strategy.responses_per_member == 1


def ceiling_of(scores: Floats, members: Sequence[int], clusters: Labels | None = None) -> Ceiling:
    """The ceiling of strategies of some models, over the best single model of all.

    The interval is Clopper and Pearson's (1934, Biometrika 26(4)), exact for scores of 0 and 1. Graded scores have
    Bentkus' bound (2004, Annals of Probability 32(2)): the level divided by e. Questions in clusters count as fewer
    questions (Korn and Graubard 1998, Survey Methodology 24(2)). The model that is the best on these questions was
    lucky on them, which makes its ceiling look too low. So each model's has the level divided by their number
    (Bonferroni): then all of them hold at once, and with them that of whichever model is the best.

    Args:
        scores: The scores of all models, models by questions, 0 to 1; at least one question.
        members: The rows of the strategies' models.
        clusters: The cluster of each question; None if each is its own.
    """
    best = scores[int(scores.mean(axis=1).round(9).argmax())]
    top = scores[list(members)].max(axis=0)
    room = np.maximum(top - best, 0.0)
    level = FIGURE_ALPHA / len(scores)
    if not np.isin(scores, (0.0, 1.0)).all():
        level /= math.e
    points = 100 * float(room.mean())
    all_wrong = 100 * float((scores.max(axis=0) < RIGHT).mean())
    return Ceiling(points, _clopper_pearson(room, clusters, level), all_wrong, scores.shape[1])


def _clopper_pearson(values: Floats, clusters: Labels | None, level: float) -> Interval:
    """The interval of a mean of values from 0 to 1, in points; the mean is beyond each end with probability `level`."""
    n = _questions_that_count(values, clusters)
    x = n * float(values.mean())
    low = float(special.betaincinv(x, n - x + 1, level)) if x > 0 else 0.0
    high = float(special.betaincinv(x + 1, n - x, 1 - level)) if x < n else 1.0
    return 100 * low, 100 * high


def _questions_that_count(values: Floats, clusters: Labels | None) -> float:
    """As many independent questions as tell as much; questions in clusters tell less."""
    n = float(len(values))
    if clusters is None:
        return n
    totals, sizes = cluster_totals(values, clusters)
    mean = float(values.mean())
    independent = mean * (1 - mean) * n
    if independent <= 0 or len(sizes) < 2:
        return float(len(sizes))
    together = float(((totals - sizes * mean) ** 2).sum()) * len(sizes) / (len(sizes) - 1)
    return max(float(len(sizes)), n / max(1.0, together / independent)) if together > 0 else n
