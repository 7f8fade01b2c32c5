"""A judge's scores, corrected by a few labels of people, and what a judge can be misled by.

The labelled responses are a random sample of the judged ones. Then the labels are unbiased, the judge's scores of all
responses only make them more precise, and a poor judge costs precision and not truth.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import numpy as np
from scipy import stats

from advisor.records import FIGURE_ALPHA
from advisor.statistics import Floats, Interval, is_binary, z_value

FEWEST_LABELS = 10
"""With fewer labels an interval says nothing."""
_DRAWS = 20_000
_LEAST_SPREAD = 0.1
"""The least sum of squares of what the judge does not explain: labels that all fit are no proof that all others do."""
_TO_THE_JUDGE = re.compile(
    r"\[\[ ?(?:[abc]|\d+) ?\]\]|<\|[a-z_]+\|>|\bmodel_identifier\b"
    r"|\b(?:ignore|disregard|forget) (?:all |any )?(?:the |your )?(?:previous|above|prior)"
    r"|\b(?:output|assistant|response) \(?[ab]\)? is (?:the )?(?:better|best)\b",
    re.IGNORECASE,
)


class Corrected(NamedTuple):
    """A mean score by a judge, and what labels make of it.

    Attributes:
        labels: The number of labels.
        judged: The mean of the judge's scores, in points.
        points: The corrected mean, in points.
        interval: Its 95% interval, which counts the error of the labels and that of the judged questions.
        worth: How many labels alone would be as precise, about.
        needed: Labels, in all, that show with a probability of 80% that a mean like this one is not 0; None if it is 0,
            or the questions are too few.
    """

    labels: int
    judged: float
    points: float
    interval: Interval
    worth: float
    needed: int | None


def corrected_mean(
    labels: Floats, scores: Floats, everything: Floats, ends: tuple[float, float] = (-1.0, 1.0)
) -> Corrected:
    """Correct the mean of a judge's scores, or of differences of scores.

    *Grades and differences*: prediction-powered inference with power tuning (PPI: Angelopoulos et al. 2023, arXiv
    2301.09633; PPI++: arXiv 2311.01453, section 6). The labels' mean is moved by what the judge says of all questions:
    mean(y) + w (mean(F) - mean(f)), with the w of least variance, and a t interval. As the labelled questions are among
    the judged ones, w is the slope of the labels on the scores.

    *Yes or no*: the same estimate is the share of right verdicts in each of the judge's two classes. It turns an error
    rate into a share of the truth as Rogan and Gladen (1978, Am. J. Epidemiology 107) do, but by the predictive values
    of the verdicts (Tenenbein 1970, JASA 65) and not by sensitivity and specificity. From a random sample these are
    known as well, and no division by a poor judge's advantage over chance widens the interval. It is from the posterior
    of three shares with Jeffreys' prior, which a few labels without an error do not make too short.

    Args:
        labels: Of the labelled questions; from 0 to 1, or differences from -1 to 1. At least 3.
        scores: The judge's, of the same questions.
        everything: The judge's, of all questions.
        ends: The least and the largest value of a label; no mean is beyond them.
    """
    n, total = len(labels), len(everything)
    spread = float(scores.var())
    weight = float(((labels - labels.mean()) * (scores - scores.mean())).mean()) / spread if spread > 0 else 0.0
    mean = float(labels.mean()) + weight * float(everything.mean() - scores.mean())
    rest = labels - weight * scores
    unexplained = max(float(((rest - rest.mean()) ** 2).sum()), _LEAST_SPREAD) / (n - 2)
    explained = weight**2 * float(everything.var()) / total
    half = float(stats.t.ppf(1 - FIGURE_ALPHA, n - 2)) * math.sqrt(unexplained / n + explained)
    low, high = mean - half, mean + half
    if all(is_binary(each) for each in (labels, scores, everything)):
        chance = np.random.default_rng(0)

        def share(ones: float, of: float) -> Floats:
            drawn: Floats = chance.beta(ones + 0.5, of - ones + 0.5, _DRAWS)
            return drawn

        right = share(float((labels * scores).sum()), float(scores.sum()))
        missed = share(float((labels * (1 - scores)).sum()), float((1 - scores).sum()))
        said_yes = share(float(everything.sum()), total)
        low, high = np.quantile(said_yes * right + (1 - said_yes) * missed, [FIGURE_ALPHA, 1 - FIGURE_ALPHA])
    alone = float(labels.var(ddof=1))
    room = (mean / (z_value(FIGURE_ALPHA) + z_value(0.2))) ** 2 - explained
    points, lower, upper = (100 * float(np.clip(each, *ends)) for each in (mean, low, high))
    return Corrected(
        n,
        100 * float(everything.mean()),
        points,
        (lower, upper),
        alone / (float(high - low) / 2 / z_value(FIGURE_ALPHA)) ** 2,
        max(FEWEST_LABELS, math.ceil(unexplained / room)) if room > 0 else None,
    )


def agreement(labels: Floats, scores: Floats) -> float | None:
    """Cohen's kappa of labels and scores, for grades with quadratic weights; None if all are the same one value."""
    from sklearn.metrics import cohen_kappa_score

    values = np.unique(np.round(np.concatenate([labels, scores]), 9))
    if len(values) < 2:
        return None
    ours, theirs = (np.searchsorted(values, np.round(each, 9)) for each in (labels, scores))
    return float(cohen_kappa_score(ours, theirs, weights="quadratic" if len(values) > 2 else None))


def speaks_to_judge(text: str) -> bool:
    """Whether a response has a verdict in it, the marks of a prompt, or tells a judge what to say."""
    return _TO_THE_JUDGE.search(text) is not None
