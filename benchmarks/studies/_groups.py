"""Groups whose true gains are known: how often their intervals cover, and how often a warning is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from advisor.advice.groups import group_gains, group_warnings
from advisor.statistics import Floats
from benchmarks._measure import Figure

_COUNTS = (5, 10, 40)
_SPREADS = (0.0, 0.02, 0.05, 0.1, 0.2)
"""Standard deviations of the groups' true gains, as shares of 1."""
_CHANGED = (0.1, 0.3)
"""Shares of the questions whose score the strategy changes."""
_CLUSTER = 5


def simulate_groups(
    count: int, spread: float, changed: float, chance: np.random.Generator, *, mean: float = 0.02, cluster: int = 1
) -> tuple[Floats, NDArray[np.intp], NDArray[np.intp], Floats]:
    """Draw the differences of a strategy and a model in groups of 5 to 200 questions.

    Args:
        count: Groups.
        spread: Standard deviation of their true gains.
        changed: The share of questions whose score changes, on average over the groups.
        chance: Makes all draws.
        mean: The mean of the true gains.
        cluster: Questions of a cluster; two of three of them have the same difference.

    Returns:
        The difference, the group and the cluster of each question, and the true gain of each group.
    """
    sizes = np.exp(chance.uniform(np.log(5), np.log(200), count)).astype(np.int64)
    gains = np.clip(chance.normal(mean, spread, count), -0.9, 0.9)
    # As many questions must change as the gain needs.
    rates = np.clip(np.maximum(changed * chance.uniform(0.5, 1.5, count), np.abs(gains) + 0.03), 0, 1)
    groups = np.repeat(np.arange(count), sizes)
    within = np.concatenate([np.arange(size) // cluster for size in sizes])
    clusters = np.unique(groups * 1000 + within, return_inverse=True)[1]
    own, shared = chance.random(len(groups)), chance.random(int(clusters.max()) + 1)[clusters]
    luck = np.where(chance.random(len(groups)) < (2 / 3 if cluster > 1 else 0), shared, own)
    up, down = ((rates + sign * gains)[groups] / 2 for sign in (1, -1))
    differences = np.where(luck < up, 1.0, np.where(luck < up + down, -1.0, 0.0))
    return differences, groups, clusters, gains


def group_figures(count: int) -> Iterator[Figure]:
    """Figures of the gains by group.

    Args:
        count: Simulated tasks in each cell: a number of groups, a spread, a share of changed questions.
    """
    for name, cluster in (("group_coverage", 1), ("group_coverage_clusters", _CLUSTER)):
        cells = {cell: _coverage(count, *cell, cluster) for cell in product(_COUNTS, _SPREADS, _CHANGED)}
        covered = [value for value, _, _ in cells.values()]
        yield Figure(
            name,
            float(np.mean(covered)),
            min(covered),
            max(covered),
            limit="0.93 to 0.97",
            note=f"95% intervals of groups of 5 to 200 questions, in clusters of {cluster}; the smallest and largest "
            f"of {len(cells)} cells; the largest where all groups have the same gain",
        )
        if cluster == 1:
            pooled, alone = (float(np.mean([value[place] for value in cells.values()])) for place in (1, 2))
            yield Figure(
                "group_error", pooled, limit=f"below {alone:.1f}, that of the observed gains", note="RMSE, points"
            )
    for name, cluster in (("group_false_loss", 1), ("group_false_loss_clusters", _CLUSTER)):
        rates = [_false_loss(count, groups, changed, cluster) for groups, changed in product(_COUNTS, _CHANGED)]
        yield Figure(
            name,
            max(loss for loss, _ in rates),
            limit="at most 0.05",
            note=f"share of tasks where a group is called hurt although no group gains or loses; clusters of "
            f"{cluster}; the worst cell",
        )
        yield Figure(
            name.replace("false_loss", "false_warning"),
            max(warned for _, warned in rates),
            limit="at most 0.10",
            note="share of these tasks with any warning; the worst cell",
        )


def _coverage(count: int, groups: int, spread: float, changed: float, cluster: int) -> tuple[float, float, float]:
    """The share of intervals that cover, and the errors of the pooled and the observed gains, in points."""
    chance = np.random.default_rng(0)
    covered, pooled, alone = [], [], []
    for _ in range(count):
        differences, places, clusters, gains = simulate_groups(groups, spread, changed, chance, cluster=cluster)
        found = group_gains(differences, _names(places), _names(clusters) if cluster > 1 else None, 0.025)
        for gain, truth in zip(found, 100 * gains, strict=True):
            covered.append(gain.interval[0] <= truth <= gain.interval[1])
            pooled.append(gain.points - truth)
            alone.append(gain.observed - truth)
    by_pooling, by_mean = (float(np.sqrt(np.mean(np.square(errors)))) for errors in (pooled, alone))
    return float(np.mean(covered)), by_pooling, by_mean


def _false_loss(count: int, groups: int, changed: float, cluster: int) -> tuple[float, float]:
    """The shares of tasks with a group that is called hurt, and with a warning, where nothing is gained or lost."""
    chance = np.random.default_rng(1)
    lost = warned = 0
    for _ in range(count):
        differences, places, clusters, _ = simulate_groups(groups, 0.0, changed, chance, mean=0.0, cluster=cluster)
        found = group_gains(differences, _names(places), _names(clusters) if cluster > 1 else None)
        lost += any(gain.shown == "no" for gain in found)
        warned += bool(group_warnings(found))
    return lost / count, warned / count


def _names(numbers: NDArray[np.intp]) -> list[str]:
    return [f"{number:05}" for number in numbers]
