"""Uncertainty of the figures: intervals, and the test of the ensemble against the best single model.

All comparisons are paired: two models are compared on the same questions, because most of the noise comes from the
choice of the questions, which is then the same for both. The figures hold for questions like these, not for others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from advisor.records import FIGURE_ALPHA, TOLERANCE, Profile
from ensemble.errors import UniteError

Floats = NDArray[np.float64]
Counts = NDArray[np.int64] | np.int64
Labels = Sequence[str] | NDArray[np.int64]
Interval = tuple[float, float]

RESAMPLES = 10_000  # the 250th from each end bounds 95%: a bound moves little from seed to seed
CHUNK = 2**22  # the most resampling counts in memory at the same time: 32 MB
EXACT_FLIPS = 13  # graded differences for which all signs are tried, over 4,000 at most


class Difference(NamedTuple):
    """The difference of two systems on the same questions: the mean score of one minus that of the other, in points."""

    of: str  # the system that is compared; above 0, it is better
    over: str  # the one that it is compared with
    n: int  # number of questions
    difference: float
    difference_ci: Interval
    difference_method: str  # of the interval
    p_two_sided: float | None  # the p-value of no difference; None where it was not tested
    test: str | None  # None without a p-value
    gained: int  # questions on which ``of`` scores more
    lost: int  # questions on which it scores less
    # Mean squared difference of the scores, 0 to 1; for 0 and 1, the share of questions gained or lost.
    discordance: float


def difference_of(
    names: tuple[str, str],
    differences: Floats,
    interval: Interval,
    interval_method: str,
    p_two_sided: float | None = None,
    test: str | None = None,
) -> Difference:
    """The difference of two systems from that on each question, between -1 and 1, and what was computed from it."""
    return Difference(
        of=names[0],
        over=names[1],
        n=len(differences),
        difference=100 * float(differences.mean()),
        difference_ci=interval,
        difference_method=interval_method,
        p_two_sided=p_two_sided,
        test=test,
        gained=int((differences > TOLERANCE).sum()),
        lost=int((differences < -TOLERANCE).sum()),
        discordance=float((differences**2).mean()),
    )


def most_accurate(profiles: Sequence[Profile]) -> Profile:
    """The profile with the best accuracy; the first of equal ones."""
    # Rounded, so that a rounding error does not break a tie; `max` takes the first.
    return max(profiles, key=lambda profile: round(profile.accuracy, 9))


def accuracy_interval(profile: Profile, alpha: float = FIGURE_ALPHA) -> Interval:
    """Interval of one model's accuracy, in points; NaN if some questions have no score.

    Wilson's interval for scores of 0 and 1: it stays within 0 to 100, and has a width even at 0 and 100. Student's t
    for graded scores.
    """
    values = scores(profile)
    if np.isnan(values).any():
        return math.nan, math.nan
    return wilson(values, alpha) if is_binary(values) else graded_interval(values, alpha)


def graded_interval(values: Floats, alpha: float = FIGURE_ALPHA, ends: Interval = (0.0, 1.0)) -> Interval:
    """Student's t interval of a mean of graded scores or their differences, in points, within the scale's `ends`."""
    if np.ptp(values) <= TOLERANCE:  # equal grades on a few questions do not make the mean certain
        return cluster_interval(values, np.arange(len(values)), alpha, ends)
    found = stats.ttest_1samp(values, 0.0).confidence_interval(1 - 2 * alpha)
    return 100 * max(ends[0], float(found.low)), 100 * min(ends[1], float(found.high))


def paired_interval(differences: Floats, alpha: float = FIGURE_ALPHA) -> tuple[Interval, str]:
    """Interval of the difference of two models on the same questions, in points, and its method."""
    if is_plain(differences):
        return bonett_price(differences, alpha), "Bonett-Price"
    return graded_interval(differences, alpha, ends=(-1.0, 1.0)), "Student's t"


def wilson(values: Floats, alpha: float = FIGURE_ALPHA) -> Interval:
    """Wilson's interval of a mean of scores of 0 and 1, at least one, in points."""
    counted = stats.binomtest(int(values.sum()), len(values)).proportion_ci(1 - 2 * alpha, method="wilson")
    return 100 * float(counted.low), 100 * float(counted.high)


def _parts(draws: int, n: int) -> list[int]:
    """The draws in parts: all draws of `n` numbers at once would take gigabytes for a large task."""
    rows = max(1, CHUNK // n)
    return [min(rows, draws - start) for start in range(0, draws, rows)]


def percentile_interval(samples: Floats, alpha: float = FIGURE_ALPHA) -> Interval:
    """The percentile interval of resampled figures, in their unit."""
    # Not np.quantile: its interpolation between two infinite ratios gives NaN.
    ordered = np.sort(samples)
    cut = int(len(ordered) * alpha)
    return float(ordered[cut]), float(ordered[-1 - cut])


def bonett_price(differences: Floats, alpha: float = FIGURE_ALPHA) -> Interval:
    """Interval of the difference of two accuracies on the same questions, in points.

    Wald's with one more question gained and one more lost (Bonett and Price 2012, Journal of Educational and Behavioral
    Statistics 37(4)). The bootstrap is as good on many questions. On few questions it covers too seldom, and if no
    question was gained or lost, it gives an interval of width 0. Where the exact McNemar test is significant at ``2 *
    alpha``, this interval nearly always lies on one side of 0. With a small alpha and few changed questions it may not:
    8 gained and none lost of 181, at an alpha of 0.005.
    """
    return counted_interval(int((differences == 1).sum()), int((differences == -1).sum()), len(differences), alpha)


def counted_interval(gained: int, lost: int, questions: int, alpha: float = FIGURE_ALPHA) -> Interval:
    """:func:`bonett_price` from the numbers of questions that were gained, lost, and asked."""
    # One question more on each side keeps the width above 0 where no answer changed.
    n = questions + 2
    middle = (gained - lost) / n
    half = z_value(alpha) * math.sqrt(((gained + lost + 2) / n - middle**2) / n)
    return 100 * max(-1.0, middle - half), 100 * min(1.0, middle + half)


@lru_cache(maxsize=1000)  # thousands of pairs of models ask for the same few
def z_value(alpha: float) -> float:
    """The value that a standard normal number exceeds with the probability `alpha`."""
    return float(stats.norm.isf(alpha))


def mcnemar(differences: Floats) -> float:
    """Exact two-sided p-value of McNemar's test: whether half of the questions that only one got right is likely."""
    return float(counted_p((differences == 1).sum(), (differences == -1).sum()))


def counted_p(gained: Counts, lost: Counts) -> Floats:
    """:func:`mcnemar` from the numbers of questions that were gained and lost, for many pairs at once."""
    tail: Floats = special.bdtr(np.minimum(gained, lost), gained + lost, 0.5)
    return np.minimum(2 * tail, 1.0)


def cluster_interval(
    values: Floats, clusters: Labels, alpha: float = FIGURE_ALPHA, ends: Interval = (-1.0, 1.0)
) -> Interval:
    """Interval of a mean over questions that come in clusters, for example those about one passage, in points.

    The cluster-robust (sandwich) variance, times m / (m - 1) for m clusters, with Student's t on clusters minus 1
    degrees of freedom. As in :func:`bonett_price`, one question more at each end of the scale keeps the width above 0
    where all values are equal, and counts in m; with one question in each cluster it is that interval, but for t in
    place of the normal distribution. `ends` are the least and the largest possible value. With one cluster, which says
    nothing about others, it is the whole scale.
    """
    low, high = ends
    totals, sizes = cluster_totals(values, clusters)
    if len(sizes) < 2:
        return 100 * low, 100 * high
    totals, sizes = np.append(totals, ends), np.append(sizes, (1.0, 1.0))
    middle = float(totals.sum() / sizes.sum())
    residuals = totals - sizes * middle
    variance = float((residuals**2).sum()) * len(sizes) / (len(sizes) - 1) / float(sizes.sum()) ** 2
    half = float(stats.t.isf(alpha, len(sizes) - 3)) * math.sqrt(variance)
    return 100 * max(low, middle - half), 100 * min(high, middle + half)


def cluster_sign_flip(differences: Floats, clusters: Labels, seed: int = 0) -> float:
    """Two-sided p-value of no difference, for questions that come in clusters.

    It asks how often random signs of whole clusters give a mean as far from 0. For scores of 0 and 1 it is exact, and
    with one question in each cluster it is the exact McNemar test. For graded scores it is exact up to 13 clusters.
    """
    totals, _ = cluster_totals(differences, clusters)
    totals = totals[np.abs(totals) > TOLERANCE]
    if len(totals) == 0:
        return 1.0
    if np.array_equal(totals, np.round(totals)):
        return _signed_sum(np.abs(totals).astype(np.int64), abs(round(float(totals.sum()))))
    if len(totals) <= EXACT_FLIPS:
        # The first sign is fixed: the other half of all flips has the same sums with the other sign.
        bits = np.arange(2 ** (len(totals) - 1))[:, None] >> np.arange(len(totals)) & 1
        return float((np.abs((1 - 2 * bits) @ totals) >= abs(totals.sum()) - TOLERANCE).mean())
    return flip_p_value(flipped_sums(totals[:, None], seed)[:, 0], float(totals.sum()))


def cluster_totals(values: Floats, clusters: Labels) -> tuple[Floats, Floats]:
    """The sum of the values of each cluster, for each column if there are several, and the size of each cluster."""
    _, numbers = np.unique(np.asarray(clusters), return_inverse=True)
    sizes = np.bincount(numbers).astype(np.float64)
    totals = np.zeros((len(sizes), *values.shape[1:]))
    np.add.at(totals, numbers, values)
    return totals, sizes


_DRAWS = 4000


def best_probabilities(graded: Floats, clusters: Labels | None = None) -> Floats:
    """The probability of each model that it is the best one, by scores, models by questions.

    The Bayesian bootstrap over clusters (Rubin 1981, Annals of Statistics 9(1)). Models that are equally good share.
    """
    totals, sizes = cluster_totals(graded.T, np.arange(graded.shape[1]) if clusters is None else clusters)
    generator = np.random.default_rng(0)
    drawn = (generator.exponential(size=(draws, len(sizes))) for draws in _parts(_DRAWS, len(sizes)))
    means = np.concatenate([weights @ totals / (weights @ sizes)[:, None] for weights in drawn])
    is_best = means >= means.max(axis=1, keepdims=True) - TOLERANCE
    chances: Floats = (is_best / is_best.sum(axis=1, keepdims=True)).mean(axis=0)
    return chances


def folds_of(clusters: Labels | None, n: int, folds: int, chance: np.random.Generator) -> NDArray[np.intp]:
    """The fold of each question, 0 to `folds` - 1, at random; questions of a cluster have the same one."""
    numbers = np.arange(n) if clusters is None else np.unique(np.asarray(clusters), return_inverse=True)[1]
    order = chance.permutation(int(numbers.max()) + 1)
    own: NDArray[np.intp] = order[numbers] % folds
    return own


def flipped_sums(totals: Floats, seed: int = 0) -> Floats:
    """Sums of rows with random signs, flips by models; all columns have the same signs, so sums can be subtracted."""
    generator = np.random.default_rng(seed)
    sizes = _parts(RESAMPLES, len(totals))
    # 1 - 2b for each bit b, without a matrix of floats for the signs of all flips.
    drawn = (generator.integers(0, 2, (size, len(totals)), dtype=np.int8).astype(np.float32) for size in sizes)
    plain = totals.sum(axis=0)
    return np.concatenate([plain - 2 * (bits @ totals) for bits in drawn])


def flip_p_value(sums: Floats, observed: float) -> float:
    """The share of sums that are as far from 0 as the observed one, which counts as one of them: never 0."""
    return float((1 + (np.abs(sums) >= abs(observed) - TOLERANCE).sum()) / (1 + len(sums)))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values after Holm's correction: the error probability then holds for all comparisons together."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, n in enumerate(order):
        # A larger p-value must not become smaller than a smaller one by the correction.
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[n]))
        adjusted[n] = largest
    return adjusted


def questions_needed(difference: float, discordance: float, alpha: float = FIGURE_ALPHA) -> int | None:
    """The number of questions, in all, that show a difference like the observed one, if it is really that large.

    They show it with a probability of 80%; None if no difference was observed. `discordance` is the share of the
    questions whose scores differ, and `alpha` the probability of a false alarm in one direction.

    Connor's formula for McNemar's test (1987, Biometrics 43(1)). It also holds for graded scores, if the difference is
    in units of the typical change of a question. The number is never below the fewest questions with which the exact
    test can show anything.
    """
    share = abs(difference) / 100
    if share < 1e-9:
        return None
    # Rounding can make it a little negative.
    spread = max(discordance - share**2, 0.0)
    alarm, miss = z_value(alpha), z_value(0.2)
    connor = ((alarm * math.sqrt(discordance) + miss * math.sqrt(spread)) / share) ** 2
    one_sided_streak = math.ceil(1 + math.log2(1 / (2 * alpha))) / discordance  # 0.5**streak <= alpha
    return math.ceil(max(connor, one_sided_streak) - 1e-9)


def check_same_questions(*profiles: Profile) -> None:
    """Raise UniteError, naming two models, unless all answered the same questions in the same order."""
    # With the first is enough: to have the same questions is transitive.
    for other in profiles[1:]:
        ids, others = [answer.id for answer in profiles[0].answers], [answer.id for answer in other.answers]
        if ids != others:
            where = next((i for i, pair in enumerate(zip(ids, others, strict=False)) if pair[0] != pair[1]), None)
            what = f"{len(ids)} and {len(others)} of them" if where is None else f"{ids[where]} and {others[where]}"
            raise UniteError(
                f"{profiles[0].model} and {other.model} answered different questions ({what}): profile both on the "
                "same ones"
            )


def scores(profile: Profile) -> Floats:
    """A model's scores, one for each question, each between 0 and 1."""
    return np.array([answer.score for answer in profile.answers], dtype=np.float64)


def is_binary(values: Floats) -> bool:
    """Whether every score is 0 or 1, as those of all metrics but the graded ones (BLEU, chrF) are."""
    return bool(np.isin(values, (0, 1)).all())


def is_plain(differences: Floats) -> bool:
    """Whether each difference is -1, 0 or 1, as every metric but the graded ones gives."""
    return bool(np.isin(differences, (-1, 0, 1)).all())


def _signed_sum(sizes: NDArray[np.int64], observed: int) -> float:
    """The probability that the sizes, each with a random sign, have a sum at least `observed` away from 0."""
    # The distribution of the sum is the Fourier transform of the product of the cosines. So thousands of clusters take
    # milliseconds, where the number of all signs has hundreds of digits.
    span = 2 ** math.ceil(math.log2(2 * int(sizes.sum()) + 2))
    angles = 2 * math.pi * np.arange(span // 2 + 1) / span
    product = np.ones(len(angles))
    for size, count in zip(*np.unique(sizes, return_counts=True), strict=True):
        product *= np.cos(size * angles) ** count
    chances = np.fft.irfft(product, span)
    at_least = float(chances[observed : span // 2].sum())
    p_value = 2 * at_least if observed else 1.0
    # Rounding leaves about 1e-15; no p-value can be below that of all signs equal.
    return min(1.0, max(p_value, 2.0 ** (1 - len(sizes))))
