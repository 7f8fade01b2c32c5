"""A judge's scores, corrected by a few labels of people, and what a judge can be misled by.

The labelled responses are a random sample of the judged ones. Then the labels are unbiased, the judge's scores of all
responses only make them more precise, and a poor judge costs precision and not truth.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import numpy as np
from scipy import special, stats
from scipy.sparse import csr_array, vstack

from advisor.records import FIGURE_ALPHA
from advisor.statistics import Floats, Interval, is_binary, z_value

FEWEST_LABELS = 10
"""With fewer labels an interval says nothing."""
_DRAWS = 20_000
_LEAST_SPREAD = 0.1
"""The least sum of squares of what the judge does not explain: labels that all fit are no proof that all others do."""
_STRENGTH, _DIFFICULTY, _SLOPE, _DEVIATION = 10.0, 1.8, 0.2, 0.45
"""Standard deviations of the priors, in log-odds; the last one is that of a model's slope from the common one. With
these the figures are near AlpacaEval's, for pools of 1 to 56 models (benchmarks/judge_length.py)."""
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


def length_controlled(preferences: Floats, longer: Floats) -> Floats:
    """How often each model would be preferred to one other model if both wrote as much, in points.

    A logistic regression of all models together (AlpacaEval 2: Dubois et al. 2024, arXiv 2404.04475, equation 2): the
    log-odds are the model's strength, its slope on the length, tanh(difference / its standard deviation), and the
    question's difficulty. The result is its mean over the questions with a difference of 0. AlpacaEval has difficulties
    from a hundred models, each model with its own weight for them, and slopes that the other model's long and short
    versions keep in check. Here difficulties come from the models that are there, and normal priors keep all in check.

    Args:
        preferences: Models by questions, from 0 (the other one) to 1 (this one); NaN without a response.
            Each model has one at least.
        longer: How many characters longer each response is than the other model's.
    """
    from sklearn.linear_model import LogisticRegression

    models, questions = preferences.shape
    row, column = np.nonzero(~np.isnan(preferences))
    spread = np.nanstd(np.where(np.isnan(preferences), np.nan, longer), axis=1)
    length = np.tanh(longer[row, column] / np.where(spread, spread, np.inf)[row])
    # The penalty of all parameters is the same, so a prior's standard deviation is the scale of its column. A model's
    # slope is the sum of a common one and a deviation.
    values = [np.full(len(row), _STRENGTH), _DEVIATION * length, _SLOPE * length, np.full(len(row), _DIFFICULTY)]
    places = [row, models + row, np.full(len(row), 2 * models), 2 * models + 1 + column]
    cells = np.tile(np.arange(len(row)), len(values)), np.concatenate(places)
    terms = csr_array((np.concatenate(values), cells), shape=(len(row), 2 * models + 1 + questions))
    # A preference of 0.7 is seven tenths of a win and three of a loss.
    given = preferences[row, column]
    weights, wins = np.concatenate([given, 1 - given]), np.repeat([1, 0], len(row))
    fitted = LogisticRegression(fit_intercept=False, solver="newton-cg", tol=1e-6)
    fitted.fit(vstack([terms, terms]), wins, sample_weight=weights)
    strength, difficulty = _STRENGTH * fitted.coef_[0, :models], _DIFFICULTY * fitted.coef_[0, 2 * models + 1 :]
    expected = special.expit(strength[:, None] + difficulty)
    return 100 * np.array([expected[model, column[row == model]].mean() for model in range(models)])


def speaks_to_judge(text: str) -> bool:
    """Whether a response has a verdict in it, the marks of a prompt, or tells a judge what to say."""
    return _TO_THE_JUDGE.search(text) is not None
