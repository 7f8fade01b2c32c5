"""Strategies: what could run in production, compared on the same held-out questions.

A strategy is one model, a set that decodes together, a vote or a cascade, a router, or several responses of one model.
All but the set that decodes need only the answers that the models gave alone. Votes, weights and routers are made from
the dev questions; the held-out ones judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from advisor.choose.rules import rank
from advisor.pool.prices import Price
from advisor.records import LEVEL, TOLERANCE, Cost, Profile, Rules, Shown, gap
from advisor.statistics import Comparison, compare, holm
from advisor.tasks.task import Task
from advisor.verify.responses import dev_scores
from advisor.verify.votes import cascade_calls, codes_of, vote, vote_weights
from ensemble.errors import InputError
from ensemble.methods import get_module, make_options

FEWEST_VOTERS = 3
"""With two voters the answer is always the first one's."""
_PRIOR = 10
"""Questions of the whole task that count for a model in each group, so that few questions of a group decide nothing."""
ASKING = ("single", "router", "group_router", "self_consistency", "cascade", "vote", "weighted_vote")
"""The strategies that ask models one by one, from the simplest to the most complex: of equally good ones the first is
recommended. All others decode together."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to answer questions in production.

    Attributes:
        name: ``single``, ``vote``, ``weighted_vote``, ``cascade``, ``router``, ``group_router``, ``self_consistency``,
            or the name of a token-level or span-level method.
        members: The models, the most accurate on dev first; a cascade asks them in this order.
        weights: The weight of each member's vote; empty where all have the same.
        routes: For a router by groups, the member of each group; other groups go to the first member.
        draws: Responses of the one member, for ``self_consistency``.
    """

    name: str
    members: tuple[str, ...]
    weights: tuple[float, ...] = ()
    routes: tuple[tuple[str, str], ...] = ()
    draws: int = 1

    @property
    def sort_key(self) -> tuple[int, int]:
        """Its place among equally good strategies: the simpler one first, then the one with fewer members."""
        place = ASKING.index(self.name) if self.name in ASKING else len(ASKING)
        return place, len(self.members)


@dataclass(frozen=True, slots=True)
class AnsweredSplit:
    """The questions of a split, the models' answers to them by name, and what the models' tokens cost, if known."""

    task: Task
    profiles: Mapping[str, Profile]
    prices: Mapping[str, Price] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """A strategy on the held-out questions.

    Attributes:
        strategy: The strategy.
        profile: Its answers.
        takes: For each question the number of the member whose response it takes, or of the response for
            ``self_consistency``; empty for a set that decodes together.
        comparison: Its answers against the best single model on these questions.
        p_adjusted: The p-value after Holm's correction for all strategies but single models; None for a single model.
        calls: Responses that a question takes, on average.
        tokens: Tokens that are generated for a question, on average, by all models; None if a log does not say it.
        seconds: Seconds of a question, on average, if models run one after the other; None if it is not known.
        price: Dollars of 1,000 questions; None if a price or the tokens of the prompts are not known.
    """

    strategy: Strategy
    profile: Profile
    takes: tuple[int, ...]
    comparison: Comparison
    p_adjusted: float | None
    calls: float
    tokens: float | None
    seconds: float | None
    price: float | None

    def shown(self, level: float = LEVEL) -> Shown:
        """Whether the test shows that it is better than the best single model (``yes``), or worse (``no``)."""
        if self.p_adjusted is None or self.p_adjusted > level or abs(self.comparison.delta) < TOLERANCE:
            return "not_yet"
        return "yes" if self.comparison.delta > 0 else "no"


def fitting_voters(profiles: Sequence[Profile], rules: Rules) -> tuple[str, ...]:
    """The models of votes and cascades: the most accurate one and those close to it. Lengths do not matter.

    Args:
        profiles: The candidates' answers to the dev questions.
        rules: ``vote_gap`` is the limit of the gap, in points; ``max_calls`` that of the number of models.

    Returns:
        At most ``max_calls`` names, the most accurate first; ties go to the shorter response, then by name.
    """
    ranked = sorted(profiles, key=rank)
    close = [each for each in ranked if gap(each.accuracy, ranked[0].accuracy) <= rules.vote_gap + TOLERANCE]
    return tuple(profile.model for profile in close[: rules.max_calls])


def compare_strategies(
    dev: AnsweredSplit,
    held_out: AnsweredSplit,
    voters: Sequence[str],
    *,
    can_vote: bool,
    together: tuple[Strategy, Profile] | None = None,
    draws: Mapping[str, Sequence[Profile]] | None = None,
    seed: int = 0,
) -> tuple[StrategyResult, ...]:
    """Compare all strategies that fit the task with the best single model on the held-out questions.

    Args:
        dev: The questions to learn from.
        held_out: The questions of the comparison; all models that answered them count as single models.
        voters: The models of votes, cascades and routers, the most accurate on dev first.
        can_vote: Whether the extracted answers can be counted.
        together: A set that decodes together, and its answers to the held-out questions.
        draws: Several responses of a model to each held-out question, by name.
        seed: The seed of the resampling of graded scores.

    Returns:
        The best first; of equally good ones the simplest first.

    Raises:
        UniteError: The models answered different questions.
    """
    learned, alone = dev.profiles, held_out.profiles
    if not alone:
        return ()
    first = min((learned[name] for name in alone if name in learned), key=rank).model
    # The first is what dev questions advise; gains are measured against the second.
    best = max((first, *alone), key=lambda name: round(alone[name].accuracy, 9))
    answers: list[_Answered] = [_single(name, alone) for name in dict.fromkeys((first, best))]
    if together is not None:
        strategy, profile = together
        answers.append(_Answered(strategy, profile, (), dict.fromkeys(strategy.members, 1.0)))
    if can_vote and len(voters) >= FEWEST_VOTERS:
        answers.extend(_votes(learned, alone, voters))
    if len(voters) > 1:
        answers.extend(_routers(dev, held_out, voters))
    if can_vote and draws and len(draws.get(first, ())) >= FEWEST_VOTERS:
        answers.append(_self_consistency(first, draws[first]))
    # The best one on dev first: of equally accurate models it is the one that others are compared with.
    singles = [alone[first], *(profile for name, profile in alone.items() if name != first)]
    comparisons = [compare(each.profile, singles, seed) for each in answers]
    # Single models are the baseline. As hypotheses they would only make the correction stricter.
    tested = [each.strategy.name != "single" for each in answers]
    p_values = [comparison.p_value for comparison, is_tested in zip(comparisons, tested, strict=True) if is_tested]
    adjusted = iter(holm(p_values))
    results = [
        _result(each, comparison, next(adjusted) if is_tested else None, held_out)
        for each, comparison, is_tested in zip(answers, comparisons, tested, strict=True)
    ]
    # Rounded, so that a rounding error does not break a tie.
    return tuple(sorted(results, key=lambda each: (-round(each.comparison.accuracy, 9), each.strategy.sort_key)))


class _Answered(NamedTuple):
    """A strategy's answers before they are compared; see :class:`StrategyResult`.

    ``asked`` says how often a question asks each member, on average.
    """

    strategy: Strategy
    profile: Profile
    takes: tuple[int, ...]
    asked: Mapping[str, float]


def _result(
    answered: _Answered, comparison: Comparison, p_adjusted: float | None, held_out: AnsweredSplit
) -> StrategyResult:
    strategy, profile, takes, asked = answered
    n = comparison.n
    costs = {name: held_out.profiles[name].cost for name in asked}
    if profile.cost.tokens:
        # Decoded together: all members write all tokens, in the time of the whole set.
        costs = {name: replace(cost, tokens=profile.cost.tokens, seconds=0.0) for name, cost in costs.items()}
    prices = {name: price.of(costs[name]) for name in asked if (price := held_out.prices.get(name)) is not None}
    known = {name: price for name, price in prices.items() if price is not None}
    seconds = profile.cost.seconds / n if profile.cost.tokens else _mean_of(asked, costs, n, "seconds")
    return StrategyResult(
        strategy=strategy,
        profile=profile,
        takes=takes,
        comparison=comparison,
        p_adjusted=p_adjusted,
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


def _single(name: str, alone: Mapping[str, Profile]) -> _Answered:
    answers = alone[name].answers
    return _Answered(Strategy("single", (name,)), Profile("single", answers), (0,) * len(answers), {name: 1.0})


def _votes(learned: Mapping[str, Profile], alone: Mapping[str, Profile], voters: Sequence[str]) -> Iterator[_Answered]:
    # The smallest vote, and that of all who fit: between them lie gain and cost.
    for size in sorted({FEWEST_VOTERS, len(voters)}):
        names = tuple(voters[:size])
        members = [alone[name] for name in names]
        codes = codes_of(members)
        shares = (np.arange(size)[:, None] < cascade_calls(codes)).mean(axis=1)
        winners = vote(codes)
        yield _picked(Strategy("vote", names), members, winners, np.ones(size))
        yield _picked(Strategy("cascade", names), members, winners, shares)
    # The loop ended with all voters, so `members` are all of them.
    weights = vote_weights([learned[name] for name in voters])
    strategy = Strategy("weighted_vote", tuple(voters), weights=weights)
    yield _picked(strategy, members, vote(codes, weights), np.ones(size))


def _routers(dev: AnsweredSplit, held_out: AnsweredSplit, voters: Sequence[str]) -> Iterator[_Answered]:
    names, members = tuple(voters), [held_out.profiles[name] for name in voters]
    prompts, scores = dev_scores(dev.task, [dev.profiles[name] for name in voters])
    questions = [example.prompt for example in held_out.task.examples]
    # Logs may lack the questions.
    if all(question.strip() for question in (*prompts, *questions)):
        try:
            router = get_module("router").make(prompts, scores, make_options("router", {}))
        except InputError:
            pass  # too few dev questions to learn from
        else:
            yield _routed(Strategy("router", names), members, np.array(router.choose_all(questions)))
    routes = _routes([example.group for example in dev.task.examples], np.array(scores), names)
    # With one group, the router would be a single model.
    if len(routes) > 1:
        member_of = {group: names.index(name) for group, name in routes}
        # A group without dev questions goes to the most accurate member.
        picks = np.array([member_of.get(example.group or "", 0) for example in held_out.task.examples])
        yield _routed(Strategy("group_router", names, routes=routes), members, picks)


def _routes(groups: Sequence[str | None], scores: NDArray[Any], names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The member with the best scores in each group, smoothed by its scores in all groups."""
    overall = scores.mean(axis=0)
    routes = []
    for group in sorted({group for group in groups if group is not None}):
        own = scores[[each == group for each in groups]]
        smoothed = (own.sum(axis=0) + _PRIOR * overall) / (len(own) + _PRIOR)
        # Rounded, so that the more accurate member wins a tie.
        routes.append((group, names[int(smoothed.round(9).argmax())]))
    return tuple(routes)


def _routed(strategy: Strategy, members: Sequence[Profile], picks: NDArray[Any]) -> _Answered:
    return _picked(strategy, members, picks, np.bincount(picks, minlength=len(members)) / len(picks))


def _self_consistency(name: str, draws: Sequence[Profile]) -> _Answered:
    strategy = Strategy("self_consistency", (name,), draws=len(draws))
    return _picked(strategy, draws, vote(codes_of(draws)), np.array([float(len(draws))]))


def _picked(strategy: Strategy, members: Sequence[Profile], picks: NDArray[Any], shares: NDArray[Any]) -> _Answered:
    """A strategy that takes one of several responses; `shares` says how often a question asks each member."""
    takes = tuple(picks.tolist())
    answers = tuple(members[pick].answers[n] for n, pick in enumerate(takes))
    asked = dict(zip(strategy.members, shares.tolist(), strict=True))
    return _Answered(strategy, Profile(strategy.name, answers), takes, asked)
