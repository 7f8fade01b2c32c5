"""Strategies, compared with the best single model.

All but sets that decode together and fusions need only the answers that the models gave alone. So all questions choose
them, and all questions judge them, by cross-fitting (:mod:`advisor.advice.gain`). What writes new texts is
chosen on the dev questions and judged on the held-out ones.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from threadpoolctl import threadpool_limits

from advisor.advice.gain import (
    Gain,
    ceiling_of,
    cross_fit,
    cross_fitted_gain,
    learned,
)
from advisor.advice.groups import group_gains
from advisor.advice.labels import gain_by_labels
from advisor.advice.predict import Prediction, Predictor, gain_of_others
from advisor.advice.rules import close_voters, rank
from advisor.advice.sequential import corrected_p
from advisor.records import ALPHA, Limits, Profile, Shown
from advisor.run.figures import StrategyKey
from advisor.run.result import (
    InterimAnalysis,
    OracleGain,
    StrategyFigures,
    UncomparedStrategy,
)
from advisor.statistics import (
    Floats,
    accuracy_interval,
    check_same_questions,
    cluster_totals,
    holm,
    most_accurate,
    scores,
)
from advisor.strategies import ADVICE, kinds
from advisor.strategies.replay import Spent, codes_of, question_seconds, replay, replay_all, spent_by_member
from advisor.strategies.schema import strategy_json
from advisor.strategies.strategy import (
    FEWEST_VOTERS,
    AnsweredSplit,
    Choice,
    Decoded,
    Replay,
    Single,
    Strategy,
    TrainingData,
)
from advisor.strategies.vote import near_copies
from advisor.tasks.task import Task, clusters_of
from ensemble.errors import UniteError

_MOVED = 0.01
"""The two splits are used together unless the models' accuracies differ by more than chance, at this level."""


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """What a strategy answers to the questions that judge it, and its row in ``result.json``.

    Attributes:
        figures: Its row.
        replay: Its answers to the held-out questions. Of a strategy that learns from these questions, those that
            other questions taught.
        differences: Its scores minus those of the best single model, repeats by questions.
        gain: Its gain over the best single model, from all questions: cross-fitted, unless it writes new texts.
        judged: The reply that each question takes, of all that judge it; empty unless it is cross-fitted.
        shown: What the test shows after its correction: a gain, a loss, or nothing yet.
    """

    figures: StrategyFigures
    replay: Replay
    differences: Floats
    gain: Gain
    judged: tuple[Choice, ...] = ()
    shown: Shown = "not_yet"

    @property
    def strategy(self) -> Strategy:
        """The strategy, as all questions teach it."""
        return self.figures.key


@dataclass(frozen=True, slots=True)
class Compared:
    """All strategies on the held-out questions.

    The largest expected gain comes first, and of equal ones the simplest. ``moved`` has the points by which the models
    are better on the held-out questions than on dev, if that is more than chance; the gains then come from the held-out
    questions alone. ``no_vote`` is a clause that says why there is no vote; empty if there is one, or only one model.
    The other fields are sections of the advice.
    """

    results: tuple[StrategyResult, ...] = ()
    moved: float | None = None
    no_vote: str = ""
    ceiling: OracleGain | None = None
    not_compared: tuple[UncomparedStrategy, ...] = ()

    def result_of(self, row: StrategyKey) -> StrategyResult:
        """The strategy of a row, one of these."""
        return next(each for each in self.results if each.strategy == row.key)


def compare_strategies(  # the answers, and what the tests must be corrected for
    dev: AnsweredSplit,
    held_out: AnsweredSplit,
    *,
    can_vote: bool,
    rules: Limits = Limits(),
    look: InterimAnalysis | None = None,
) -> Compared:
    """Compare all strategies that fit the task with the best single model.

    Three families of tests have :data:`ALPHA` each, with Holm's correction: the learned vote, which is the advice where
    answers can be counted; strategies that write new texts; and all others. `look` is the last look at the held-out
    questions: all p-values are corrected for it and those before.
    """
    if not held_out.profiles:
        return Compared()
    evidence = _Evidence(dev, held_out)
    copies = near_copies(sorted(evidence.questions.profiles.values(), key=rank))
    teach = partial(training_data, rules=rules, can_vote=can_vote, copies=copies)

    everything = teach(evidence.questions)
    # Threads would wait for each other after each of many small operations: 250 times the time on busy cores.
    with threadpool_limits(limits=1, user_api="blas"):
        every = learned(everything, kinds())
        offered = {
            kind: [each for each in found if each.same_as is None and not isinstance(each, Single)]
            for kind, found in every.items()
        }
        fitted = list(cross_fit(offered, evidence.questions, teach))
    found = [evidence.single(name) for name in dict.fromkeys((evidence.best, *evidence.cheaper()))]
    found += [evidence.written(each) for each in held_out.written]
    for strategy, answered, differences in fitted:
        # A router that sends all questions to one model is this model.
        if not strategy.LEARNS or strategy.COUNTS or len(set(answered.takes)) > 1:
            found.append(evidence.cross_fitted(strategy, answered, differences))
    results = evidence.over_one_model(_corrected(found, look))
    results.sort(key=_best_first)
    no_vote = "" if len(evidence.models) < 2 else _no_vote(len(everything.voters), rules, can_vote=can_vote)
    not_compared = tuple(
        UncomparedStrategy(strategy=each.name, same_as=each.same_as)
        for found in every.values()
        for each in found
        if each.same_as is not None
    )
    ceiling = evidence.ceiling(evidence.models)
    return Compared(tuple(results), evidence.moved, no_vote, ceiling, not_compared)


def fitting_voters(profiles: Sequence[Profile], rules: Limits) -> tuple[str, ...]:
    """The models of plain votes: the most accurate one and those close to it, near copies once, of any length."""
    ranked = sorted(profiles, key=rank)
    copies = near_copies(ranked)
    return close_voters([each for each in ranked if each.model not in copies], rules)


def training_data(questions: AnsweredSplit, rules: Limits, *, can_vote: bool, copies: Collection[str]) -> TrainingData:
    """What strategies are learned from, with the models that a vote can have: those that are no `copies`."""
    profiles = list(questions.profiles.values())
    ranked = sorted((each for each in profiles if each.model not in copies), key=rank)
    return TrainingData(
        questions,
        best=most_accurate(profiles).model,
        models=tuple(each.model for each in ranked),
        voters=close_voters(ranked, rules),
        most_voters=rules.max_voters,
        can_vote=can_vote,
        draws={name: len(own) for name, own in questions.draws.items()},
    )


def _no_vote(voters: int, rules: Limits, *, can_vote: bool) -> str:
    if not can_vote:
        return "the responses have no extracted answers that a vote can count"
    if voters >= FEWEST_VOTERS:
        return ""
    close = "no other model is" if voters < 2 else "only one other model is"
    return f"a vote takes {FEWEST_VOTERS} models, and {close} within {rules.vote_gap:g} points of the best one"


def expected_gain(strategy: Strategy, dev: AnsweredSplit, held_out: AnsweredSplit) -> float:
    """The gain to expect of a set that decodes together, in points, as :func:`compare_strategies` reports it."""
    if strategy not in held_out.written:
        raise UniteError(f"{strategy}: its answers to the held-out questions are not known")
    return _Evidence(dev, held_out).written(strategy).figures.expected_gain or 0.0


def compare_by_labels(
    held_out: AnsweredSplit,
    strategy: Strategy,
    single: str,
    labelled: NDArray[np.bool_],
) -> tuple[StrategyResult, ...]:
    """Compare one strategy with one model by the labels of questions on which they differ, the larger gain first.

    Both were named before, scores without a label are NaN, and the questions that are `labelled` are a random sample of
    those that differ.
    """
    results = []
    baseline = held_out.profiles[single]
    for each in (strategy, Single((single,))):
        replayed = replay_all(each, held_out)
        codes = codes_of((replayed.profile, baseline))
        own, best = scores(replayed.profile), scores(baseline)
        gain = gain_by_labels(own, best, codes[0] != codes[1], labelled, clusters_of(held_out.task))
        figures = {"cross_fitted": True, **_expected(each, gain, None, None, None, single)}
        shown: Shown = "not_yet"
        if not isinstance(each, Single):
            shown = _shown(gain.p_no_gain, gain.p_no_loss)
            figures["p_adjusted"] = gain.p_no_gain
        row = _row(each, replayed, gain, held_out, single, **figures)
        results.append(StrategyResult(row, replayed, (own - best)[None], gain, shown=shown))
    results.sort(key=_best_first)
    return tuple(results)


def _best_first(result: StrategyResult) -> tuple[float, int, int]:
    # Rounded, so that a rounding error does not break a tie. Of equally good strategies the simpler one comes first.
    gain, strategy = round(result.figures.expected_gain or 0.0, 9), result.strategy
    return -gain, strategy.SIMPLICITY, len(strategy.members)


class _Evidence:
    """The answers of the single models to the dev and the held-out questions together.

    ``questions`` are all of them, or the held-out ones alone if the models ``moved`` (:class:`Compared`), and ``best``
    is the most accurate model on them.
    """

    def __init__(self, dev: AnsweredSplit, held_out: AnsweredSplit) -> None:
        self._on_dev, self._held_out = dev, held_out
        self.models = [name for name in held_out.profiles if name in dev.profiles]
        splits = [[split.profiles[name] for name in self.models] for split in (dev, held_out)]
        for profiles in splits:
            check_same_questions(*profiles)
        learned, judged = (np.stack([scores(profile) for profile in profiles]) for profiles in splits)
        self.moved = _moved((learned, dev.task), (judged, held_out.task))
        self._tasks: tuple[Task, ...] = (dev.task, held_out.task)
        if self.moved is not None:
            learned, self._tasks = learned[:, :0], (held_out.task,)
            splits = splits[1:]
        self._whole = [
            Profile(name, sum((split[n].answers for split in splits), ())) for n, name in enumerate(self.models)
        ]
        self._predictor = Predictor(self._whole)
        self._scores: Floats = np.concatenate([learned, judged], axis=1)
        self._dev = learned.shape[1]
        self._clusters = clusters_of(*self._tasks)
        # The first of equally good ones.
        self.best = most_accurate(self._whole).model
        examples = tuple(example for task in self._tasks for example in task.examples)
        parts = (dev, held_out)[-len(self._tasks) :]
        draws = {
            name: tuple(Profile(name, sum((each.answers for each in own), ())) for own in zip(*drawn, strict=False))
            for name in held_out.draws
            if all(drawn := [split.draws.get(name, ()) for split in parts])
        }
        self.questions = AnsweredSplit(
            replace(held_out.task, examples=examples), dict(zip(self.models, self._whole, strict=True)), draws=draws
        )

    def cheaper(self) -> Iterator[str]:
        """The models that are better than all that cost less, by their prices; none if the prices are not known."""
        spent = [Spent.of([(self._held_out.profiles[name], None)]) for name in self.models]
        prices = [own.price(self._held_out.prices.get(name)) for name, own in zip(self.models, spent, strict=True)]
        accuracies = self._scores.mean(axis=1).round(9)
        known = [
            (price, -accuracy, name)
            for price, accuracy, name in zip(prices, accuracies, self.models, strict=True)
            if price is not None
        ]
        best = -1.0
        for _, accuracy, name in sorted(known):
            if -accuracy > best:
                best = -accuracy
                yield name

    def single(self, name: str) -> StrategyResult:
        """A single model; the best one gains nothing over itself."""
        n = len(self._held_out.task.examples)
        steps: dict[Choice, NDArray[np.intp]] = {(name, None): np.zeros(n, dtype=np.intp)}
        found = Replay(self._held_out.profiles[name], ((name, None),) * n, steps)
        return self._result(Single((name,)), found, (self._scores[self.models.index(name)] - self._baseline)[None])

    def written(self, strategy: Strategy) -> StrategyResult:
        """A strategy that writes new texts, or a router, which chose on dev questions, too."""
        found = self._held_out.written[strategy]
        on_dev = self._on_dev.written.get(strategy) if self._dev else None
        own = np.concatenate([scores(each.profile) for each in (on_dev, found) if each is not None])
        return self._result(strategy, found, (own - self._baseline[-len(own) :])[None], cross_fitted=False)

    def cross_fitted(self, strategy: Strategy, answered: Replay, differences: Floats) -> StrategyResult:
        """A strategy that other questions taught, with these answers to all that judge it."""
        # What learned a question by heart is shown by what the others taught.
        own = None if strategy.LEARNS else replay(strategy, self._held_out)
        parts = own or answered.part(range(self._dev, self._scores.shape[1]))
        return replace(self._result(strategy, parts, differences), judged=answered.takes)

    def _result(
        self, strategy: Strategy, found: Replay, differences: Floats, *, cross_fitted: bool = True
    ) -> StrategyResult:
        """A strategy with its row, without what depends on the other ones."""
        n = differences.shape[1]
        gain = cross_fitted_gain(differences, self._clusters_of(n))
        predicted = self._predicted(strategy, gain)
        is_bounded = found.takes and all(draw is None for _, draw in found.takes)
        # What takes an answer that a model gave alone gains no more than the best of them.
        ceiling = self.ceiling(strategy.members) if is_bounded else None
        updated = None
        # Equal scores are no gain, whatever other sets gain.
        if predicted is not None and differences.any():
            updated = predicted.updated(gain.points, gain.error)
            if ceiling is not None:
                updated = replace(updated, points=min(updated.points, ceiling.points))
        names = [example.group for example in self.questions.task.examples]
        groups = group_gains(differences.mean(axis=0), names[-n:], self._clusters_of(n))
        figures = _expected(strategy, gain, predicted, updated, ceiling, self.best)
        figures |= {"cross_fitted": cross_fitted, "groups": groups or None}
        row = _row(strategy, found, gain, self._held_out, self.best, **figures)
        return StrategyResult(row, found, differences, gain)

    def over_one_model(self, results: Sequence[StrategyResult]) -> list[StrategyResult]:
        """The strategies with their gains over those that ask one model several times, where there are some."""
        rivals = [each for each in results if each.strategy.asks_one_again]
        compared = []
        for each in results:
            gains = {}
            for rival in () if isinstance(each.strategy, Single) else rivals:
                if each is rival:
                    continue
                if each.figures.cross_fitted and rival.figures.cross_fitted:
                    own = each.differences - rival.differences
                else:
                    own = (scores(each.replay.profile) - scores(rival.replay.profile))[None]
                gain = cross_fitted_gain(own, self._clusters_of(own.shape[1]))
                gains[rival.figures.title] = (gain.points, *gain.interval())
            compared.append(_with(each, over_one_model=gains) if gains else each)
        return compared

    def _clusters_of(self, n: int) -> list[str] | None:
        """The clusters of the last n questions: of all, or of those that a strategy answered."""
        return None if self._clusters is None else list(self._clusters)[-n:]

    def ceiling(self, members: Sequence[str]) -> OracleGain | None:
        """What strategies that take an answer of these models can gain at most; None for one model, or unknown ones."""
        rows = [self.models.index(name) for name in members if name in self.models]
        if len(members) < 2 or len(rows) < len(members):
            return None
        return ceiling_of(self._scores, rows, self._clusters)

    def _predicted(self, strategy: Strategy, gain: Gain) -> Prediction | None:
        """The gain that is expected before anything is measured; None for strategies without such a prediction."""
        if isinstance(strategy, Decoded):
            return self._predictor.decoded(strategy.members)
        if len(strategy.members) < 2 or not (strategy.COUNTS or strategy.groups):
            return None
        # Between the two accuracies, as with one question more that is right and one that is wrong.
        n = self._scores.shape[1]
        middle = 100 * float(self._baseline.mean()) + gain.points / 2
        accuracy = (n * min(max(middle, 0.0), 100.0) + 100) / (n + 2)
        return gain_of_others("vote" if strategy.COUNTS else "route", accuracy)

    @property
    def _baseline(self) -> Floats:
        """The scores of the best single model."""
        own: Floats = self._scores[self.models.index(self.best)]
        return own


def _moved(*splits: tuple[Floats, Task]) -> float | None:
    """Points by which the models are better on the second split than on the first, if that is more than chance (1%)."""
    parts = []
    for own, task in splits:
        part, clusters = own.mean(axis=0), clusters_of(task)
        if clusters is not None:
            # Clusters as units, because their questions are alike.
            totals, sizes = cluster_totals(part, clusters)
            part = totals / sizes
        parts.append(part)
    freedom = min(len(part) for part in parts) - 1
    if not freedom:
        return None
    # Welch's test. One question more keeps the variance above 0 if all answers are right.
    variance = sum(float(part.var(ddof=1)) / len(part) + 1 / len(part) ** 2 for part in parts)
    if 2 * stats.t.sf(abs(parts[1].mean() - parts[0].mean()) / math.sqrt(variance), freedom) > _MOVED:
        return None
    return 100 * float(splits[1][0].mean() - splits[0][0].mean())


def _corrected(results: Sequence[StrategyResult], look: InterimAnalysis | None) -> list[StrategyResult]:
    """The strategies with what the tests show after their correction; see :func:`compare_strategies`."""
    correct = float if look is None else partial(corrected_p, look)
    families: dict[object, dict[object, list[int]]] = {}
    for n, each in enumerate(results):
        if not isinstance(each.strategy, Single):
            # What gives the same answers on all questions that judge, also of dev, is one hypothesis.
            cross_fitted = each.figures.cross_fitted
            alike = (each.replay.takes, each.judged, each.differences.tobytes()) if cross_fitted else n
            family = families.setdefault((each.strategy.KIND == ADVICE, cross_fitted), {})
            family.setdefault(alike, []).append(n)
    corrected = list(results)
    for hypotheses in families.values():
        gains = [[results[n].gain for n in same] for same in hypotheses.values()]
        better = holm([max(correct(gain.p_no_gain) for gain in same) for same in gains])
        worse = holm([max(correct(gain.p_no_loss) for gain in same) for same in gains])
        for same, p_no_gain, p_no_loss in zip(hypotheses.values(), better, worse, strict=True):
            for n in same:
                corrected[n] = replace(_with(results[n], p_adjusted=p_no_gain), shown=_shown(p_no_gain, p_no_loss))
    return corrected


def _shown(p_no_gain: float, p_no_loss: float) -> Shown:
    return "yes" if p_no_gain <= ALPHA else "no" if p_no_loss <= ALPHA else "not_yet"


def _with(result: StrategyResult, **figures: Any) -> StrategyResult:
    """The same with some figures of its row."""
    return replace(result, figures=result.figures.model_copy(update=figures))


def _expected(
    strategy: Strategy,
    gain: Gain,
    predicted: Prediction | None,
    updated: Prediction | None,
    ceiling: OracleGain | None,
    best: str,
) -> dict[str, Any]:
    """The predicted gain, and the gain to expect in use: the updated prediction, or without one the measured gain."""
    expected = updated or gain
    low, high = expected.interval()
    # Over itself, a model gains nothing, and that is certain.
    if isinstance(strategy, Single) and strategy.members == (best,):
        low = high = 0.0
    most = high if ceiling is None else ceiling.points_ci[1]
    return {
        "probability": None if isinstance(strategy, Single) else expected.probability,
        "predicted_gain": None if predicted is None else predicted.points,
        "predicted_gain_ci": None if predicted is None else predicted.interval(),
        "expected_gain": expected.points,
        "expected_gain_ci": (min(low, most), min(high, most)),
    }


def _row(
    strategy: Strategy, found: Replay, gain: Gain, held_out: AnsweredSplit, best: str, **figures: Any
) -> StrategyFigures:
    """The row of a strategy; `figures` are those of the expected gain and of tests."""
    profile, n = found.profile, len(found.profile.answers)
    differences = scores(profile) - scores(held_out.profiles[best])
    costs = spent_by_member(found, held_out)
    prices = [each.price(held_out.prices.get(name)) for name, each in costs.items()]
    known = [price for price in prices if price is not None]
    seconds = question_seconds(found, held_out)
    return StrategyFigures(
        **strategy_json(strategy),
        n=n,
        split=held_out.task.split,
        accuracy=profile.accuracy,
        accuracy_ci=accuracy_interval(profile),
        measured_gain=gain.points,
        measured_gain_ci=gain.interval(),
        error_of_folds=gain.of_folds if gain.of_folds else None,
        questions=gain.questions,
        p_no_gain=gain.p_no_gain,
        best_single_model=best,
        best_single_accuracy=held_out.profiles[best].accuracy,
        gained=int((differences > 0).sum()),
        lost=int((differences < 0).sum()),
        calls_per_question=found.calls_per_question,
        tokens_per_question=_mean([each.tokens for each in costs.values()], n),
        seconds_per_question=_mean([each.seconds for each in costs.values()], n),
        seconds_median=None if seconds is None else float(np.median(seconds)),
        seconds_p95=None if seconds is None else float(np.quantile(seconds, 0.95, method="inverted_cdf")),
        price_per_1000=1000 / n * sum(known) if len(known) == len(prices) else None,
        **figures,
    )


def _mean(totals: Sequence[float | None], n: int) -> float | None:
    """The mean over the questions; None if a member's total is not known."""
    known = [total for total in totals if total is not None]
    return sum(known) / n if len(known) == len(totals) else None
