"""Models against each other on the same questions: the difference of each pair, how sure it is, and a gate on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Literal

import numpy as np
from scipy import stats

from advisor.compare.score_table import ScoreTable
from advisor.records import ALPHA, FIGURE_ALPHA, TOLERANCE
from advisor.statistics import (
    EXACT_FLIPS,
    Floats,
    Interval,
    Labels,
    bonett_price,
    cluster_interval,
    cluster_sign_flip,
    cluster_totals,
    flip_p_value,
    flipped_sums,
    holm,
    is_binary,
    is_plain,
    mcnemar,
    percentile_interval,
    questions_needed,
    resampled_means,
    wilson,
)

MARGIN = 1.0
"""Points within which two models count as equally good by default."""
POWER = 0.8
"""The probability to show a difference, for the figures that say how large a test set must be."""
GateOutcome = Literal["pass", "worse", "unsure"]


@dataclass(frozen=True, slots=True)
class GroupDifference:
    """The difference of two models on the questions of one group.

    Attributes:
        group: The part of the task.
        n: Its questions.
        delta: In points.
        delta_ci: Its interval, in points.
        opposite: Whether the difference has another sign than that of all questions.
    """

    group: str
    n: int
    delta: float
    delta_ci: Interval
    opposite: bool


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Two models on the same questions. Differences are those of ``b`` minus those of ``a``, in points.

    Attributes:
        a: The model that comes first in the table.
        b: The other model.
        n: Questions.
        delta: Accuracy of ``b`` minus that of ``a``; above 0, ``b`` is better.
        delta_ci: Its interval.
        delta_method: The method of the interval.
        p_value: Two-sided, of no difference.
        p_adjusted: The same after Holm's correction for all pairs of the table.
        test: The test of the p-value.
        gained: Questions on which ``b`` scores more.
        lost: Questions on which ``b`` scores less.
        discordance: Mean squared difference of the scores, 0 to 1.
        margin_ci: The interval for two one-sided tests, each with the confidence of the other interval.
        equivalent: Whether this interval is within the margin: the models are shown to be equally good.
        smallest_shown: The smallest true difference that these questions show with a probability of 80%, after the
            correction for all pairs.
        questions_needed: Questions, in all, that show a true difference of this size with a probability of 80%; None if
            no difference was observed.
        questions_safe: The same for the least difference that is likely (the lower end of the one-sided 80% interval);
            None if this is not above 0. The observed difference is often too large by luck, and then
            ``questions_needed`` is too small.
        macro_delta: Mean of the groups' differences; None with fewer than two groups.
        groups: The difference on each group, sorted by name; empty with fewer than two groups.
    """

    a: str
    b: str
    n: int
    delta: float
    delta_ci: Interval
    delta_method: str
    p_value: float
    p_adjusted: float
    test: str
    gained: int
    lost: int
    discordance: float
    margin_ci: Interval
    equivalent: bool
    smallest_shown: float
    questions_needed: int | None
    questions_safe: int | None
    macro_delta: float | None
    groups: tuple[GroupDifference, ...]


@dataclass(frozen=True, slots=True)
class GateResult:
    """What the gate says about one model.

    Attributes:
        model: The model that is compared with the baseline.
        outcome: ``worse``: it is shown to be worse by more than the allowed points. ``pass``: it is shown not to be.
            ``unsure``: the questions are too few to show one of the two.
        delta: Its accuracy minus that of the baseline, in points.
        delta_ci: The limits that decide, in points: each is one-sided, and all together have the confidence.
        smallest_shown: The smallest true loss that the gate finds with a probability of 80%, in points.
    """

    model: str
    outcome: GateOutcome
    delta: float
    delta_ci: Interval
    smallest_shown: float


class PairedScores:
    """Intervals and tests of the differences between the columns of a matrix of scores.

    Args:
        scores: Questions by models, each between 0 and 1; at least one question.
        clusters: The cluster of each question; None if questions count as independent.
        seed: Of the resampling, which only graded scores need.
    """

    def __init__(self, scores: Floats, clusters: Sequence[str] | None = None, seed: int = 0) -> None:
        self.scores, self.seed = scores, seed
        # As numbers once, because sorting thousands of names takes longer than a test.
        self.clusters: Labels | None = None if clusters is None else np.unique(clusters, return_inverse=True)[1]

    def differences(self, a: int, b: int) -> Floats:
        """The scores of column `b` minus those of column `a`."""
        return self.scores[:, b] - self.scores[:, a]

    def accuracy_interval(self, model: int, alpha: float = FIGURE_ALPHA) -> Interval:
        """Interval of the accuracy of one column, in points."""
        values = self.scores[:, model]
        if self.clusters is not None:
            return cluster_interval(values, self.clusters, alpha, (0.0, 1.0))
        return wilson(values, alpha) if is_binary(values) else percentile_interval(self._means[:, model], alpha)

    def interval(self, a: int, b: int, alpha: float = FIGURE_ALPHA) -> tuple[Interval, str]:
        """Interval of the difference, in points, and its method."""
        differences = self.differences(a, b)
        if self.clusters is not None:
            return cluster_interval(differences, self.clusters, alpha), "cluster-robust"
        if is_plain(differences):
            return bonett_price(differences, alpha), "Bonett-Price"
        return percentile_interval(self._means[:, b] - self._means[:, a], alpha), "paired bootstrap"

    def p_value(self, a: int, b: int) -> tuple[float, str]:
        """Two-sided p-value of no difference, and its test."""
        differences = self.differences(a, b)
        changed = np.abs(differences) > TOLERANCE
        if self.clusters is None:
            if is_plain(differences):
                return mcnemar(differences), "exact McNemar"
            test, labels = "sign-flip permutation", np.arange(len(differences))
        else:
            test, labels = "cluster sign-flip permutation", np.asarray(self.clusters)
        if is_plain(differences) or len(np.unique(labels[changed])) <= EXACT_FLIPS:
            return cluster_sign_flip(differences, labels, self.seed), test
        return flip_p_value(self._flipped[:, b] - self._flipped[:, a], float(differences.sum())), test

    @property
    def units(self) -> int:
        """The number of independent parts: clusters, or questions."""
        return len(self.scores) if self.clusters is None else len(np.unique(self.clusters))

    def design_effect(self, a: int, b: int) -> float:
        """How many times the questions' clusters enlarge the variance of the difference, at least 1."""
        if self.clusters is None:
            return 1.0
        differences = self.differences(a, b)
        residuals = differences - differences.mean()
        independent = float((residuals**2).sum())
        totals, _ = cluster_totals(residuals, self.clusters)
        return max(1.0, float((totals**2).sum()) / independent) if independent > TOLERANCE else 1.0

    # One resampling serves all pairs: the difference of two columns of means is the mean of their differences.
    @cached_property
    def _means(self) -> Floats:
        return 100 * resampled_means(self.scores, self.seed)

    @cached_property
    def _flipped(self) -> Floats:
        rows = self.scores if self.clusters is None else cluster_totals(self.scores, self.clusters)[0]
        return flipped_sums(rows, self.seed)


def compare_pairs(
    table: ScoreTable, *, alpha: float = FIGURE_ALPHA, margin: float = MARGIN, seed: int = 0
) -> list[PairedDifference]:
    """Compare each pair of models of a table, in its order.

    Args:
        table: The scores.
        alpha: The probability beyond one end of an interval, 0 to 0.25; a false alarm in any direction has twice that.
        margin: Points within which two models count as equally good, above 0.
        seed: Of the resampling, which only graded scores need.
    """
    paired = PairedScores(table.scores, table.clusters, seed)
    parts = _parts(table, seed)
    numbers = list(combinations(range(len(table.models)), 2))
    pairs = [_difference(table, paired, parts, pair, (alpha, alpha / len(numbers)), margin) for pair in numbers]
    adjusted = holm([pair.p_value for pair in pairs])
    return [replace(pair, p_adjusted=value) for pair, value in zip(pairs, adjusted, strict=True)]


def check_gate(table: ScoreTable, points: float, *, alpha: float = ALPHA, seed: int = 0) -> list[GateResult]:
    """Check that no model is worse than the first of the table by more than some points.

    Args:
        table: The scores; its first model is the baseline.
        points: The loss that is allowed, 0 to 100.
        alpha: The accepted probability of ``worse`` for a model that loses no more than these points, all models
            together; also that of ``pass`` for one that loses more. 0 to 0.5.
        seed: Of the resampling, which only graded scores need.
    """
    paired = PairedScores(table.scores, table.clusters, seed)
    # Bonferroni: with ten new models one false alarm must not be ten times as likely.
    alpha /= len(table.models) - 1
    results = []
    for number, model in enumerate(table.models[1:], start=1):
        (low, high), _ = paired.interval(0, number, alpha)
        outcome: GateOutcome = "worse" if high < -points else "pass" if low >= -points else "unsure"
        differences = paired.differences(0, number)
        design = paired.design_effect(0, number)
        shown = points + smallest_shown(differences, alpha, design=design, units=paired.units)
        results.append(GateResult(model, outcome, 100 * float(differences.mean()), (low, high), min(100.0, shown)))
    return results


def smallest_shown(
    differences: Floats,
    alpha: float = FIGURE_ALPHA,
    power: float = POWER,
    *,
    design: float = 1.0,
    units: int | None = None,
) -> float:
    """The smallest true difference that so many questions show, in points, at most 100.

    The share of questions that models answer differently is taken from these differences.

    Args:
        differences: One value for each question, between -1 and 1.
        alpha: The probability of a false alarm in one direction, between 0 and 0.5.
        power: The probability to show the difference, between 0 and 1.
        design: How many times clusters enlarge the variance, at least 1.
        units: The number of clusters; None if questions are independent.
    """
    fewest = _fewest(alpha)
    if (len(differences) if units is None else units) < fewest:
        return 100.0
    n = len(differences) / design
    # Connor's formula, solved for the difference. As in the interval, one question more is gained and one lost.
    discordance = (float((differences**2).sum()) + 2) / (len(differences) + 2)
    alarm, miss = float(stats.norm.isf(alpha)), float(stats.norm.isf(1 - power))
    spread = math.sqrt(max(n + miss**2 - alarm**2, 0.0))
    share = math.sqrt(discordance) * (alarm * math.sqrt(n) + miss * spread) / (n + miss**2)
    # The exact test is stricter than the formula by about one question, and it needs a few changed questions at all.
    return 100 * min(1.0, max(share + 1 / n, float(stats.gamma.ppf(power, fewest)) / n))


def _parts(table: ScoreTable, seed: int) -> dict[str, PairedScores]:
    """The scores of each group of questions; empty with fewer than two groups."""
    names = sorted({group for group in table.groups if group is not None})
    if len(names) < 2:
        return {}
    parts = {}
    for name in names:
        rows = [row for row, group in enumerate(table.groups) if group == name]
        clusters = None if table.clusters is None else [table.clusters[row] for row in rows]
        parts[name] = PairedScores(table.scores[rows], clusters, seed)
    return parts


def _difference(
    table: ScoreTable,
    paired: PairedScores,
    parts: dict[str, PairedScores],
    pair: tuple[int, int],
    alphas: tuple[float, float],
    margin: float,
) -> PairedDifference:
    # The second one is that of all pairs together: the strictest one that Holm's correction asks of a pair.
    alpha, strict = alphas
    differences = paired.differences(*pair)
    delta, discordance = 100 * float(differences.mean()), float((differences**2).mean())
    (interval, method), (p_value, test) = paired.interval(*pair, alpha), paired.p_value(*pair)
    # Two one-sided tests, each with the error probability of the two-sided one.
    low, high = paired.interval(*pair, 2 * alpha)[0]
    design = paired.design_effect(*pair)
    groups = tuple(_group(name, part, pair, delta, alpha) for name, part in parts.items())
    # The standard error. A rounding error can make the variance negative.
    error = 100 * math.sqrt(design * max(discordance - (delta / 100) ** 2, 0.0) / len(differences))
    least = abs(delta) - float(stats.norm.isf(1 - POWER)) * error

    def needed(true: float) -> int | None:
        found = questions_needed(true, discordance, strict)
        # One question of a difference more: the exact test is stricter than the formula. Without it, the power is 76%
        # to 79% in place of 80%. Clusters of the same size must be enough for their test, too.
        fewest = _fewest(strict) * len(differences) / paired.units
        return None if found is None else math.ceil(max(design * (found + 100 / true), fewest))

    return PairedDifference(
        a=table.models[pair[0]],
        b=table.models[pair[1]],
        n=len(differences),
        delta=delta,
        delta_ci=interval,
        delta_method=method,
        p_value=p_value,
        # Replaced when the p-values of all pairs are known.
        p_adjusted=p_value,
        test=test,
        gained=int((differences > TOLERANCE).sum()),
        lost=int((differences < -TOLERANCE).sum()),
        discordance=discordance,
        margin_ci=(low, high),
        equivalent=-margin < low and high < margin,
        smallest_shown=smallest_shown(differences, strict, design=design, units=paired.units),
        questions_needed=needed(abs(delta)),
        questions_safe=needed(least) if least > 0 else None,
        macro_delta=float(np.mean([group.delta for group in groups])) if groups else None,
        groups=groups,
    )


def _group(name: str, part: PairedScores, pair: tuple[int, int], total: float, alpha: float) -> GroupDifference:
    delta = 100 * float(part.differences(*pair).mean())
    opposite = delta * total < 0 and min(abs(delta), abs(total)) > TOLERANCE
    return GroupDifference(name, len(part.scores), delta, part.interval(*pair, alpha)[0], opposite)


def _fewest(alpha: float) -> int:
    """The fewest questions or clusters that can show anything: if all go the same way, its one-sided p is 0.5**n."""
    return math.ceil(1 + math.log2(1 / (2 * alpha)))
