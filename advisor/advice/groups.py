"""The gain of a strategy in each group of the questions, for example each subject of MMLU.

A group of ten questions tells little, and the gains of forty such groups look wildly different where none differs. So
each gain is shrunk towards the overall gain: small groups more, and all of them more if groups differ little: a normal
model of the groups' true gains, as in Rubin's eight schools (1981, Journal of Educational Statistics 6(4)). How much
they differ is not estimated but averaged over, with a flat prior. The estimate of DerSimonian and Laird is 0 in many
samples of few groups, and intervals around it are too narrow.

The test reads a group's own questions only: a group without a loss must not be called hurt because the others are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from advisor.records import ALPHA, Shown, join, signed
from advisor.statistics import Floats, Interval, cluster_sign_flip, holm
from ensemble.common.text import counted, shortened, visible

_PRIOR = 200
"""Questions of all groups that count for the variance within each group. With a group's own variance alone, three
questions without a difference would look certain; in simulations, fewer than 200 make intervals cover too seldom."""
_SPREADS = np.concatenate([[0.0], np.geomspace(0.002, 1.0, 60)])
"""How much groups may differ: standard deviations of their true gains, as shares of 1."""
_MOST = 1000
"""Groups; where almost each question is a group, as in a log from a stranger, all of them would take minutes."""
_MOST_NAMED = 3
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class GroupGain:
    """A strategy's gain over the best single model in one group, in points.

    Attributes:
        group: The name of the group. It is untrusted text.
        n: Its questions that the strategy answered.
        observed: The mean difference on these questions.
        error: The standard error of this mean.
        points: The estimated gain: the observed one, shrunk towards the overall gain.
        interval: Its interval. Each end is a one-sided limit.
        shown: Whether the group's own questions show a gain (``yes``) or a loss (``no``). Holm's correction makes the
            error probability hold for all groups together, once for gains and once for losses.
    """

    group: str
    n: int
    observed: float
    error: float
    points: float
    interval: Interval
    shown: Shown


def group_gains(
    differences: Floats,
    groups: Sequence[str | None],
    clusters: Sequence[str] | None = None,
    alpha: float = ALPHA,
) -> tuple[GroupGain, ...]:
    """Estimate the gain in each group.

    Args:
        differences: The strategy's score minus that of the best single model, -1 to 1, for each question.
        groups: The group of each question; a question without one is left out.
        clusters: What each question shares with others, for example a passage; None if they are independent.
        alpha: The probability that the true gain is beyond one end of an interval, and of any false ``shown`` in one
            direction; between 0 and 0.5.

    Returns:
        The groups by name; empty if there are fewer than 2 or more than 1,000.
    """
    known = [number for number, group in enumerate(groups) if group is not None]
    values = differences[known]
    names, places = np.unique(np.array([str(groups[number]) for number in known], dtype=object), return_inverse=True)
    if not 2 <= len(names) <= _MOST:
        return ()
    # Without clusters each question is a cluster of one.
    labels = (
        np.unique([clusters[number] for number in known], return_inverse=True)[1] if clusters else np.arange(len(known))
    )
    sizes = np.bincount(places).astype(np.float64)
    means = np.bincount(places, weights=values) / sizes
    variances = _variances(values - means[places], places, labels)
    points, low, high = _pooled(means, variances, alpha)
    better, worse = [], []
    for number, mean in enumerate(means):
        own = places == number
        p_value = cluster_sign_flip(values[own], labels[own])
        # The test is symmetric, so half of the two-sided p-value belongs to the side of the mean.
        better.append(p_value / 2 if mean > 0 else 1.0)
        worse.append(p_value / 2 if mean < 0 else 1.0)
    shown: list[Shown] = [
        # The interval as well, so that no group is shown whose interval includes 0.
        "yes" if gain <= alpha and start > 0 else "no" if loss <= alpha and end < 0 else "not_yet"
        for gain, loss, start, end in zip(holm(better), holm(worse), low, high, strict=True)
    ]
    return tuple(
        GroupGain(
            group=str(name),
            n=int(sizes[number]),
            observed=100 * float(means[number]),
            error=100 * math.sqrt(variances[number]),
            points=100 * float(points[number]),
            interval=(100 * max(-1.0, float(low[number])), 100 * min(1.0, float(high[number]))),
            shown=shown[number],
        )
        for number, name in enumerate(names)
    )


def group_warnings(gains: Sequence[GroupGain], alpha: float = ALPHA) -> tuple[str, ...]:
    """What a mean over all questions hides, one sentence each.

    Args:
        gains: The gains by group.
        alpha: The probability of a false alarm, between 0 and 0.5.
    """
    sentences = (_disagreement(gains, alpha), _losses(gains)) if gains else ()
    return tuple(sentence for sentence in sentences if sentence is not None)


def _variances(residuals: Floats, groups: NDArray[np.intp], clusters: NDArray[np.intp]) -> Floats:
    """The variance of each group's mean.

    Args:
        residuals: Differences minus their group's mean.
        groups: The number of each question's group, from 0.
        clusters: The number of each question's cluster.
    """
    sizes = np.bincount(groups).astype(np.float64)
    squares = np.bincount(groups, weights=residuals**2).astype(np.float64)
    # The part of a cluster that is in one group. Its questions are alike, in all groups by the same correlation.
    _, first, parts = np.unique(clusters + groups * (int(clusters.max()) + 1), return_index=True, return_inverse=True)
    counts = np.bincount(parts).astype(np.float64)
    # A question meets the others of its part: in a part of m questions, each of the m has m - 1 like it.
    others = np.bincount(groups, weights=counts[parts] - 1) / sizes
    sums = np.bincount(parts, weights=residuals).astype(np.float64)
    alike = _correlation(squares, sums, counts, groups[first], sizes)
    design = 1 + alike * others
    # A mean of alike questions follows them, so their residuals are too small: `design` degrees of freedom are lost.
    # One question more that is gained and one that is lost keep the variance above 0 where no answer differs.
    common = (squares.sum() + 2) / max(float((sizes - design).sum()) + 2, 1.0)
    own = (squares + _PRIOR * common) / (sizes - np.minimum(design, sizes) + _PRIOR)
    variances: Floats = own * design / sizes
    return variances


def _correlation(squares: Floats, sums: Floats, counts: Floats, groups: NDArray[np.intp], sizes: Floats) -> float:
    """The correlation of two questions of a cluster, 0 to 1.

    Args:
        squares: The sum of squared residuals of each group.
        sums: The sum of the residuals of each part of a cluster that is in one group.
        counts: The questions of each part.
        groups: The group of each part.
        sizes: The questions of each group.
    """
    parts = np.bincount(groups)
    # Residuals of a group with one part add up to 0, whatever the correlation is.
    use = parts > 1
    pairs = float((counts * (counts - 1))[use[groups]].sum())
    if not pairs or not squares.sum():
        return 0.0
    products = np.bincount(groups, weights=sums**2)[use] * parts[use] / (parts[use] - 1)
    single = squares[use] * sizes[use] / (sizes[use] - 1)
    variance = float(single.sum() / sizes[use].sum())
    return min(1.0, max(0.0, float((products - single).sum()) / max(pairs * variance, 1e-12)))


def _pooled(means: Floats, variances: Floats, alpha: float) -> tuple[Floats, Floats, Floats]:
    """The posterior mean of each group's true gain, and the ends of its interval."""
    # For a given spread of the groups everything is normal; each row is a spread.
    weights = 1 / (variances + _SPREADS[:, None] ** 2)
    certainty = weights.sum(axis=1)
    centres = (weights * means).sum(axis=1) / certainty
    fits = (
        np.log(weights).sum(axis=1) - np.log(certainty) - (weights * (means - centres[:, None]) ** 2).sum(axis=1)
    ) / 2
    chances = np.exp(fits - fits.max()) * np.gradient(_SPREADS)
    chances /= chances.sum()
    pull = variances * weights
    posteriors = means - pull * (means - centres[:, None])
    errors = np.sqrt((1 - pull) * variances + pull**2 / certainty[:, None])

    def end(share: float) -> Floats:
        """The quantile of the mixture over all spreads, by bisection: the mixture has no closed form."""
        low, high = np.full(len(means), -3.0), np.full(len(means), 3.0)
        for _ in range(30):
            middle = (low + high) / 2
            is_below = chances @ stats.norm.cdf((middle - posteriors) / errors) < share
            low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
        return low

    return chances @ posteriors, end(alpha), end(1 - alpha)


def _disagreement(gains: Sequence[GroupGain], alpha: float) -> str | None:
    """Whether the mean over questions (micro) and the mean over groups (macro) point in different directions."""
    sizes, observed, errors = (
        np.array([getattr(gain, name) for gain in gains], dtype=np.float64) for name in ("n", "observed", "error")
    )
    shares = sizes / sizes.sum()
    micro, macro = float(shares @ observed), float(observed.mean())
    if micro * macro >= 0:
        return None
    limit = float(stats.norm.isf(alpha / 2))
    differs = abs(macro - micro) > limit * float(np.linalg.norm((1 / len(gains) - shares) * errors))
    is_sure = abs(macro) > limit * float(np.linalg.norm(errors)) / len(gains)
    if not (differs or is_sure):
        return None
    large = sorted((gain for gain in gains if gain.observed * micro > 0), key=lambda gain: -abs(gain.n * gain.observed))
    small = sorted((gain for gain in gains if gain.observed * macro > 0), key=lambda gain: -abs(gain.observed))
    return (
        f"Over all {counted(int(sizes.sum()), 'question')} the difference is {signed(micro)} points (micro), but the "
        f"mean over the {len(gains)} groups is {signed(macro)} (macro): {_named(large)} "
        f"{'outweighs' if len(large) == 1 else 'outweigh'} {_named(small)}."
    )


def _losses(gains: Sequence[GroupGain]) -> str | None:
    hurt = sorted((gain for gain in gains if gain.shown == "no"), key=lambda gain: gain.points)
    if not hurt:
        return None
    return (
        f"The test shows a loss in {len(hurt)} of {len(gains)} groups: {_named(hurt)}; for these, the best single "
        "model is better."
    )


def _named(gains: Sequence[GroupGain]) -> str:
    """The first groups with their observed gains, and the number of the others."""
    named = [
        f"{shortened(visible(gain.group), _LONGEST_NAME)} ({signed(gain.observed)}, {counted(gain.n, 'question')})"
        for gain in gains[:_MOST_NAMED]
    ]
    more = len(gains) - len(named)
    return join([*named, f"{more} more"] if more else named)
