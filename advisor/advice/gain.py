"""The gain of a strategy over the best single model, and what it can gain at most.

Strategies that take a reply of their members are cross-fitted: all questions choose them and all judge them, each fold
by what the others chose. What writes new texts is compared pair by pair on the questions that it answered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from advisor.records import ALPHA, FIGURE_ALPHA, Answer, Profile
from advisor.run.figures import RIGHT
from advisor.run.result import OracleGain
from advisor.statistics import Floats, Interval, Labels, cluster_totals, folds_of, scores
from advisor.strategies import kinds
from advisor.strategies.replay import replay
from advisor.strategies.strategy import AnsweredSplit, Choice, Replay, Single, Strategy, TrainingData
from advisor.tasks.task import clusters_of

_OF_CHOICE = 3.0


@dataclass(frozen=True, slots=True)
class Gain:
    """A strategy's gain over the best single model, in points.

    Attributes:
        points: The estimate.
        error: Its standard error.
        freedom: Degrees of freedom of Student's t distribution, at least 1.
        questions: Questions that it comes from.
        of_folds: The part of the error that other folds of cross-fitting would change.
    """

    points: float
    error: float
    freedom: float
    questions: int
    of_folds: float = 0.0

    @property
    def p_no_gain(self) -> float:
        """One-sided p-value of no gain."""
        return float(special.stdtr(self.freedom, -self.points / self.error))

    @property
    def p_no_loss(self) -> float:
        """One-sided p-value of no loss."""
        return float(special.stdtr(self.freedom, self.points / self.error))

    @property
    def probability(self) -> float:
        """The probability that the true gain is above 0, where nothing is known of it but this estimate."""
        return self.p_no_loss

    def interval(self, alpha: float = ALPHA) -> Interval:
        """The interval of the gain. Each end is a one-sided limit, so its confidence is 1 - 2 * alpha.

        It lies above 0 exactly if `p_no_gain` is at most `alpha`, and below 0 exactly if `p_no_loss` is.
        """
        half = float(special.stdtrit(self.freedom, 1 - alpha)) * self.error
        return max(-100.0, self.points - half), min(100.0, self.points + half)


def cross_fitted_gain(differences: Floats, clusters: Labels | None = None) -> Gain:
    """The gain of a strategy whose answer to each question was chosen by other questions.

    It is the mean difference. Its variance is that of a mean over clusters, and three times the variance that comes
    from the choice: how much the difference on a question varies from repeat to repeat. The questions that choose
    overlap, so their luck is shared, and the plain variance is too small (Nadeau and Bengio 2003, Machine Learning 52).
    Their correction widens all intervals alike; this one, only those where the choice varies. With less than three
    times, false gains are shown too often in simulations (``false_ensemble_all_asked`` of benchmarks.studies.advice).

    Args:
        differences: The strategy's score minus that of the best single model of the questions that chose, -1 to 1,
            repeats by questions; or by questions alone for two that were named before, whose plain mean tells.
        clusters: What each question shares with others; None if they are independent.
    """
    differences = np.atleast_2d(differences)
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
    error = 100 * math.sqrt(squares) / n
    return Gain(100 * observed, error, max(count - 1.0, 1.0), n, error_of_folds(differences))


def error_of_folds(differences: Floats) -> float:
    """The part of the standard error of a cross-fitted gain that other folds would change, in points."""
    repeats = len(differences)
    return 100 * float(differences.mean(axis=1).std(ddof=1)) / math.sqrt(repeats) if repeats > 1 else 0.0


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
_REPEATS = 10
_FEWEST_REPEATS = 2  # their differences tell how much the choice depends on the questions
_MOST_ANSWERS = 4000
"""Questions times repeats: with many questions, other folds hardly choose otherwise."""
_SMALL_ERROR = 0.1
"""Points: if other folds would change no gain by more, there are no more repeats."""


def learned(given: TrainingData, names: Iterable[str]) -> dict[str, list[Strategy]]:
    """The strategies of some kinds that questions teach, by kind."""
    return {name: list(kinds()[name].learn(given)) for name in names}


def cross_fit(
    strategies: Mapping[str, Sequence[Strategy]],
    questions: AnsweredSplit,
    teach: Callable[[AnsweredSplit], TrainingData],
) -> Iterator[tuple[Strategy, Replay, Floats]]:
    """Answer all questions with what others teach: each strategy that can be applied to all folds.

    Beside it are its answers in the first repeat, those to each fold by what the others teach, and its score minus that
    of the best single model of the other folds, repeats by questions.

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
        done = [each[:repeat] for each in differences.values()]
        if repeat >= _FEWEST_REPEATS and all(error_of_folds(each) < _SMALL_ERROR for each in done):
            differences = {each: own[:repeat] for each, own in differences.items()}
            break
        for fold in range(int(folds.max()) + 1):
            places = np.flatnonzero(folds == fold).tolist()
            given = teach(questions.part(np.flatnonzero(folds != fold).tolist()))
            found = learned(given, [kind for kind, own in strategies.items() if own])
            for kind, place, each in wanted:
                if each not in answers:
                    continue
                own = found[kind] or [Single((given.best,))]
                is_last = place == len(strategies[kind]) - 1
                used = own[-1 if is_last else min(place, len(own) - 1)]
                part = answer(used, places)
                if part is None:
                    del answers[each]
                    continue
                # Several responses of a model are compared with its one, also where another model is the best.
                rival = used.members[0] if used.responses_per_member > 1 else given.best
                differences[each][repeat, places] = scores(part.profile) - alone[rival][places]
                if repeat == 0:
                    answers[each].append((places, part))
    for strategy, pieces in answers.items():
        if pieces:
            yield strategy, _joined(strategy, pieces, n), differences[strategy]


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
    steps = {choice: np.full(n, -1) for _, part in pieces for choice in part.steps}
    for places, part in pieces:
        for choice, own in part.steps.items():
            steps[choice][places] = own
    answers = tuple(answer for _, _, answer in in_order)
    return Replay(Profile(strategy.name, answers), tuple(take for _, take, _ in in_order), steps)
