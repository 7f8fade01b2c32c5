"""Strategies, compared on the same held-out questions.

All but the sets that decode together need only the answers that the models gave alone. Weights and routers are learned
from the dev questions, so the held-out ones judge them. A vote learns nothing, so its answers to the dev questions
count, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from advisor.advice.gain import Gain, estimate_gain
from advisor.advice.groups import GroupGain, group_gains
from advisor.advice.predict import MOST_MEMBERS, Prediction, Predictor
from advisor.advice.sequential import Look
from advisor.choose.rules import rank
from advisor.records import ALPHA, TOLERANCE, Cost, Limits, Profile, Shown, within
from advisor.statistics import Floats, Interval, accuracy_interval, check_same_questions, cluster_totals, holm, scores
from advisor.strategies import kinds, largest_usual
from advisor.strategies.single import Single
from advisor.strategies.strategy import FEWEST_VOTERS, AnsweredSplit, Strategy, TrainingData, picked_answers
from advisor.tasks.task import Task, clusters_of
from ensemble.errors import InputError, UniteError

_MOVED = 0.01
"""The two splits are used together unless the models' accuracies differ by more than chance, at this level."""


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """A strategy on the held-out questions.

    Attributes:
        strategy: The strategy.
        profile: Its answers to the held-out questions.
        takes: For each question the number of the member whose response it takes, or of the response for
            ``self_consistency``; empty for a set that decodes together.
        accuracy_ci: The 95% interval of its accuracy on the held-out questions, in points.
        gain: Its gain over the best single model, from all questions.
        predicted: What the dev answers of single models predicted its gain to be; None without a prediction.
        updated: The prediction from all answers of single models, updated by `gain`; None without a prediction.
        best_single_model: The single model that gains are measured against: the best one on all questions.
        best_single_accuracy: Its accuracy on the held-out questions, in points.
        gained: Held-out questions on which it scores more than that model.
        lost: Held-out questions on which it scores less.
        p_adjusted: The one-sided p-value of no gain, after the correction for several strategies; None for a single
            model.
        shown: Whether the test shows that it is better than the best single model (``yes``), or worse (``no``).
        groups: Its gain in each group of the questions that it answered; empty with fewer than two groups.
        calls: Responses that a question takes, on average.
        tokens: Tokens that are generated for a question, on average, by all models; None if a log does not say it.
        seconds: Seconds of a question, on average, if models run one after the other; None if it is not known.
        price: Dollars of 1,000 questions; None if a price or the tokens of the prompts are not known.
    """

    strategy: Strategy
    profile: Profile
    takes: tuple[int, ...]
    accuracy_ci: Interval
    gain: Gain
    predicted: Prediction | None
    updated: Prediction | None
    best_single_model: str
    best_single_accuracy: float
    gained: int
    lost: int
    p_adjusted: float | None
    shown: Shown
    groups: tuple[GroupGain, ...]
    calls: float
    tokens: float | None
    seconds: float | None
    price: float | None

    @property
    def expected_gain(self) -> float:
        """The gain to expect in use, in points: the updated prediction, or without one the measured gain."""
        return self.gain.points if self.updated is None else self.updated.points

    def expected_interval(self, alpha: float) -> Interval:
        """Its interval; the true gain is beyond each end with the probability `alpha`, between 0 and 0.5."""
        return (self.updated or self.gain).interval(alpha)


@dataclass(frozen=True, slots=True)
class Compared:
    """All strategies on the held-out questions.

    Attributes:
        results: The strategies, the largest expected gain first; of equal ones the simplest first.
        moved: Points by which the models are better on the held-out questions than on dev, if that is more than chance;
            then the gains come from the held-out questions alone. None if the two splits agree.
    """

    results: tuple[StrategyResult, ...] = ()
    moved: float | None = None


def compare_strategies(  # noqa: PLR0913  # the answers, and what the tests must be corrected for
    dev: AnsweredSplit,
    held_out: AnsweredSplit,
    voters: Sequence[str],
    *,
    can_vote: bool,
    predictions: Mapping[Strategy, Prediction] = MappingProxyType({}),
    rules: Limits = Limits(),
    tries: int = 1,
    look: Look | None = None,
    alpha: float = ALPHA,
    seed: int = 0,
) -> Compared:
    """Compare all strategies that fit the task with the best single model.

    Two families of tests have alpha each. *Sets that decode together*: Holm's correction. *All others*: the usual
    strategy with all voters is tested first (:data:`advisor.strategies.USUAL`); if it is shown, so are the others that
    pass Holm's correction. Without a vote, and for losses, all others have Holm's correction.

    Args:
        dev: The questions to learn from.
        held_out: The questions of the comparison; all models that answered them count as single models.
        voters: The models of votes, cascades and routers, the most accurate on dev first.
        can_vote: Whether the extracted answers can be counted.
        predictions: Gains that all answers of single models predict for some strategies, in place of those that are
            made here.
        rules: The limits of the gap by which members were chosen.
        tries: Sets that were decoded on dev to choose one of them, at least 1. If gains use these answers, too,
            the p-values of sets are multiplied by it (Bonferroni).
        look: The last look at the held-out questions; all p-values are corrected for the looks before it. None if
            there were none.
        alpha: The accepted probability of a false alarm in each family, between 0 and 0.5.
        seed: The seed of the resampling of graded scores.

    Raises:
        UniteError: The models answered different questions.
    """
    if not held_out.profiles:
        return Compared()
    evidence = _Evidence(dev, held_out, rules)
    first = min((dev.profiles[name] for name in evidence.models), key=rank).model
    draws = {name: len(own) for name, own in held_out.draws.items()}
    given = TrainingData(dev, first, tuple(voters), can_vote, draws)
    learned = [strategy for kind in kinds().values() for strategy in kind.learn(given)]
    # Gains are measured against the model that is the best on all questions, which dev questions may not advise.
    strategies = dict.fromkeys((*learned, Single((evidence.best,)), *held_out.sets))
    answers = [found for each in strategies if (found := _answered(each, dev, held_out)) is not None]
    gains = [evidence.gain(each) for each in answers]
    uses_tries = [tries if each.strategy in dev.sets else 1 for each in answers]
    corrected = float if look is None else look.corrected
    if look is not None:
        gains = [replace(gain, stretch=look.stretch(alpha, gain.freedom)) for gain in gains]
    factors = list(zip(gains, uses_tries, strict=True))
    better = _adjusted(answers, [corrected(min(1.0, gain.p_no_gain * n)) for gain, n in factors], has_gate=True)
    worse = _adjusted(answers, [corrected(min(1.0, gain.p_no_loss * n)) for gain, n in factors], has_gate=False)
    results = []
    for each, gain, p_no_gain, p_no_loss in zip(answers, gains, better, worse, strict=True):
        shown: Shown = "not_yet"
        if p_no_gain is not None and p_no_loss is not None:
            shown = "yes" if p_no_gain <= alpha else "no" if p_no_loss <= alpha else "not_yet"
        groups = evidence.groups(each, alpha)
        updated = evidence.updated(each, gain, predictions.get(each.strategy))
        result = _result(each, gain, p_no_gain, shown, groups, held_out, evidence.best, seed)
        results.append(replace(result, predicted=evidence.predict(each.strategy), updated=updated))
    # Rounded, so that a rounding error does not break a tie.
    results.sort(key=lambda each: (-round(each.expected_gain, 9), each.strategy.sort_key))
    return Compared(tuple(results), evidence.moved)


def expected_gain(strategy: Strategy, dev: AnsweredSplit, held_out: AnsweredSplit, rules: Limits = Limits()) -> float:
    """The gain to expect of a strategy in use, in points, exactly as :func:`compare_strategies` reports it.

    Args:
        strategy: The strategy; a set that decodes together is one of those of `held_out`.
        dev: The questions to learn from.
        held_out: The questions of the comparison.
        rules: The limits by which members were chosen.

    Raises:
        UniteError: The models answered different questions, or a member's answers are not there.
    """
    answered = _answered(strategy, dev, held_out)
    if answered is None:
        raise UniteError(f"{strategy}: its answers to the held-out questions are not known")
    evidence = _Evidence(dev, held_out, rules)
    gain = evidence.gain(answered)
    return (evidence.updated(answered, gain) or gain).points


class _Answered(NamedTuple):
    """A strategy's answers before they are compared; see :class:`StrategyResult`.

    ``asked`` says how often a question asks each member, on average; ``dev`` has its answers to the dev questions,
    unless it learned from them or was not run on them.
    """

    strategy: Strategy
    profile: Profile
    takes: tuple[int, ...]
    asked: Mapping[str, float]
    dev: Profile | None = None


class _Evidence:
    """The scores of the single models on the dev and the held-out questions together.

    Attributes:
        models: The models that answered both splits, in the order of the held-out profiles.
        best: The most accurate of them on all questions.
        moved: See :class:`Compared`.
    """

    def __init__(self, dev: AnsweredSplit, held_out: AnsweredSplit, rules: Limits) -> None:
        self._rules = rules
        self.models = [name for name in held_out.profiles if name in dev.profiles]
        splits = [[split.profiles[name] for name in self.models] for split in (dev, held_out)]
        for profiles in splits:
            for profile in profiles[1:]:
                check_same_questions(profiles[0], profile)
        learned, judged = (np.stack([scores(profile) for profile in profiles]) for profiles in splits)
        self.moved = _moved((learned, dev.task), (judged, held_out.task))
        self._tasks: tuple[Task, ...] = (dev.task, held_out.task)
        self._learned = dev.profiles
        if self.moved is not None:
            learned, self._tasks, self._learned = learned[:, :0], (held_out.task,), {}
            splits = splits[1:]
        self._from_dev = Predictor([dev.profiles[name] for name in self.models])
        self._from_all = Predictor(
            [Profile(name, sum((split[n].answers for split in splits), ())) for n, name in enumerate(self.models)]
        )
        self._scores: Floats = np.concatenate([learned, judged], axis=1)
        self._dev = learned.shape[1]
        self._clusters = clusters_of(*self._tasks)
        # The first of equally good ones.
        self.best = self.models[int(self._scores.mean(axis=1).round(9).argmax())]

    def gain(self, answered: _Answered) -> Gain:
        """The gain of a strategy."""
        members = [name for name in answered.strategy.members if name in self.models]
        order = [self.models.index(name) for name in dict.fromkeys((*members, *self.models))]
        own, is_answered = self._answers(answered)
        found = estimate_gain(
            self._scores[order], own, is_answered, self._clusters, len(members), self._passed_over(answered.strategy)
        )
        if self.is_equal(answered):
            return replace(found, points=0.0, observed=0.0)
        # A single model has the same luck as the one that it is compared with.
        return replace(found, points=found.observed) if answered.strategy.IS_SINGLE else found

    def is_equal(self, answered: _Answered) -> bool:
        """Whether a strategy has the scores of the best single model.

        That is no gain, whatever the estimate expects of patterns that are rare, and the prediction of other sets.
        """
        own, is_answered = self._answers(answered)
        return np.array_equal(own, self._baseline[is_answered])

    def updated(self, answered: _Answered, gain: Gain, prior: Prediction | None = None) -> Prediction | None:
        """The expected gain: the prediction from all answers of single models, updated by the gain; None without one.

        `prior` takes the place of that prediction.
        """
        prior = prior or self.prior(answered.strategy)
        # Equal scores are no gain, whatever other sets gain.
        if prior is None or self.is_equal(answered):
            return None
        return prior.updated(gain.points, gain.error)

    def groups(self, answered: _Answered, alpha: float) -> tuple[GroupGain, ...]:
        """The gain of a strategy in each group of the questions that it answered."""
        own, is_answered = self._answers(answered)
        groups = [example.group for task in self._tasks for example in task.examples]
        places = np.flatnonzero(is_answered)
        return group_gains(
            own - self._baseline[is_answered],
            [groups[place] for place in places],
            None if self._clusters is None else [self._clusters[place] for place in places],
            alpha,
        )

    def predict(self, strategy: Strategy) -> Prediction | None:
        """The gain that the dev answers of single models predict; None for strategies without a prediction."""
        if not strategy.ASKS:
            return self._from_dev.decoded(strategy.members)
        return self._from_dev.vote(strategy.members) if _is_predicted(strategy) else None

    def prior(self, strategy: Strategy) -> Prediction | None:
        """The gain that all answers of single models predict, for an estimate from the same questions."""
        if not strategy.ASKS:
            return self._from_all.decoded(strategy.members)
        # By the gaps alone: the estimate has the vote's own answers.
        return self._from_all.vote_before(strategy.members) if _is_predicted(strategy) else None

    @property
    def _baseline(self) -> Floats:
        """The scores of the best single model."""
        own: Floats = self._scores[self.models.index(self.best)]
        return own

    def _answers(self, answered: _Answered) -> tuple[Floats, NDArray[np.bool_]]:
        """The scores of a strategy, and whether it answered each question."""
        if answered.dev is not None and self._dev:
            own = np.concatenate([scores(answered.dev), scores(answered.profile)])
            return own, np.ones(self._scores.shape[1], dtype=bool)
        return scores(answered.profile), np.arange(self._scores.shape[1]) >= self._dev

    def _passed_over(self, strategy: Strategy) -> Floats | None:
        """The dev scores below which the members would not have been chosen; None if nothing was passed over.

        Those of the models that would be members if they had been more accurate, and those that just fit by the gap.
        """
        members = [self._learned[name] for name in strategy.members if name in self._learned]
        if len(members) < 2:
            return None
        least = min(member.accuracy for member in members)
        others = [scores(own) for name, own in self._learned.items() if name not in strategy.members]
        rows = [own for own in others if 100 * own.mean() <= least + TOLERANCE]
        first = min(self._learned.values(), key=rank)
        limit = self._rules.vote_gap if strategy.ASKS else self._rules.max_gap
        if within(first.accuracy - least, limit):
            rows.append(scores(first) - limit / 100)
        return np.stack(rows) if rows else None


def _is_predicted(strategy: Strategy) -> bool:
    """Whether it is a vote of so many models as the prediction is fitted for."""
    return strategy.COUNTS and FEWEST_VOTERS <= len(strategy.members) <= MOST_MEMBERS


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


def _adjusted(answers: Sequence[_Answered], p_values: Sequence[float], *, has_gate: bool) -> list[float | None]:
    """The p-values after correction; see :func:`compare_strategies`. None for single models.

    `has_gate` says whether the usual strategy is tested first.
    """
    adjusted: list[float | None] = [None] * len(answers)
    sets = [n for n, each in enumerate(answers) if not each.strategy.ASKS]
    others = [n for n, each in enumerate(answers) if each.strategy.ASKS and not each.strategy.IS_SINGLE]
    gate = largest_usual([each.strategy for each in answers]) if has_gate else None
    # Vote and cascade of the same models give the same answers, so they are one hypothesis.
    first = [n for n in others if gate is not None and answers[n].strategy.hypothesis == gate.hypothesis]
    rest = [n for n in others if n not in first]
    distinct = {answers[n].takes: n for n in rest}
    family = dict(zip(distinct, holm([p_values[n] for n in distinct.values()]), strict=True))
    for n, value in zip(sets, holm([p_values[n] for n in sets]), strict=True):
        adjusted[n] = value
    least = p_values[first[0]] if first else 0.0
    for n in first:
        adjusted[n] = least
    for n in rest:
        adjusted[n] = max(least, family[answers[n].takes])
    return adjusted


def _result(
    answered: _Answered,
    gain: Gain,
    p_adjusted: float | None,
    shown: Shown,
    groups: tuple[GroupGain, ...],
    held_out: AnsweredSplit,
    best: str,
    seed: int,
) -> StrategyResult:
    strategy, profile, takes, asked, _ = answered
    n = len(profile.answers)
    differences = scores(profile) - scores(held_out.profiles[best])
    costs = {name: held_out.profiles[name].cost for name in asked}
    if profile.cost.tokens:
        # Decoded together: all members write all tokens, in the time of the whole set.
        costs = {name: replace(cost, tokens=profile.cost.tokens, seconds=0.0) for name, cost in costs.items()}
    prices = {
        name: price.of(costs[name].prompt_tokens, costs[name].tokens)
        for name in asked
        if (price := held_out.prices.get(name)) is not None
    }
    known = {name: price for name, price in prices.items() if price is not None}
    seconds = profile.cost.seconds / n if profile.cost.tokens else _mean_of(asked, costs, n, "seconds")
    return StrategyResult(
        strategy=strategy,
        profile=profile,
        takes=takes,
        accuracy_ci=accuracy_interval(profile, seed=seed),
        gain=gain,
        # Replaced by the caller, who knows the predictions.
        predicted=None,
        updated=None,
        best_single_model=best,
        best_single_accuracy=held_out.profiles[best].accuracy,
        gained=int((differences > 0).sum()),
        lost=int((differences < 0).sum()),
        p_adjusted=p_adjusted,
        shown=shown,
        groups=groups,
        calls=sum(asked.values()),
        tokens=_mean_of(asked, costs, n, "tokens"),
        seconds=seconds,
        price=1000 / n * sum(asked[name] * known[name] for name in asked) if len(known) == len(asked) else None,
    )


def _mean_of(asked: Mapping[str, float], costs: Mapping[str, Cost], n: int, figure: str) -> float | None:
    """The mean of a figure over the questions, for all members that are asked; None if a member lacks it."""
    totals = {name: getattr(costs[name], figure) for name in asked}
    # A sum of 0 means that the log does not say it: no response takes no time.
    return sum(asked[name] * total for name, total in totals.items()) / n if all(totals.values()) else None


def _answered(strategy: Strategy, dev: AnsweredSplit, held_out: AnsweredSplit) -> _Answered | None:
    """A strategy's answers; None if it cannot be applied, for example because a log lacks the questions' texts."""
    if not strategy.ASKS:
        together = dict.fromkeys(strategy.members, 1.0)
        own = held_out.sets.get(strategy)
        return None if own is None else _Answered(strategy, own, (), together, dev.sets.get(strategy))
    responses = held_out.responses(strategy)
    if responses is None:
        return None
    try:
        picks = tuple(strategy.picks(responses, held_out.task.examples))
    except InputError:
        return None
    on_dev = None if strategy.LEARNS else dev.responses(strategy)
    return _Answered(
        strategy,
        picked_answers(strategy.name, responses, picks),
        picks,
        dict(zip(strategy.members, strategy.calls(responses, picks), strict=True)),
        None if on_dev is None else strategy.apply(on_dev, dev.task.examples),
    )
