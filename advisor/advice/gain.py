"""The gain of a strategy over the best single model, estimated from all answers that are stored.

The single models answered the dev questions and the held-out ones; a set that decodes together often answered the
held-out ones only. Which of the models are right on a question (its pattern) says much about whether the set is right.
So the shares of the patterns come from all questions, and the strategy's rate of right answers within a pattern from
those that it answered: double sampling for post-stratification (Cochran 1977, Sampling Techniques, section 12.2).
Graded scores have no patterns; a linear regression on the models' scores takes their place.

The variance is that of the estimate's influence function, summed over clusters of questions if there are any.

Strategies whose answers to all questions are known need no patterns: :func:`cross_fitted_gain`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from advisor.records import ALPHA, FIGURE_ALPHA, Answer, Profile
from advisor.run.figures import RIGHT
from advisor.run.result import OracleGain
from advisor.statistics import Floats, Interval, Labels, cluster_totals, folds_of, is_binary, scores
from advisor.strategies import kinds
from advisor.strategies.replay import replay
from advisor.strategies.strategy import AnsweredSplit, Choice, Replay, Single, Strategy, TrainingData
from advisor.tasks.task import clusters_of

MOST_IN_PATTERN = 5
"""Models whose answers make a pattern: with more than 2**5 patterns, many would have few questions."""
_PRIOR = 1.0
"""Questions that each pattern has before the strategy answers any: their score is the mean of its models."""
_OF_CHOICE = 3.0
_DRAWS = 400  # for the correction for hindsight, whose own error is then a tenth of a standard error at most


@dataclass(frozen=True, slots=True)
class Gain:
    """A strategy's gain over the best single model, in points.

    Attributes:
        points: The estimate, corrected for hindsight: the best accuracy of a sample overstates the best true one.
            If models are tied, a bootstrap finds about half of that; the rest makes the gain look smaller.
        observed: The same without this correction. The test of no gain uses it, so that it is valid if models are tied.
        error: The standard error of both.
        freedom: Degrees of freedom of Student's t distribution, at least 1.
        questions: Questions that the single models answered.
        answered: Those that the strategy answered, too.
        share: The share of the squared error that only more answers of the strategy make smaller, 0 to 1; the rest
            depends on the number of all questions.
        stretch: Factor of the interval's width, at least 1: above 1 if the data was looked at before, so that the
            intervals of all looks together have their confidence (Jennison and Turnbull 1989, JRSS B 51(3)).
    """

    points: float
    observed: float
    error: float
    freedom: float
    questions: int
    answered: int
    share: float = 1.0
    stretch: float = 1.0

    @property
    def p_no_gain(self) -> float:
        """One-sided p-value of no gain."""
        return float(special.stdtr(self.freedom, -self.observed / self.error))

    @property
    def p_no_loss(self) -> float:
        """One-sided p-value of no loss."""
        return float(special.stdtr(self.freedom, self._at_most / self.error))

    @property
    def _at_most(self) -> float:
        """The gain with three times the correction, for the test of no loss: a bootstrap finds too little.

        With once the correction, a loss is shown in up to 9% of cases where models are tied and nothing is lost.
        """
        return self.points + 2 * (self.points - self.observed)

    def interval(self, alpha: float = ALPHA) -> Interval:
        """The interval of the gain. Each end is a one-sided limit, so its confidence is 1 - 2 * alpha.

        It lies above 0 exactly if `p_no_gain` is at most `alpha`, and below 0 exactly if `p_no_loss` is; if the data
        was looked at before, exactly if the p-value that is corrected for that is.
        """
        half = float(special.stdtrit(self.freedom, 1 - alpha)) * self.error * self.stretch
        return max(-100.0, self.observed - half), min(100.0, self._at_most + half)


def estimate_gain(
    singles: Floats,
    strategy: Floats,
    answered: NDArray[np.bool_],
    clusters: Labels | None = None,
    members: int | None = None,
    passed_over: Floats | None = None,
) -> Gain:
    """Estimate the gain of a strategy.

    Args:
        singles: Scores of the single models, models by questions, 0 to 1; the strategy's members first.
        strategy: The strategy's scores on the questions that it answered, in their order.
        answered: Whether the strategy answered each question; at least one.
        clusters: What each question shares with others, for example a passage; None if they are independent.
        members: How many of the single models the strategy has; all without.
        passed_over: Scores of the candidates that could have been members but were less accurate on dev, models by dev
            questions, which are the first ones of `singles`. Without them the members count as fixed before: where
            they were chosen by luck, their dev answers then overstate the gain. A limit of the gap passes over one
            candidate more: the most accurate model's scores minus the limit.
    """
    n = singles.shape[1]
    best = int(singles.mean(axis=1).round(9).argmax())
    numbers = np.arange(n) if clusters is None else np.unique(np.asarray(clusters), return_inverse=True)[1]
    fit = _fit_patterns if is_binary(singles) and is_binary(strategy) else _fit_line
    predicted, weights, within = fit(singles, strategy, answered)
    differences = predicted - singles[best]
    observed = float(differences.mean())
    spread, freedom, design = float(((differences - observed) ** 2).mean()), len(strategy) - 1.0, 1.0
    if clusters is not None:
        influence = (differences - observed) / n
        influence[answered] += weights * (strategy - predicted[answered])
        sums = np.bincount(numbers, weights=influence)
        # The rates have as many degrees of freedom as clusters that the strategy answered, the shares as all clusters.
        own, every = max(len(np.unique(numbers[answered])), 2), max(len(sums), 2)
        share = within / max(within + spread / n, 1e-12)
        ratio = float(sums @ sums) / max(float(influence @ influence), 1e-12)
        design = max(ratio * own / (own - 1), 1.0)
        # Satterthwaite's; the clusters of both are the same in part, so it may not exceed theirs.
        freedom = min(1 / (share**2 / (own - 1) + (1 - share) ** 2 / (every - 1)), every - 1.0)
    between = design * spread / n
    if passed_over is not None and passed_over.size > 0 and passed_over.shape[1] < n:
        limit = _limit_of_choice(singles[:members], passed_over, differences)
        observed, between = _carved(observed, design * spread, limit, passed_over.shape[1], n)
    # A known answer counts as it is. A rate, which stands for the others, is drawn towards the models' mean.
    observed += float((strategy - predicted[answered]).sum()) / n
    # One question more on each side keeps the variance above 0 if no answer changed.
    variance = between + design * (within + 1 / n**2)
    return Gain(
        points=100 * (observed + _hindsight(singles, numbers)),
        observed=100 * observed,
        error=100 * math.sqrt(variance),
        freedom=max(freedom, 1.0),
        questions=n,
        answered=len(strategy),
        share=design * within / variance,
    )


def cross_fitted_gain(
    differences: Floats,
    clusters: Labels | None = None,
    choices: Sequence[tuple[Floats, Floats]] = (),
) -> Gain:
    """The gain of a strategy whose answer to each question was chosen by other questions.

    It is the mean difference. Its variance is that of a mean over clusters, and three times the variance that comes
    from the choice: how much the difference on a question varies from repeat to repeat. The questions that choose
    overlap, so their luck is shared, and the plain variance is too small (Nadeau and Bengio 2003, Machine Learning 52).
    Their correction widens all intervals alike; this one, only those where the choice varies. With less than three
    times, false gains are shown too often in simulations (``false_ensemble_all_asked`` of benchmarks.studies.advice).

    Args:
        differences: The strategy's score minus that of the best single model of the questions that chose, -1 to 1,
            repeats by questions. One repeat for what was named before.
        clusters: What each question shares with others; None if they are independent.
        choices: What was chosen once for all folds: the scores of the chosen, models by questions, and the scores at
            which they would not have been, on the questions that chose, which are the first ones, or all. As in
            :func:`estimate_gain`, the luck of a close choice is corrected. If all chose, half of them count as those
            that did: in simulations that leaves no bias (``false_ensemble_limited``).
    """
    repeats, n = differences.shape
    means = differences.mean(axis=0)
    observed = float(means.mean())
    labels = np.arange(n) if clusters is None else clusters
    totals, sizes = cluster_totals(means, labels)
    count = len(sizes)
    # Two questions more, one gained and one lost, keep the variance above 0 if no answer changed.
    squares = float(((totals - sizes * observed) ** 2).sum()) * count / max(count - 1, 1) + 2
    if repeats > 1:
        squares += _OF_CHOICE * float(cluster_totals(differences.T, labels)[0].var(axis=1, ddof=1).sum())
    variance = squares / n**2
    for members, passed_over in choices:
        limit, chose = _limit_of_choice(members, passed_over, means), passed_over.shape[1]
        observed, variance = _carved(observed, n * variance, limit, chose if chose < n else n // 2, n)
    return Gain(100 * observed, 100 * observed, 100 * math.sqrt(variance), max(count - 1.0, 1.0), n, n)


def _fit_patterns(singles: Floats, strategy: Floats, answered: NDArray[np.bool_]) -> tuple[Floats, Floats, float]:
    """The strategy's rate in each question's pattern, the weight of each of its answers, and the rates' variance."""
    members = singles[:MOST_IN_PATTERN].astype(np.int64)
    places = np.arange(len(members))[:, None]
    size = 1 << len(members)
    patterns = (members << places).sum(axis=0)
    own = patterns[answered]
    seen = np.bincount(own, minlength=size) + _PRIOR
    right = (np.arange(size) >> places & 1).sum(axis=0)
    # Between 0 and 1, so that no pattern is certain.
    prior = (right + 0.5) / (len(members) + 1)
    rates = (np.bincount(own, weights=strategy, minlength=size) + _PRIOR * prior) / seen
    shares = np.bincount(patterns, minlength=size) / len(patterns)
    within = float((shares**2 * rates * (1 - rates) / seen).sum())
    return rates[patterns], (shares / seen)[own], within


def _fit_line(singles: Floats, strategy: Floats, answered: NDArray[np.bool_]) -> tuple[Floats, Floats, float]:
    """The strategy's score as a linear function of the models' scores; the rest as :func:`_fit_patterns`."""
    everything = np.column_stack([np.ones(singles.shape[1]), singles[:MOST_IN_PATTERN].T])
    own, count = everything[answered], len(strategy)
    # Least squares of the smallest norm: two models with equal scores do no harm.
    slopes = np.linalg.lstsq(own, strategy, rcond=None)[0]
    residuals = strategy - own @ slopes
    freedom = max(count - everything.shape[1], 1)
    return everything @ slopes, np.full(count, 1 / count), float(residuals @ residuals) / (freedom * count)


def _limit_of_choice(members: Floats, passed_over: Floats, differences: Floats) -> float:
    """The mean difference on dev below which the rules would have chosen another member; -inf if it does not matter.

    A choice compares mean scores on dev. With all that is independent of the mean difference held fixed, each
    comparison has one value of the mean difference at which it is a tie (Lee et al. 2016, Annals of Statistics 44).
    """
    own = differences[: passed_over.shape[1]]
    mean = float(own.mean())
    leads = (members[:, None, : len(own)] - passed_over).reshape(-1, len(own))
    slopes = leads @ (own - mean)
    helps = slopes > 1e-9
    drops = np.maximum(leads.mean(axis=1)[helps], 0.0) / slopes[helps] * float(((own - mean) ** 2).sum())
    return mean - float(drops.min(initial=math.inf))


def _carved(observed: float, spread: float, limit: float, dev: int, n: int) -> tuple[float, float]:
    """The mean difference given that its part on dev is above a limit, and the variance.

    It is what the held-out questions are expected to say, given all questions (Cohen and Sackrowitz 1989, Statistics
    and Probability Letters 8): unbiased. Where the choice was not close, all questions count in full; where it was a
    tie, little more than the held-out ones.
    """
    ratio = dev / (n - dev)
    # The error of the mean on dev, given the mean of all questions.
    error = math.sqrt(spread * (1 / dev - 1 / n))
    if error == 0 or limit == -math.inf:
        return observed, spread / n
    distance = (observed - limit) / error
    corrected = observed - ratio * error * _mills(distance)
    # Where luck is large the choice seems clear, so the variance is that of a choice one standard error closer.
    distance -= 1
    mills = _mills(distance)
    shrunk = max(1 - distance * mills - mills**2, 0.0)
    return corrected, spread / (n - dev) - ratio**2 * error**2 * shrunk


def _mills(distance: float) -> float:
    """The mean of a standard normal number above minus the distance."""
    return math.exp(-(distance**2) / 2 - float(special.log_ndtr(distance))) / math.sqrt(2 * math.pi)


def _hindsight(singles: Floats, clusters: NDArray[np.intp]) -> float:
    """How much the best accuracy of the sample overstates the best true accuracy: a parametric bootstrap."""
    if len(singles) < 2:
        return 0.0
    means = singles.mean(axis=1)
    totals = np.stack([np.bincount(clusters, weights=own) for own in singles - means[:, None]])
    # A root of the covariance of the means. Its rows for clusters would be many more than models.
    values, vectors = np.linalg.eigh(totals @ totals.T / singles.shape[1] ** 2)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    changes = _normal(len(means)) @ root.T
    return float((means + changes).max(axis=1).mean() - means.max())


@cache
def _normal(models: int) -> Floats:
    """Normal numbers and their mirror images, draws by models: the same ones always, so an estimate does not vary."""
    draws = np.random.default_rng(0).standard_normal((_DRAWS, models))
    # The mean of each draw and its mirror image is unbiased with fewer draws.
    return np.concatenate([draws, -draws])


FEWEST_QUESTIONS = 30
"""Of a group that gets a ceiling: with fewer, the limit is above ten points even if no question is left."""


def ceiling_of(scores: Floats, members: Sequence[int], clusters: Labels | None = None) -> OracleGain:
    """The ceiling of strategies of some models, by their rows, over the best single model of all.

    The interval is Clopper and Pearson's (1934, Biometrika 26(4)), exact for scores of 0 and 1. Graded scores have
    Bentkus' bound (2004, Annals of Probability 32(2)): the level divided by e. Questions in clusters count as fewer
    questions (Korn and Graubard 1998, Survey Methodology 24(2)). The model that is the best on these questions was
    lucky on them, which makes its ceiling look too low. So each model's has the level divided by their number
    (Bonferroni): then all of them hold at once, and with them that of whichever model is the best.
    """
    best = scores[int(scores.mean(axis=1).round(9).argmax())]
    top = scores[list(members)].max(axis=0)
    room = np.maximum(top - best, 0.0)
    level = FIGURE_ALPHA / len(scores)
    if not np.isin(scores, (0.0, 1.0)).all():
        level /= math.e
    points = 100 * float(room.mean())
    all_wrong = 100 * float((scores.max(axis=0) < RIGHT).mean())
    return OracleGain(
        points=points,
        points_ci=_clopper_pearson(room, clusters, level),
        all_wrong=all_wrong,
        n=scores.shape[1],
    )


def _clopper_pearson(values: Floats, clusters: Labels | None, level: float) -> Interval:
    """The interval of a mean of values from 0 to 1, in points; the mean is beyond each end with probability `level`."""
    n = _questions_that_count(values, clusters)
    x = n * float(values.mean())
    low = float(special.betaincinv(x, n - x + 1, level)) if x > 0 else 0.0
    high = float(special.betaincinv(x + 1, n - x, 1 - level)) if x < n else 1.0
    return 100 * low, 100 * high


def _questions_that_count(values: Floats, clusters: Labels | None) -> float:
    """As many independent questions as tell as much; questions in clusters tell less."""
    n = float(len(values))
    if clusters is None:
        return n
    totals, sizes = cluster_totals(values, clusters)
    mean = float(values.mean())
    independent = mean * (1 - mean) * n
    if independent <= 0 or len(sizes) < 2:
        return float(len(sizes))
    together = float(((totals - sizes * mean) ** 2).sum()) * len(sizes) / (len(sizes) - 1)
    return max(float(len(sizes)), n / max(1.0, together / independent)) if together > 0 else n


_FOLDS = 5
_REPEATS = 4
_FEWEST_REPEATS = 2  # their differences tell how much the choice depends on the questions
_MOST_ANSWERS = 4000
"""Questions times repeats: with many questions, other folds hardly choose otherwise."""


class CrossFitted(NamedTuple):
    """A strategy's answers in the first repeat, those to each fold by what the others teach.

    ``differences`` has its score minus that of the best single model of the other folds, repeats by questions.
    """

    answered: Replay
    differences: Floats


def learned(given: TrainingData, names: Iterable[str]) -> dict[str, list[Strategy]]:
    """The strategies of some kinds that questions teach, by kind."""
    return {name: list(kinds()[name].learn(given)) for name in names}


def cross_fit(
    strategies: Mapping[str, Sequence[Strategy]],
    questions: AnsweredSplit,
    teach: Callable[[AnsweredSplit], TrainingData],
) -> Iterator[tuple[Strategy, CrossFitted]]:
    """Answer all questions with what others teach: each strategy that can be applied to all folds.

    The first strategy of a kind stands for the first of this kind in each fold, the last one for the last. Where the
    other folds teach none of this kind, for example because too few models are close, their best model answers. Fewer
    than two questions or clusters give no strategy.
    """
    n = len(questions.task.examples)
    wanted = [(kind, place, each) for kind, own in strategies.items() for place, each in enumerate(own)]
    # The answers of votes to a question depend on nothing that was learned, so each vote is counted once.
    counted: dict[Strategy, Replay | None] = {}
    alone = {name: scores(profile) for name, profile in questions.profiles.items()}
    answers: dict[Strategy, list[tuple[Sequence[int], Replay]]] = {each: [] for _, _, each in wanted}
    repeats = list(repeated_folds(n, clusters_of(questions.task)))
    differences = {each: np.zeros((len(repeats), n)) for _, _, each in wanted}

    def answer(strategy: Strategy, places: Sequence[int]) -> Replay | None:
        if strategy.LEARNS:
            return replay(strategy, questions.part(places))
        if strategy not in counted:
            counted[strategy] = replay(strategy, questions)
        found = counted[strategy]
        return None if found is None else found.part(places)

    for repeat, folds in enumerate(repeats):
        for fold in range(int(folds.max()) + 1):
            places = np.flatnonzero(folds == fold).tolist()
            given = teach(questions.part(np.flatnonzero(folds != fold).tolist()))
            found = learned(given, [kind for kind, own in strategies.items() if own])
            for kind, place, each in wanted:
                if each not in answers:
                    continue
                own = found[kind] or [Single((given.best,))]
                is_last = place == len(strategies[kind]) - 1
                part = answer(own[-1 if is_last else min(place, len(own) - 1)], places)
                if part is None:
                    del answers[each]
                    continue
                differences[each][repeat, places] = scores(part.profile) - alone[given.best][places]
                if repeat == 0:
                    answers[each].append((places, part))
    for strategy, pieces in answers.items():
        if pieces:
            yield strategy, CrossFitted(_joined(strategy, pieces, n), differences[strategy])


def repeated_folds(n: int, clusters: Labels | None = None) -> Iterator[NDArray[np.intp]]:
    """The fold of each of `n` questions, once for each repeat; none if there are fewer than two questions or clusters.

    The questions of a cluster are in one fold.
    """
    if (n if clusters is None else len(set(clusters))) < 2:
        return
    chance = np.random.default_rng(0)
    for _ in range(min(_REPEATS, max(_FEWEST_REPEATS, _MOST_ANSWERS // n))):
        yield folds_of(clusters, n, _FOLDS, chance)


def _joined(strategy: Strategy, pieces: Sequence[tuple[Sequence[int], Replay]], n: int) -> Replay:
    """The answers to all questions from those to some, each with their numbers."""
    in_order: list[tuple[int, Choice, Answer]] = sorted(
        (
            (place, part.takes[number], part.profile.answers[number])
            for places, part in pieces
            for number, place in enumerate(places)
        ),
        key=lambda each: each[0],
    )
    asked = {choice: np.zeros(n, dtype=np.bool_) for _, part in pieces for choice in part.asked}
    for places, part in pieces:
        for choice, own in part.asked.items():
            asked[choice][places] = own
    answers = tuple(answer for _, _, answer in in_order)
    return Replay(Profile(strategy.name, answers), tuple(take for _, take, _ in in_order), asked)
