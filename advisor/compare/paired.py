"""Models against each other on the same questions: the difference of each pair, how sure it is, and a gate on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from scipy import stats

from advisor.compare.score_table import ScoreTable
from advisor.records import ALPHA, FIGURE_ALPHA, TOLERANCE, Verdict
from advisor.statistics import (
    EXACT_FLIPS,
    Difference,
    Floats,
    Interval,
    Labels,
    bonett_price,
    cluster_interval,
    cluster_sign_flip,
    cluster_totals,
    difference_of,
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
from ensemble.common.text import verdict_in_table

MARGIN = 1.0
"""Points within which two models count as equally good by default."""
POWER = 0.8
"""The probability to show a difference, for the figures that say how large a test set must be."""


@dataclass(frozen=True, slots=True)
class ComparedPair:
    """Two models of a table on the same questions; differences are those of the later one minus the earlier one.

    Attributes:
        difference: Of all questions.
        verdict: ``equal`` where the models are shown to be equally good, and not shown to differ.
        p_adjusted: The two-sided p-value after Holm's correction for all pairs of the table.
        margin_ci: The interval for two one-sided tests, each with the confidence of the other interval.
        equivalent: Whether this interval is within the margin.
        smallest_shown: The smallest true difference that these questions show with a probability of 80%, after the
            correction for all pairs.
        questions_needed: Questions, in all, that show a true difference of this size with a probability of 80%; None if
            no difference was observed.
        questions_safe: The same for the least difference that is likely (the lower end of the one-sided 80% interval);
            None if this is not above 0. The observed difference is often too large by luck, and then
            ``questions_needed`` is too small.
        groups: The difference on each group of questions, by its name, sorted; empty with fewer than two groups.
    """

    difference: Difference
    verdict: Verdict
    p_adjusted: float
    margin_ci: Interval
    equivalent: bool
    smallest_shown: float
    questions_needed: int | None
    questions_safe: int | None
    groups: Mapping[str, Difference]

    @property
    def macro(self) -> float | None:
        """The mean of the groups' differences; None with fewer than two groups."""
        return float(np.mean([group.estimate for group in self.groups.values()])) if self.groups else None

    def as_dict(self, margin: float) -> dict[str, Any]:
        """The pair for JSON, with its verdict in words; `margin` is in points."""
        return {
            "a": self.difference.over,
            "b": self.difference.of,
            **self.difference.as_dict(),
            "p_adjusted": self.p_adjusted,
            "margin_ci": list(self.margin_ci),
            "equivalent": self.equivalent,
            "smallest_shown": self.smallest_shown,
            "questions_needed": self.questions_needed,
            "questions_safe": self.questions_safe,
            "macro_difference": self.macro,
            "groups": [
                {"group": name, **group.as_dict(), "opposite": self.is_opposite(group)}
                for name, group in self.groups.items()
            ],
            "verdict": self.verdict,
            "says": verdict_in_table(self.verdict, margin, is_within=self.equivalent),
        }

    def is_opposite(self, group: Difference) -> bool:
        """Whether the difference of a group has another sign than that of all questions."""
        here, total = group.estimate, self.difference.estimate
        return here * total < 0 and min(abs(here), abs(total)) > TOLERANCE


@dataclass(frozen=True, slots=True)
class GateResult:
    """What the gate says about one model.

    Attributes:
        difference: From the baseline. The ends of its interval decide: each is a one-sided limit, and all together have
            the confidence.
        verdict: ``worse``: shown to be worse by more than the allowed points. ``better``: shown to be better.
            ``equal``: shown to lose no more than these points. ``unclear``: the questions are too few to tell.
        smallest_shown: The smallest true loss that the gate finds with a probability of 80%, in points.
    """

    difference: Difference
    verdict: Verdict
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

    def difference(
        self, names: Sequence[str], pair: tuple[int, int], alpha: float = FIGURE_ALPHA, *, is_tested: bool = True
    ) -> Difference:
        """The difference of column ``b`` of a pair ``(a, b)`` from column ``a``; `names` are those of all columns."""
        test = self.p_two_sided(*pair) if is_tested else ()
        a, b = pair
        return difference_of((names[b], names[a]), self.differences(a, b), *self.interval(a, b, alpha), *test)

    def p_two_sided(self, a: int, b: int) -> tuple[float, str]:
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
) -> list[ComparedPair]:
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
    differences = [paired.difference(table.models, pair, alpha) for pair in numbers]
    adjusted = holm([each.p_two_sided for each in differences if each.p_two_sided is not None])
    return [
        _compared(table.models, paired, parts, pair, difference, (alpha, alpha / len(numbers)), (p_adjusted, margin))
        for pair, difference, p_adjusted in zip(numbers, differences, adjusted, strict=True)
    ]


def check_gate(table: ScoreTable, points: float, *, alpha: float = ALPHA, seed: int = 0) -> list[GateResult]:
    """Check that no model is worse than the first of the table by more than some points.

    Args:
        table: The scores; its first model is the baseline.
        points: The loss that is allowed, 0 to 100.
        alpha: The accepted probability of ``worse`` for a model that loses no more than these points, all models
            together; also that of ``better`` or ``equal`` for one that loses more. 0 to 0.5.
        seed: Of the resampling, which only graded scores need.
    """
    paired = PairedScores(table.scores, table.clusters, seed)
    # Bonferroni: with ten new models one false alarm must not be ten times as likely.
    alpha /= len(table.models) - 1
    results = []
    for number in range(1, len(table.models)):
        difference = paired.difference(table.models, (0, number), alpha, is_tested=False)
        low, high = difference.interval
        no_worse: Verdict = "better" if low > 0 else "equal"
        verdict: Verdict = "worse" if high < -points else no_worse if low >= -points else "unclear"
        differences, design = paired.differences(0, number), paired.design_effect(0, number)
        shown = points + smallest_shown(differences, alpha, design=design, units=paired.units)
        results.append(GateResult(difference, verdict, min(100.0, shown)))
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


def _compared(
    names: Sequence[str],
    paired: PairedScores,
    parts: Mapping[str, PairedScores],
    pair: tuple[int, int],
    difference: Difference,
    alphas: tuple[float, float],
    limits: tuple[float, float],
) -> ComparedPair:
    # The second one is that of all pairs together: the strictest one that Holm's correction asks of a pair.
    (alpha, strict), (p_adjusted, margin) = alphas, limits
    # Two one-sided tests, each with the error probability of the two-sided one.
    low, high = paired.interval(*pair, 2 * alpha)[0]
    design, estimate = paired.design_effect(*pair), difference.estimate
    # The standard error. A rounding error can make the variance negative.
    error = 100 * math.sqrt(design * max(difference.discordance - (estimate / 100) ** 2, 0.0) / difference.n)
    least = abs(estimate) - float(stats.norm.isf(1 - POWER)) * error

    def needed(true: float) -> int | None:
        questions = questions_needed(true, difference.discordance, strict)
        # One question of a difference more: the exact test is stricter than the formula. Without it, the power is 76%
        # to 79% in place of 80%. Clusters of the same size must be enough for their test, too.
        fewest = _fewest(strict) * difference.n / paired.units
        return None if questions is None else math.ceil(max(design * (questions + 100 / true), fewest))

    equivalent = -margin < low and high < margin
    verdict: Verdict = "equal" if equivalent else "unclear"
    if p_adjusted <= 2 * alpha and estimate:
        verdict = "better" if estimate > 0 else "worse"
    return ComparedPair(
        difference=difference,
        verdict=verdict,
        p_adjusted=p_adjusted,
        margin_ci=(low, high),
        equivalent=equivalent,
        smallest_shown=smallest_shown(paired.differences(*pair), strict, design=design, units=paired.units),
        questions_needed=needed(abs(estimate)),
        questions_safe=needed(least) if least > 0 else None,
        groups={name: part.difference(names, pair, alpha, is_tested=False) for name, part in parts.items()},
    )


def _fewest(alpha: float) -> int:
    """The fewest questions or clusters that can show anything: if all go the same way, its one-sided p is 0.5**n."""
    return math.ceil(1 + math.log2(1 / (2 * alpha)))
