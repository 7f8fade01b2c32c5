"""The gain of a strategy in each group of the questions, for example each subject of MMLU.

Each gain is shrunk towards the overall gain (:mod:`advisor.advice.pooling`). The test reads a group's own questions
only: a group without a loss must not be called hurt because the others are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from advisor.advice.pooling import pooled_groups
from advisor.records import ALPHA, Shown, join, signed
from advisor.run.result import GroupFigures
from advisor.statistics import Floats, Interval, cluster_sign_flip, holm
from ensemble.common.text import counted, shortened, visible

_MOST_NAMED = 3
_LONGEST_NAME = 60


class GroupGain(GroupFigures):
    """A strategy's gain over the best single model in one group, in points."""

    observed: float
    gain: float
    gain_ci: Interval
    error: float
    """The standard error of the observed gain; no file has it."""


def group_gains(
    differences: Floats,
    groups: Sequence[str | None],
    clusters: Sequence[str] | None = None,
) -> tuple[GroupGain, ...]:
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
        GroupGain(
            group=name,
            n=int(np.count_nonzero(found.places == number)),
            observed=100 * float(found.means[number]),
            error=100 * float(found.errors[number]),
            gain=100 * float(found.points[number]),
            gain_ci=(100 * max(-1.0, float(found.low[number])), 100 * min(1.0, float(found.high[number]))),
            shown=shown[number],
        )
        for number, name in enumerate(found.names)
    )


def group_warnings(gains: Sequence[GroupGain]) -> tuple[str, ...]:
    """What a mean over all questions hides, one sentence each."""
    sentences = (_disagreement(gains), _losses(gains)) if gains else ()
    return tuple(sentence for sentence in sentences if sentence is not None)


def _disagreement(gains: Sequence[GroupGain]) -> str | None:
    """Whether the mean over questions (micro) and the mean over groups (macro) point in different directions."""
    sizes, observed, errors = (
        np.array([getattr(gain, name) for gain in gains], dtype=np.float64) for name in ("n", "observed", "error")
    )
    shares = sizes / sizes.sum()
    micro, macro = float(shares @ observed), float(observed.mean())
    if micro * macro >= 0:
        return None
    limit = float(stats.norm.isf(ALPHA / 2))
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
    hurt = sorted((gain for gain in gains if gain.shown == "no"), key=lambda gain: gain.gain)
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
