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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from threadpoolctl import threadpool_limits

from advisor.advice.gain import (
    CrossFitted,
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
    GroupFigures,
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
from advisor.strategies.replay import Spent, codes_of, replay, replay_all, spent_by_member
from advisor.strategies.schema import strategy_json
from advisor.strategies.self_consistency import SelfConsistency
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
from advisor.strategies.vote import without_near_copies
from advisor.tasks.task import Task, clusters_of
from ensemble.errors import UniteError

_MOVED = 0.01
"""The two splits are used together unless the models' accuracies differ by more than chance, at this level."""


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """A strategy on the held-out questions: its answers, and its row in ``result.json``.

    Attributes:
        strategy: The strategy, as all questions teach it.
        figures: Its row.
        profile: Its answers to the held-out questions. Of a strategy that learns from these questions, those
            that other questions taught.
        takes: The reply that each question takes; empty for a strategy that writes new texts.
        shown: What the test shows after its correction: a gain, a loss, or nothing yet.
        gain: Its gain over the best single model, from all questions: cross-fitted, unless it writes new texts.
        ceiling: What it can gain at most; None if it is not bounded by its models' answers, or has one model.
        warnings: What the mean over all questions hides, by their groups, each a sentence.
    """

    strategy: Strategy
    figures: StrategyFigures
    profile: Profile
    takes: tuple[Choice, ...]
    gain: Gain
    shown: Shown = "not_yet"
    ceiling: OracleGain | None = None
    warnings: tuple[str, ...] = ()


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
    seed: int = 0,
) -> Compared:
    """Compare all strategies that fit the task with the best single model.

    Three families of tests have :data:`ALPHA` each, with Holm's correction: the learned vote, which is the advice where
    answers can be counted; strategies that write new texts; and all others. `look` is the last look at the held-out
    questions: all p-values are corrected for it and those before.
    """
    if not held_out.profiles:
        return Compared()
    evidence = _Evidence(dev, held_out, rules)
    teach = partial(training_data, rules=rules, can_vote=can_vote, distinct=distinct_models(evidence.questions))

    everything = teach(evidence.questions)
    # Threads would wait for each other after each of many small operations: 250 times the time on busy cores.
    with threadpool_limits(limits=1, user_api="blas"):
        every = learned(everything, kinds())
        offered = {
            kind: [each for each in found if each.same_as is None and not isinstance(each, Single)]
            for kind, found in every.items()
        }
        fitted = list(cross_fit(offered, evidence.questions, teach))
    singles = dict.fromkeys((evidence.best, *evidence.cheaper(held_out)))
    answers = [evidence.single(name, held_out) for name in singles]
    answers += [evidence.anew(each, dev, held_out) for each in held_out.written]
    for strategy, found in fitted:
        # A router that sends all questions to one model is this model.
        if not strategy.LEARNS or strategy.COUNTS or len(set(found.answered.takes)) > 1:
            # What learned a question by heart is shown by what the others taught.
            own = None if strategy.LEARNS else replay(strategy, held_out)
            answers.append(evidence.on_held_out(strategy, found, own))
    gains = [evidence.gain(each) for each in answers]
    drawn = next((each for each in answers if each.strategy.KIND == SelfConsistency.KIND), None)
    correct = float if look is None else partial(corrected_p, look)
    better = _adjusted(answers, [correct(gain.p_no_gain) for gain in gains])
    worse = _adjusted(answers, [correct(gain.p_no_loss) for gain in gains])
    results = []
    for each, gain, p_no_gain, p_no_loss in zip(answers, gains, better, worse, strict=True):
        shown: Shown = "not_yet"
        if p_no_gain is not None and p_no_loss is not None:
            shown = "yes" if p_no_gain <= ALPHA else "no" if p_no_loss <= ALPHA else "not_yet"
        groups, warnings = evidence.groups(each)
        predicted = evidence.predicted(each.strategy, gain)
        is_bounded = each.held_out.takes and all(draw is None for _, draw in each.held_out.takes)
        # What takes an answer that a model gave alone gains no more than the best of them.
        ceiling = evidence.ceiling(each.strategy.members) if is_bounded else None
        updated = evidence.updated(each, gain, predicted, ceiling)
        tested: dict[str, Any] = {"p_adjusted": p_no_gain, "groups": groups or None}
        expected = _expected(each.strategy, gain, predicted, updated, ceiling, evidence.best)
        if drawn is not None and each is not drawn and not isinstance(each.strategy, Single):
            over_draws = evidence.gain_over(drawn, each)
            tested |= {"over_draws": over_draws.points, "over_draws_ci": over_draws.interval()}
        result = _result(each, gain, held_out, evidence.best, seed, **tested, **expected)
        results.append(replace(result, shown=shown, ceiling=ceiling, warnings=warnings))
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
    return close_voters(without_near_copies(sorted(profiles, key=rank)), rules)


def distinct_models(questions: AnsweredSplit) -> frozenset[str]:
    """The models without near copies of more accurate ones."""
    ranked = sorted(questions.profiles.values(), key=rank)
    return frozenset(each.model for each in without_near_copies(ranked))


def training_data(
    questions: AnsweredSplit, rules: Limits, *, can_vote: bool, distinct: Collection[str]
) -> TrainingData:
    """What strategies are learned from, with the models that a vote can have: those that are `distinct`."""
    profiles = list(questions.profiles.values())
    ranked = sorted((each for each in profiles if each.model in distinct), key=rank)
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


def expected_gain(strategy: Strategy, dev: AnsweredSplit, held_out: AnsweredSplit, rules: Limits = Limits()) -> float:
    """The gain to expect of a set that decodes together, in points, as :func:`compare_strategies` reports it."""
    if strategy not in held_out.written:
        raise UniteError(f"{strategy}: its answers to the held-out questions are not known")
    evidence = _Evidence(dev, held_out, rules)
    answered = evidence.anew(strategy, dev, held_out)
    gain = evidence.gain(answered)
    return (evidence.updated(answered, gain, evidence.predicted(strategy, gain), None) or gain).points


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
        found = _Answers(each, replayed, (scores(replayed.profile) - scores(baseline))[None])
        codes = codes_of((replayed.profile, baseline))
        gain = gain_by_labels(
            scores(replayed.profile), scores(baseline), codes[0] != codes[1], labelled, clusters_of(held_out.task)
        )
        is_tested = not isinstance(each, Single)
        shown: Shown = "yes" if gain.p_no_gain <= ALPHA else "no" if gain.p_no_loss <= ALPHA else "not_yet"
        expected = _expected(each, gain, None, None, None, single)
        tested = {"p_adjusted": gain.p_no_gain} if is_tested else {}
        result = _result(found, gain, held_out, single, 0, **tested, **expected)
        results.append(replace(result, shown=shown) if is_tested else result)
    results.sort(key=_best_first)
    return tuple(results)


def _best_first(result: StrategyResult) -> tuple[float, int, int]:
    # Rounded, so that a rounding error does not break a tie. Of equally good strategies the simpler one comes first.
    gain, strategy = round(result.figures.expected_gain or 0.0, 9), result.strategy
    return -gain, strategy.SIMPLICITY, len(strategy.members)


class _Answers(NamedTuple):
    """A strategy's answers before they are compared; see :class:`StrategyResult`.

    ``differences`` are those to the best single model, repeats by questions, and ``takes`` are what it takes on all
    questions that judge. What ``is_written`` is a new text.
    """

    strategy: Strategy
    held_out: Replay
    differences: Floats
    takes: tuple[Choice, ...] = ()
    is_written: bool = False


class _Evidence:
    """The answers of the single models to the dev and the held-out questions together.

    ``questions`` are all of them, or the held-out ones alone if the models ``moved`` (:class:`Compared`), and ``best``
    is the most accurate model on them.
    """

    def __init__(self, dev: AnsweredSplit, held_out: AnsweredSplit, rules: Limits) -> None:
        self._rules = rules
        self.models = [name for name in held_out.profiles if name in dev.profiles]
        splits = [[split.profiles[name] for name in self.models] for split in (dev, held_out)]
        for profiles in splits:
            check_same_questions(*profiles)
        learned, judged = (np.stack([scores(profile) for profile in profiles]) for profiles in splits)
        self.moved = _moved((learned, dev.task), (judged, held_out.task))
        self._tasks: tuple[Task, ...] = (dev.task, held_out.task)
        self._learned = dev.profiles
        if self.moved is not None:
            learned, self._tasks, self._learned = learned[:, :0], (held_out.task,), {}
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

    def cheaper(self, held_out: AnsweredSplit) -> Iterator[str]:
        """The models that are better than all that cost less, by their prices; none if the prices are not known."""
        spent = [Spent.of([(held_out.profiles[name], None)]) for name in self.models]
        prices = [own.price(held_out.prices.get(name)) for name, own in zip(self.models, spent, strict=True)]
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

    def single(self, name: str, held_out: AnsweredSplit) -> _Answers:
        """A single model; the best one gains nothing over itself."""
        strategy, n = Single((name,)), len(held_out.task.examples)
        own = Replay(held_out.profiles[name], ((name, None),) * n, {(name, None): np.ones(n, dtype=np.bool_)})
        return _Answers(strategy, own, (self._scores[self.models.index(name)] - self._baseline)[None])

    def anew(self, strategy: Strategy, dev: AnsweredSplit, held_out: AnsweredSplit) -> _Answers:
        """A strategy that writes new texts, or a router, which chose on dev questions, too."""
        found = held_out.written[strategy]
        on_dev = dev.written.get(strategy) if self._dev else None
        own = np.concatenate([scores(each.profile) for each in (on_dev, found) if each is not None])
        return _Answers(strategy, found, (own - self._baseline[-len(own) :])[None], is_written=True)

    def on_held_out(self, strategy: Strategy, found: CrossFitted, own: Replay | None) -> _Answers:
        """A strategy that is cross-fitted, with its `own` answers to the held-out questions, or those of its parts."""
        places = range(self._dev, self._scores.shape[1])
        held_out = own or found.answered.part(places)
        return _Answers(strategy, held_out, found.differences, takes=found.answered.takes)

    def gain(self, answered: _Answers) -> Gain:
        """The gain of a strategy."""
        return cross_fitted_gain(answered.differences, self._clusters_of(answered))

    def gain_over(self, other: _Answers, answered: _Answers) -> Gain:
        """The gain of a strategy over another one that is cross-fitted."""
        if answered.is_written:
            own = (scores(answered.held_out.profile) - scores(other.held_out.profile))[None]
        else:
            own = answered.differences - other.differences
        return self.gain(answered._replace(differences=own))

    def _clusters_of(self, answered: _Answers) -> list[str] | None:
        """The clusters of the questions that judge a strategy: of all, or of those that it answered, the last ones."""
        return None if self._clusters is None else list(self._clusters)[-answered.differences.shape[1] :]

    def updated(
        self, answered: _Answers, gain: Gain, predicted: Prediction | None, ceiling: OracleGain | None
    ) -> Prediction | None:
        """The expected gain: the prediction, updated by the gain, at most the ceiling; None without a prediction."""
        # Equal scores are no gain, whatever other sets gain.
        if predicted is None or not answered.differences.any():
            return None
        found = predicted.updated(gain.points, gain.error)
        return found if ceiling is None else replace(found, points=min(found.points, ceiling.points))

    def ceiling(self, members: Sequence[str]) -> OracleGain | None:
        """What strategies that take an answer of these models can gain at most; None for one model, or unknown ones."""
        rows = [self.models.index(name) for name in members if name in self.models]
        if len(members) < 2 or len(rows) < len(members):
            return None
        return ceiling_of(self._scores, rows, self._clusters)

    def groups(self, answered: _Answers) -> tuple[tuple[GroupFigures, ...], tuple[str, ...]]:
        """The gain of a strategy in each group of the questions that it answered, and what their mean hides."""
        groups = [example.group for example in self.questions.task.examples]
        n = answered.differences.shape[1]
        return group_gains(answered.differences.mean(axis=0), groups[-n:], self._clusters_of(answered))

    def predicted(self, strategy: Strategy, gain: Gain) -> Prediction | None:
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


def _adjusted(answers: Sequence[_Answers], p_values: Sequence[float]) -> list[float | None]:
    """The p-values after correction; see :func:`compare_strategies`. None for single models."""
    families: dict[object, dict[object, list[int]]] = {}
    for n, each in enumerate(answers):
        if not isinstance(each.strategy, Single):
            # What gives the same answers on all questions that judge, also of dev, is one hypothesis.
            alike = n if each.is_written else (each.held_out.takes, each.takes, each.differences.tobytes())
            family = families.setdefault((each.strategy.KIND == ADVICE, each.is_written), {})
            family.setdefault(alike, []).append(n)
    adjusted: list[float | None] = [None] * len(answers)
    for hypotheses in families.values():
        corrected = holm([max(p_values[n] for n in same) for same in hypotheses.values()])
        for same, value in zip(hypotheses.values(), corrected, strict=True):
            for n in same:
                adjusted[n] = value
    return adjusted


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


def _result(
    answered: _Answers, gain: Gain, held_out: AnsweredSplit, best: str, seed: int, **figures: Any
) -> StrategyResult:
    """A strategy with its row; `figures` are those of the tests and the expected gain."""
    found = answered.held_out
    profile, n = found.profile, len(found.profile.answers)
    differences = scores(profile) - scores(held_out.profiles[best])
    costs = spent_by_member(found, held_out)
    prices = [each.price(held_out.prices.get(name)) for name, each in costs.items()]
    known = [price for price in prices if price is not None]
    row = StrategyFigures(
        **strategy_json(answered.strategy),
        n=n,
        split=held_out.task.split,
        accuracy=profile.accuracy,
        accuracy_ci=accuracy_interval(profile, seed=seed),
        measured_gain=gain.points,
        measured_gain_ci=gain.interval(),
        cross_fitted=not answered.is_written,
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
        price_per_1000=1000 / n * sum(known) if len(known) == len(prices) else None,
        **figures,
    )
    return StrategyResult(answered.strategy, row, profile, found.takes, gain)


def _mean(totals: Sequence[float | None], n: int) -> float | None:
    """The mean over the questions; None if a member's total is not known."""
    known = [total for total in totals if total is not None]
    return sum(known) / n if len(known) == len(totals) else None
