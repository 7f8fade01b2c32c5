"""Strategies, compared with the best single model.

All but sets that decode together and fusions need only the answers that the models gave alone. So all questions choose
them, and all questions judge them, by cross-fitting (:mod:`advisor.advice.gain`). What writes new texts is
chosen on the dev questions and judged on the held-out ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from advisor.advice.gain import (
    FEWEST_QUESTIONS,
    CrossFitted,
    Gain,
    ceiling_of,
    cross_fit,
    cross_fitted_gain,
    estimate_gain,
    learned,
)
from advisor.advice.groups import group_gains
from advisor.advice.labels import gain_by_labels
from advisor.advice.predict import MOST_MEMBERS, Prediction, Predictor
from advisor.advice.rules import fitting_voters, rank
from advisor.advice.sequential import corrected_p, interval_stretch
from advisor.records import ALPHA, TOLERANCE, Limits, Profile, Shown, within
from advisor.run.figures import StrategyKey
from advisor.run.result import (
    GroupFigures,
    GroupOracleGain,
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
from advisor.strategies import kinds, largest_default
from advisor.strategies.replay import Spent, codes_of, replay, replay_all, spent_by_member
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
from advisor.tasks.task import Task, clusters_of
from ensemble.errors import UniteError

_MOVED = 0.01
"""The two splits are used together unless the models' accuracies differ by more than chance, at this level."""


DEFAULT_SHARE = 0.9
"""The share of alpha for the default strategy: nearly all, because it is the best one most often. The rest is enough
for another strategy whose gain is beyond doubt."""


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """A strategy on the held-out questions: its answers, and its row in ``result.json``.

    Attributes:
        strategy: The strategy, as all questions teach it.
        figures: Its row.
        profile: Its answers to the held-out questions. Of a strategy that learns from these questions, those
            that other questions taught.
        takes: The reply that each question takes; empty for a strategy that writes new texts.
        gain: Its gain over the best single model, from all questions: cross-fitted, unless it writes new texts.
        ceiling: What it can gain at most; None if it is not bounded by its models' answers, or has one model.
        warnings: What the mean over all questions hides, by their groups, each a sentence.
    """

    strategy: Strategy
    figures: StrategyFigures
    profile: Profile
    takes: tuple[Choice, ...]
    gain: Gain
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
    group_ceilings: tuple[GroupOracleGain, ...] = ()
    not_compared: tuple[UncomparedStrategy, ...] = ()

    def result_of(self, row: StrategyKey) -> StrategyResult:
        """The strategy of a row, one of these."""
        return next(each for each in self.results if each.strategy == row.key)


def compare_strategies(  # the answers, and what the tests must be corrected for
    dev: AnsweredSplit,
    held_out: AnsweredSplit,
    *,
    can_vote: bool,
    predictions: Mapping[Strategy, Prediction] = MappingProxyType({}),
    rules: Limits = Limits(),
    look: InterimAnalysis | None = None,
    seed: int = 0,
) -> Compared:
    """Compare all strategies that fit the task with the best single model.

    Two families of tests have :data:`ALPHA` each. *Strategies that write new texts*: Holm's correction. *All others*:
    the default strategy with all voters has :data:`DEFAULT_SHARE` of it, all others together have the rest with Holm's
    correction. What is shown passes its alpha on (a closed test with weights: Bretz et al. 2009, Statistics in Medicine
    28(4)). Without a vote, and for losses, all have Holm's correction. `look` is the last look at the held-out
    questions: all p-values are corrected for it and those before. `predictions` take the place of those that are made
    here.
    """
    if not held_out.profiles:
        return Compared()
    evidence = _Evidence(dev, held_out, rules)

    def teach(questions: AnsweredSplit) -> TrainingData:
        profiles = list(questions.profiles.values())
        draws = {name: len(own) for name, own in questions.draws.items()}
        return TrainingData(questions, most_accurate(profiles).model, fitting_voters(profiles, rules), can_vote, draws)

    everything = teach(evidence.questions)
    every = learned(everything, kinds())
    offered = {
        kind: [each for each in found if each.same_as is None and not isinstance(each, Single)]
        for kind, found in every.items()
    }
    singles = dict.fromkeys((evidence.best, *evidence.cheaper(held_out)))
    answers = [evidence.single(name, held_out) for name in singles]
    answers += [evidence.anew(each, dev, held_out) for each in held_out.written]
    for strategy, found in cross_fit(offered, evidence.questions, teach):
        # A router that sends all questions to one model is this model.
        if not strategy.LEARNS or strategy.COUNTS or len(set(found.answered.takes)) > 1:
            # What learned a question by heart is shown by what the others taught.
            own = None if strategy.LEARNS else replay(strategy, held_out)
            answers.append(evidence.on_held_out(strategy, found, own))
    gains = [evidence.gain(each) for each in answers]
    correct = float if look is None else partial(corrected_p, look)
    if look is not None:
        gains = [replace(gain, stretch=interval_stretch(look, ALPHA, gain.freedom)) for gain in gains]
    better = _adjusted(answers, [correct(gain.p_no_gain) for gain in gains], has_default=True)
    worse = _adjusted(answers, [correct(gain.p_no_loss) for gain in gains], has_default=False)
    results = []
    for each, gain, p_no_gain, p_no_loss in zip(answers, gains, better, worse, strict=True):
        shown: Shown = "not_yet"
        if p_no_gain is not None and p_no_loss is not None:
            shown = "yes" if p_no_gain <= ALPHA else "no" if p_no_loss <= ALPHA else "not_yet"
        groups, warnings = evidence.groups(each)
        predicted = predictions.get(each.strategy) or evidence.predicted(each.strategy, everything.voters)
        is_bounded = each.held_out.takes and all(draw is None for _, draw in each.held_out.takes)
        # What takes an answer that a model gave alone gains no more than the best of them.
        ceiling = evidence.ceiling(each.strategy.members) if is_bounded else None
        updated = evidence.updated(each, gain, predicted, ceiling)
        tested = {"p_adjusted": p_no_gain, "shown": shown, "groups": groups or None}
        expected = _expected(each.strategy, gain, predicted, updated, ceiling, evidence.best)
        result = _result(each, gain, held_out, evidence.best, seed, **tested, **expected)
        results.append(replace(result, ceiling=ceiling, warnings=warnings))
    results.sort(key=_best_first)
    no_vote = "" if len(evidence.models) < 2 else _no_vote(len(everything.voters), rules, can_vote=can_vote)
    not_compared = tuple(
        UncomparedStrategy(strategy=each.name, same_as=each.same_as)
        for found in every.values()
        for each in found
        if each.same_as is not None
    )
    ceiling = evidence.ceiling(evidence.models)
    return Compared(tuple(results), evidence.moved, no_vote, ceiling, evidence.group_ceilings(), not_compared)


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
    return (evidence.updated(answered, gain, evidence.predicted(strategy), None) or gain).points


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
        found = _Answers(each, replayed)
        codes = codes_of((replayed.profile, baseline))
        gain = gain_by_labels(
            scores(replayed.profile), scores(baseline), codes[0] != codes[1], labelled, clusters_of(held_out.task)
        )
        is_tested = not isinstance(each, Single)
        shown: Shown = "yes" if gain.p_no_gain <= ALPHA else "no" if gain.p_no_loss <= ALPHA else "not_yet"
        tested = {"p_adjusted": gain.p_no_gain, "shown": shown} if is_tested else {"shown": "not_yet"}
        expected = _expected(each, gain, None, None, None, single)
        results.append(_result(found, gain, held_out, single, 0, **tested, **expected))
    results.sort(key=_best_first)
    return tuple(results)


def _best_first(result: StrategyResult) -> tuple[float, int, int]:
    # Rounded, so that a rounding error does not break a tie. Of equally good strategies the simpler one comes first.
    gain, strategy = round(result.figures.expected_gain or 0.0, 9), result.strategy
    return -gain, strategy.SIMPLICITY, len(strategy.members)


class _Answers(NamedTuple):
    """A strategy's answers before they are compared; see :class:`StrategyResult`.

    ``differences`` are those of a strategy that is cross-fitted, repeats by questions, and ``takes`` are what it takes
    on all questions that judge; ``dev`` has the answers to the dev questions of a strategy that writes new texts, if
    they are known.
    """

    strategy: Strategy
    held_out: Replay
    differences: Floats | None = None
    dev: Profile | None = None
    takes: tuple[Choice, ...] = ()


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
        """A strategy that writes new texts."""
        on_dev = dev.written.get(strategy)
        return _Answers(strategy, held_out.written[strategy], None, None if on_dev is None else on_dev.profile)

    def on_held_out(self, strategy: Strategy, found: CrossFitted, own: Replay | None) -> _Answers:
        """A strategy that is cross-fitted, with its `own` answers to the held-out questions, or those of its parts."""
        places = range(self._dev, self._scores.shape[1])
        held_out = own or found.answered.part(places)
        return _Answers(strategy, held_out, found.differences, takes=found.answered.takes)

    def gain(self, answered: _Answers) -> Gain:
        """The gain of a strategy."""
        members = [self.models.index(name) for name in answered.strategy.members if name in self.models]
        passed_over = self._passed_over(answered.strategy)
        if answered.differences is not None:
            choices = [] if passed_over is None else [(self._scores[members], passed_over)]
            # Without the second and the third model there would be no vote; all others each fold chooses anew.
            if answered.strategy.COUNTS and len(members) >= FEWEST_VOTERS:
                least = self._baseline[None] - self._rules.vote_gap / 100
                choices.append((self._scores[members[1:FEWEST_VOTERS]], least))
            return cross_fitted_gain(answered.differences, self._clusters, choices)
        order = list(dict.fromkeys((*members, *range(len(self.models)))))
        own, is_answered = self._answers(answered)
        found = estimate_gain(self._scores[order], own, is_answered, self._clusters, len(members), passed_over)
        return replace(found, points=0.0, observed=0.0) if self.is_equal(answered) else found

    def is_equal(self, answered: _Answers) -> bool:
        """Whether a strategy has the scores of the best single model.

        That is no gain, whatever the estimate expects of patterns that are rare, and the prediction of other sets.
        """
        if answered.differences is not None:
            return not answered.differences.any()
        own, is_answered = self._answers(answered)
        return np.array_equal(own, self._baseline[is_answered])

    def updated(
        self, answered: _Answers, gain: Gain, predicted: Prediction | None, ceiling: OracleGain | None
    ) -> Prediction | None:
        """The expected gain: the prediction, updated by the gain, at most the ceiling; None without a prediction."""
        # Equal scores are no gain, whatever other sets gain.
        if predicted is None or self.is_equal(answered):
            return None
        found = predicted.updated(gain.points, gain.error)
        return found if ceiling is None else replace(found, points=min(found.points, ceiling.points))

    def ceiling(self, members: Sequence[str], places: Sequence[int] | None = None) -> OracleGain | None:
        """What strategies that take an answer of these models can gain at most; None for one model, or unknown ones.

        `places` has the numbers of the questions; None for all.
        """
        rows = [self.models.index(name) for name in members if name in self.models]
        if len(members) < 2 or len(rows) < len(members):
            return None
        if places is None:
            return ceiling_of(self._scores, rows, self._clusters)
        clusters = None if self._clusters is None else [self._clusters[place] for place in places]
        return ceiling_of(self._scores[:, list(places)], rows, clusters)

    def group_ceilings(self) -> tuple[GroupOracleGain, ...]:
        """The ceiling of strategies of all models for each group with enough questions."""
        places: dict[str, list[int]] = {}
        for n, example in enumerate(self.questions.task.examples):
            if example.group is not None:
                places.setdefault(example.group, []).append(n)
        found = {
            name: self.ceiling(self.models, own)
            for name, own in places.items()
            if len(places) > 1 and len(own) >= FEWEST_QUESTIONS
        }
        return tuple(GroupOracleGain(group=name, **dict(each)) for name, each in found.items() if each is not None)

    def groups(self, answered: _Answers) -> tuple[tuple[GroupFigures, ...], tuple[str, ...]]:
        """The gain of a strategy in each group of the questions that it answered, and what their mean hides."""
        if answered.differences is None:
            own, is_answered = self._answers(answered)
            differences, places = own - self._baseline[is_answered], np.flatnonzero(is_answered)
        else:
            differences, places = answered.differences.mean(axis=0), np.arange(self._scores.shape[1])
        groups = [example.group for example in self.questions.task.examples]
        return group_gains(
            differences,
            [groups[place] for place in places],
            None if self._clusters is None else [self._clusters[place] for place in places],
        )

    def predicted(self, strategy: Strategy, voters: Sequence[str] = ()) -> Prediction | None:
        """The gain that all answers of single models predict; None for strategies without a prediction."""
        if isinstance(strategy, Decoded):
            return self._predictor.decoded(strategy.members)
        # Only a learned vote asks other models than the voters; without evidence it gains what their vote gains.
        members = strategy.members if set(strategy.members) <= set(voters) else voters
        if strategy.COUNTS and FEWEST_VOTERS <= len(members) <= MOST_MEMBERS:
            # By the gaps alone: the estimate has the vote's own answers.
            return self._predictor.vote_before(members)
        return self._predictor.routed(strategy.members) if strategy.LEARNS and not strategy.COUNTS else None

    @property
    def _baseline(self) -> Floats:
        """The scores of the best single model."""
        own: Floats = self._scores[self.models.index(self.best)]
        return own

    def _answers(self, answered: _Answers) -> tuple[Floats, NDArray[np.bool_]]:
        """The scores of a strategy that writes new texts, and whether it answered each question."""
        if answered.dev is not None and self._dev:
            own = np.concatenate([scores(answered.dev), scores(answered.held_out.profile)])
            return own, np.ones(self._scores.shape[1], dtype=bool)
        return scores(answered.held_out.profile), np.arange(self._scores.shape[1]) >= self._dev

    def _passed_over(self, strategy: Strategy) -> Floats | None:
        """The dev scores below which the members would not have been chosen; None if nothing was passed over.

        Of a set that decodes together, those of the models that would be members if they had been more accurate, and
        those that just fit by the gap. Of others, those of models that were not asked the held-out questions: among all
        others, each fold chooses.
        """
        members = [self._learned[name] for name in strategy.members if name in self._learned]
        if len(members) < 2:
            return None
        least = min(member.accuracy for member in members)
        taken = strategy.members if isinstance(strategy, Decoded) else self.models
        others = [scores(own) for name, own in self._learned.items() if name not in taken]
        rows = [own for own in others if 100 * own.mean() <= least + TOLERANCE]
        first = min(self._learned.values(), key=rank)
        if isinstance(strategy, Decoded) and within(first.accuracy - least, self._rules.max_gap):
            rows.append(scores(first) - self._rules.max_gap / 100)
        return np.stack(rows) if rows else None


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


def _adjusted(answers: Sequence[_Answers], p_values: Sequence[float], *, has_default: bool) -> list[float | None]:
    """The p-values after correction; see :func:`compare_strategies`. None for single models.

    `has_default` says whether the default strategy has a larger share of alpha.
    """
    adjusted: list[float | None] = [None] * len(answers)
    anew = [n for n, each in enumerate(answers) if each.differences is None]
    others = [n for n, each in enumerate(answers) if n not in anew and not isinstance(each.strategy, Single)]
    default = largest_default([each.strategy for each in answers]) if has_default else None
    first = [n for n in others if answers[n].strategy == default]
    rest: dict[object, list[int]] = {}
    for n in others:
        if n not in first:
            rest.setdefault(_judged(answers[n]), []).append(n)
    family = holm([max(p_values[n] for n in same) for same in rest.values()])
    for n, value in zip(anew, holm([p_values[n] for n in anew]), strict=True):
        adjusted[n] = value
    # The largest p of all intersections of hypotheses: with the default one, each part has its share of alpha.
    own = max((p_values[n] for n in first), default=1.0)
    for same, corrected in zip(rest.values(), family, strict=True):
        shared = min(own / DEFAULT_SHARE, corrected / (1 - DEFAULT_SHARE)) if first else 0.0
        for n in same:
            adjusted[n] = min(1.0, max(corrected, shared))
    for n in first:
        largest = max(family, default=0.0)
        adjusted[n] = min(1.0, max(own, min(own / DEFAULT_SHARE, largest / (1 - DEFAULT_SHARE))))
    return adjusted


def _judged(answered: _Answers) -> object:
    """What judges a strategy. It is one hypothesis with others only if it is the same on all questions, also of dev."""
    differences = None if answered.differences is None else answered.differences.tobytes()
    return answered.held_out.takes, answered.takes, differences


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
        cross_fitted=answered.differences is not None,
        questions=gain.questions,
        answered=gain.answered,
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
