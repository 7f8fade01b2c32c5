"""Racing: which candidates need no more questions, because they cannot come within the gap of the best.

All candidates are asked the same questions in the same random order. What is bounded is the outcome of the full run on
these very questions: a finite population, drawn without replacement, so that evidence grows to certainty at its end.

    For a candidate c and each other o, bet against "o is at most the gap ahead of c" with every question's difference
    of scores. If the claim is true, no bet is expected to win, so that its wealth reaches 1 / level with a chance of at
    most `level`, however often one looks (Ville). If c fits the final best one, it is at most the gap behind *every*
    other, all the claims are true, and so the mean of the wealths is such a wealth too: nobody needs to know who will
    lead.

The bets are those of Waudby-Smith and Ramdas (2020, Confidence sequences for sampling without replacement, and 2024,
Estimating means of bounded random variables by betting), with a mixture of fixed fractions for the size of the bet.

Not covered: the length rule. Lengths have no upper bound, and without one no statement about their mean holds at any
stopping time; a candidate of another length stays in the race, and the rule is applied to all of its responses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from advisor.choose.rules import TOLERANCE
from advisor.records import LEVEL, Rules
from advisor.statistics import Floats

FIRST_ROUND = 16
"""Questions of the first round. Each round asks as many as all before it: loading a model again costs little then."""
_BETS = (np.arange(10) + 0.5) / 10
"""Fractions of the largest bet that cannot ruin: large ones win soon where the gap is wide, small ones elsewhere."""


@dataclass(frozen=True, slots=True)
class Drop:
    """A candidate that left the race.

    Attributes:
        model: Its number.
        asked: Questions that it was asked.
        gap: Points that it was behind the best on these.
        bound: Points that it is behind the best on all questions, at least, at the confidence of the race.
    """

    model: int
    asked: int
    gap: float
    bound: float


@dataclass(frozen=True, slots=True)
class Raced:
    """A race that is over.

    Attributes:
        asked: Questions that each candidate was asked.
        drops: Who left it, in that order.
    """

    asked: tuple[int, ...]
    drops: tuple[Drop, ...]

    @property
    def running(self) -> tuple[int, ...]:
        """Who was asked all questions."""
        out = {drop.model for drop in self.drops}
        return tuple(model for model in range(len(self.asked)) if model not in out)

    @property
    def share(self) -> float:
        """Responses that were needed, of those of the full run."""
        return sum(self.asked) / (len(self.asked) * max(self.asked))


class Race:
    """A race that goes on: says whom to ask how many questions, and takes their scores.

    Args:
        models: How many candidates, at least 1.
        questions: How many there are, at least 1.
        max_gap: Points that a member may be behind the best, 0 to 100.
        level: Accepted chance that anybody is dropped who is within the gap on all questions, between 0 and 1.

    Attributes:
        running: Who is still asked.
        drops: Who is not, in the order that they left.
    """

    def __init__(self, models: int, questions: int, max_gap: float, level: float = LEVEL) -> None:
        self._scores = np.full((models, questions), math.nan)
        self._limit = (max_gap + TOLERANCE) / 100
        # Shared among the candidates, each of whom may be dropped wrongly.
        self._threshold = models / level
        self._asked = 0
        self.running: tuple[int, ...] = tuple(range(models))
        self.drops: tuple[Drop, ...] = ()

    @property
    def next_round(self) -> range:
        """Places, in the race's order, of the questions to ask those who run; empty at the end."""
        everything = self._scores.shape[1]
        until = max(FIRST_ROUND, 2 * self._asked)
        # Nothing is left to be saved where the others are few, or where nobody is left to be dropped.
        if 1.5 * until >= everything or len(self.running) < 2:
            until = everything
        return range(self._asked, until)

    def record(self, scores: Mapping[int, Sequence[float]]) -> tuple[Drop, ...]:
        """Take the scores of a round, each between 0 and 1; who is dropped after it.

        Args:
            scores: Of each who runs, on the questions of `next_round` in their order.
        """
        places = self.next_round
        for model in self.running:
            self._scores[model, places.start : places.stop] = scores[model]
        self._asked = places.stop
        if self._asked == self._scores.shape[1]:
            return ()  # the rules decide now
        drops = tuple(self._drop(model) for model in self.running if self._is_out(model, self._limit))
        out = {drop.model for drop in drops}
        self.running = tuple(model for model in self.running if model not in out)
        self.drops += drops
        return drops

    def result(self) -> Raced:
        """What was asked of whom."""
        asked = {drop.model: drop.asked for drop in self.drops}
        return Raced(tuple(asked.get(model, self._asked) for model in range(len(self._scores))), self.drops)

    def _is_out(self, model: int, limit: float) -> bool:
        """Whether a candidate is shown to be further than a limit, 0 to 1, behind some other one."""
        models, questions = self._scores.shape
        if len(self.running) < 2:
            return False
        # Of the others only those who still run: wealth that is left out makes the mean smaller, and never too large.
        others = [other for other in self.running if other != model]
        ahead = self._scores[others, : self._asked] - self._scores[model, : self._asked]
        # Wealth beyond e**600 decides nothing any more, and its sum is still a number.
        wealth = np.exp(np.minimum(log_wealth(ahead, limit, questions), 600)).sum(axis=(0, 2))
        return bool(wealth.max() / ((models - 1) * len(_BETS)) >= self._threshold)

    def _drop(self, model: int) -> Drop:
        means = self._scores[list(self.running), : self._asked].mean(axis=1)
        gap = float(means.max() - self._scores[model, : self._asked].mean())
        # Wealth falls as the limit rises, so the largest limit that is still refuted is found by halving.
        low, high = self._limit, 1.0
        while high - low > 1e-3:  # a tenth of a point
            middle = (low + high) / 2
            low, high = (middle, high) if self._is_out(model, middle) else (low, middle)
        return Drop(model, self._asked, 100 * gap, 100 * low)


def log_wealth(differences: Floats, limit: float, questions: int) -> Floats:
    """Logarithm of what bets against "the mean of all differences is at most `limit`" have won after each question.

    Args:
        differences: Claims by questions asked so far, in their random order; each difference between -1 and 1.
        limit: Between -1 and 1.
        questions: How many there are in all, at least as many as were asked.

    Returns:
        Claims by questions by bets; infinite from where the claim cannot be true any more, whatever the rest brings.
    """
    asked = np.arange(differences.shape[1])
    after = differences.cumsum(axis=1)
    # What the rest must have on average if the mean of all is the limit, counted from -1, the least that it can be.
    room = 1 + (questions * limit - (after - differences)) / (questions - asked)
    ratio = (1 + differences) / np.maximum(room, 1e-12)
    won = np.log1p(_BETS * (ratio[..., None] - 1)).cumsum(axis=1)
    impossible = after - (questions - asked - 1) > questions * limit + TOLERANCE
    return np.where(np.logical_or.accumulate(impossible, axis=1)[..., None], math.inf, won)


def race(
    scores: Floats, rules: Rules, level: float = LEVEL, order: Sequence[int] | NDArray[np.int_] | None = None
) -> Raced:
    """Run a race on scores that are known already: what it would have asked, and whom it would have dropped.

    Args:
        scores: Models by questions, each between 0 and 1.
        rules: The limits, of which the gap matters.
        level: Accepted chance that anybody is dropped who is within the gap on all questions, between 0 and 1.
        order: Of the questions; as they are where left out, which must be random then.
    """
    asked = scores if order is None else scores[:, np.asarray(order)]
    models, questions = asked.shape
    running = Race(models, questions, rules.max_gap, level)
    while places := running.next_round:
        running.record({model: asked[model, places.start : places.stop].tolist() for model in running.running})
    return running.result()
