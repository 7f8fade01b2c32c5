"""The gain of a strategy in each group of the questions, for example each subject of MMLU: partial pooling.

A group of ten questions tells little, and the means of forty such groups look wildly different where none differs. So
each mean is shrunk towards the overall one: small groups more, and all of them more if groups differ little: a normal
model of the groups' true means, as in Rubin's eight schools (1981, Journal of Educational Statistics 6(4)). How much
they differ is not estimated but averaged over, with a flat prior. The estimate of DerSimonian and Laird is 0 in many
samples of few groups, and intervals around it are too narrow.

The test reads a group's own questions only: a group without a loss must not be called hurt because the others are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from advisor.records import ALPHA, Shown
from advisor.run.result import GroupFigures
from advisor.statistics import Floats, cluster_sign_flip, holm

_PRIOR = 200
"""Questions of all groups that count for the variance within each group. With a group's own variance alone, three
questions without a difference would look certain; in simulations, fewer than 200 make intervals cover too seldom."""
_SPREADS = np.concatenate([[0.0], np.geomspace(0.002, 1.0, 60)])
"""How much groups may differ: standard deviations of their true means, as shares of 1."""
_MOST_GROUPS = 1000
"""Groups; where almost each question is a group, as in a log from a stranger, all of them would take minutes."""


def group_gains(
    differences: Floats,
    groups: Sequence[str | None],
    clusters: Sequence[str] | None = None,
) -> tuple[GroupFigures, ...]:
    """The gain in each group, by name, from differences of scores; empty for fewer than 2 groups or over 1,000."""
    found = pooled_groups(differences, groups, clusters, ALPHA)
    if found is None:
        return ()
    better, worse = [], []
    for number, mean in enumerate(found.means):
        own = found.places == number
        p_value = cluster_sign_flip(found.values[own], found.clusters[own])
        # The test is symmetric, so half of the two-sided p-value belongs to the side of the mean.
        better.append(p_value / 2 if mean > 0 else 1.0)
        worse.append(p_value / 2 if mean < 0 else 1.0)
    shown: list[Shown] = [
        # The interval as well, so that no group is shown whose interval includes 0.
        "yes" if gain <= ALPHA and start > 0 else "no" if loss <= ALPHA and end < 0 else "not_yet"
        for gain, loss, start, end in zip(holm(better), holm(worse), found.low, found.high, strict=True)
    ]
    return tuple(
        GroupFigures(
            group=name,
            n=int(np.count_nonzero(found.places == number)),
            observed=100 * float(found.means[number]),
            gain=100 * float(found.points[number]),
            gain_ci=(100 * max(-1.0, float(found.low[number])), 100 * min(1.0, float(found.high[number]))),
            shown=shown[number],
        )
        for number, name in enumerate(found.names)
    )


class PooledGroups(NamedTuple):
    """The groups of some questions; all figures are shares of 1."""

    names: tuple[str, ...]  # sorted; they are untrusted text
    values: Floats  # the value of each question that has a group
    places: NDArray[np.intp]  # the number of its group
    clusters: NDArray[np.intp]  # the number of its cluster
    means: Floats
    errors: Floats  # the standard error of a group's mean
    points: Floats  # the estimate of the group's true mean, shrunk towards that of all groups
    low: Floats
    high: Floats


def pooled_groups(
    values: Floats, groups: Sequence[str | None], clusters: Sequence[str] | None, alpha: float
) -> PooledGroups | None:
    """Estimate the true mean of each group from values between -1 and 1; None for fewer than 2 or over 1,000 groups."""
    known = [number for number, group in enumerate(groups) if group is not None]
    own = values[known]
    names, places = np.unique(np.array([str(groups[number]) for number in known], dtype=object), return_inverse=True)
    if not 2 <= len(names) <= _MOST_GROUPS:
        return None
    # Without clusters each question is a cluster of one.
    labels = (
        np.unique([clusters[number] for number in known], return_inverse=True)[1] if clusters else np.arange(len(known))
    )
    means = np.bincount(places, weights=own) / np.bincount(places)
    variances = _variances(own - means[places], places, labels)
    points, low, high = _pooled(means, variances, alpha)
    return PooledGroups(tuple(map(str, names)), own, places, labels, means, np.sqrt(variances), points, low, high)


def _variances(residuals: Floats, groups: NDArray[np.intp], clusters: NDArray[np.intp]) -> Floats:
    """The variance of each group's mean, from the differences minus their group's mean."""
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
    """The correlation of two questions of a cluster, 0 to 1, from the residuals of the parts that are in one group."""
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
