"""Questions in batches until the test tells: power, number of questions and level of the design, by simulation.

The sets are like those of the zoo that gain 3.5 to
6.5 points: their rate of right answers, by the number of members that are right, and how often members agree.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import optimize, special, stats

from advisor.advice.gain import Gain, cross_fitted_gain
from advisor.advice.sequential import look_until_sure, planned_looks
from advisor.records import ALPHA, MOST_QUESTIONS
from advisor.run.result import InterimAnalysis
from advisor.statistics import Floats, mcnemar
from benchmarks._measure import Figure

DEV = 300
"""Questions that only the single models answered."""
TIED, NEAR, SPREAD = (70, 70, 70), (70, 69, 67), (75, 68, 61)
"""Accuracies of members, in points."""
CLUSTER = 5
"""Questions that share a passage."""
_RATES = np.array([0.16, 0.50, 0.92, 0.99])
"""Of the zoo's triples that gain: how often the set is right if 0, 1, 2 or 3 of its members are."""
_AGREEMENT = (
    0.35  # share of a member's ability at a question that all members have in common: phi is 0.2, as in the zoo
)


@dataclass(frozen=True)
class Case:
    """Members of known accuracies, in points, and a set of them with a known gain.

    Attributes:
        accuracies: The members', in points, the best first; three.
        gain: The set's true accuracy minus the best member's, in points.
        size: Questions that share a passage; 1 for questions that are independent.
    """

    accuracies: tuple[float, ...]
    gain: float = 0.0
    size: int = 1

    @cached_property
    def rates(self) -> Floats:
        """How often the set is right, by the number of members that are: the zoo's, moved to the wanted gain."""
        # Given the common part, the members are independent: the distribution of their number by integration.
        nodes, weights = np.polynomial.hermite_e.hermegauss(80)
        ends = stats.norm.ppf(np.array(self.accuracies) / 100)[:, None]
        right = stats.norm.cdf((ends - math.sqrt(_AGREEMENT) * nodes) / math.sqrt(1 - _AGREEMENT))
        counts = np.ones((1, len(nodes)))
        for chance in right:
            counts = np.vstack([counts * (1 - chance), np.zeros(len(nodes))]) + np.vstack(
                [np.zeros(len(nodes)), counts * chance]
            )
        shares = counts @ weights / weights.sum()
        wanted = (self.accuracies[0] + self.gain) / 100

        def excess(shift: float) -> float:
            return float(shares @ special.expit(special.logit(_RATES) + shift)) - wanted

        moved: Floats = special.expit(special.logit(_RATES) + optimize.brentq(excess, -9, 9))
        return moved

    def draw(self, questions: int, chance: np.random.Generator) -> tuple[Floats, Floats]:
        """Scores of the members and of the set on the dev questions and so many held-out ones, 0 or 1."""
        n = DEV + questions
        common, own, luck = self._normal((n,), chance), self._normal((3, n), chance), self._normal((n,), chance)
        ability = math.sqrt(_AGREEMENT) * common + math.sqrt(1 - _AGREEMENT) * own
        right = ability < stats.norm.ppf(np.array(self.accuracies) / 100)[:, None]
        together = stats.norm.cdf(luck) < self.rates[right.sum(axis=0)]
        return right.astype(np.float64), together.astype(np.float64)

    def judge(self, members: Floats, together: Floats, questions: int) -> Gain:
        """The gain by the first held-out questions, over the member that is the best on these and on dev."""
        own = slice(DEV, DEV + questions)
        best = members[members[:, : own.stop].mean(axis=1).argmax()]
        clusters = np.arange(questions) // self.size if self.size > 1 else None
        return cross_fitted_gain((together[own] - best[own])[None], clusters)

    def estimate(self, questions: int, chance: np.random.Generator) -> Gain:
        """The gain by new questions."""
        return self.judge(*self.draw(questions, chance), questions)

    def _normal(self, shape: tuple[int, ...], chance: np.random.Generator) -> Floats:
        """Standard normal numbers; half of the variance of a question is that of its passage."""
        own = chance.standard_normal(shape)
        if self.size == 1:
            return own
        places = np.arange(shape[-1]) // self.size
        shared: Floats = chance.standard_normal((*shape[:-1], int(places[-1]) + 1))[..., places]
        return (own + shared) / math.sqrt(2)


def power_figure(count: int) -> Figure:
    """How often the plain test shows a gain of 5 points by 300 held-out questions.

    Args:
        count: Draws, at least 1.
    """
    case, chance, n = Case(SPREAD, gain=5.0), np.random.default_rng(2), 300
    shown = []
    for _ in range(count):
        members, together = case.draw(n, chance)
        own = members[:, DEV:]
        differences = together[DEV:] - own[own.mean(axis=1).argmax()]
        shown.append(mcnemar(differences) <= ALPHA and bool(differences.mean() > 0))
    what = f"gain 5, n = 300, members {', '.join(map(str, SPREAD))}%, rates of the zoo; of {count}"
    note = f"{what}, exact two-sided McNemar test against the best member held out"
    return Figure("power_gain5_n300_paired", statistics.mean(shown), note=note)


def sequential_figures(count: int) -> Iterator[Figure]:
    """How the design does.

    Args:
        count: Runs of each kind, at least 1.
    """
    looks = _run(Case(SPREAD, gain=5.0), count)
    shown = [look.p_no_gain <= look.limit for look in looks]
    what = f"runs with --until-sure, at most {MOST_QUESTIONS} held-out questions, gain 5, spread members"
    yield Figure("sequential_power_gain5", statistics.mean(shown), limit="at least 0.94", note=f"of {count} {what}")
    asked = statistics.mean(look.n for look in looks)
    yield Figure("sequential_questions_gain5", asked, limit="at most 500", note=f"held-out questions, mean of {what}")
    cases = [Case(accuracies, size=size) for size in (1, CLUSTER) for accuracies in (TIED, NEAR, SPREAD)]
    sizes = [statistics.mean(look.p_no_gain <= look.limit for look in _run(case, count)) for case in cases]
    note = (
        f"false `ensemble`: the worst of tied, near and spread members, clusters of 1 and {CLUSTER}, {count} runs each"
    )
    yield Figure("sequential_size", max(sizes), min(sizes), max(sizes), limit="at most 0.05", note=note)


def _run(case: Case, count: int) -> list[InterimAnalysis]:
    """The last look of each run."""
    chance, plan = np.random.default_rng(0), planned_looks(MOST_QUESTIONS)
    blank = InterimAnalysis(
        questions="",
        members=("set",),
        method="unite",
        k=1,
        plan=plan,
        n=plan[-1],
        p_no_gain=1.0,
        p_no_loss=1.0,
        limit=0.0,
        test=1,
    )
    return [_last(case, case.draw(MOST_QUESTIONS, chance), blank) for _ in range(count)]


def _last(case: Case, scores: tuple[Floats, Floats], blank: InterimAnalysis) -> InterimAnalysis:
    return look_until_sure(lambda n: case.judge(*scores, n), blank)[-1]
