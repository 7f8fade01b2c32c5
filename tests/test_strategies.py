"""Strategies: which are compared, with which figures, in which order, and which one is recommended."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import Place

from advisor.advice import comparison
from advisor.advice.comparison import Compared, StrategyResult, fitting_voters
from advisor.advice.gain import Gain
from advisor.advice.recommendation import recommend
from advisor.jobs.figures import recommended_of, samples_of
from advisor.records import Answer, Cost, Limits, Profile
from advisor.run.folder import Run
from advisor.run.result import AdviceSection, GroupFigures, RecommendedStrategy, Result, StrategyFigures
from advisor.statistics import holm, scores
from advisor.strategies.group_router import GroupRouter
from advisor.strategies.learned_vote import LearnedVote
from advisor.strategies.schema import strategy_json
from advisor.strategies.self_consistency import SelfConsistency
from advisor.strategies.strategy import AnsweredSplit, Decoded, Replay, Single, Strategy
from advisor.strategies.vote import Vote
from advisor.tasks.task import Example, Task
from ensemble.common.schema import written
from ensemble.errors import InputError, UniteError

pytest_plugins = ["pools"]

N = 40
TOPICS = ("What is the sum of {0} and {0}?", "How old is Ann after {0} years?")


def task(split: str, n: int = N, groups: str = "") -> Task:
    """Two kinds of questions in turn; a letter of ``groups`` is the group of each question, repeated."""
    start = 0 if split == "dev" else 1000
    examples = tuple(
        Example(
            str(start + number),
            TOPICS[number % 2].format(number),
            TOPICS[number % 2].format(number),
            "1",
            group=groups[number % len(groups)] if groups else None,
        )
        for number in range(n)
    )
    return Task("sums", "number", split, examples, (), 1, 0, 0, None, (), "")


def profile(model: str, of: Task, answers: str, tokens: int = 10, seconds: float = 2.0) -> Profile:
    """Answers to a task, a character each, repeated over all questions: 1 is right, - is none."""
    letters = (answers * len(of.examples))[: len(of.examples)]
    given = (None if letter == "-" else letter for letter in letters)
    return Profile(
        model,
        tuple(
            Answer(example.id, "text", answer, float(answer == "1"), "eos", tokens=tokens, seconds=seconds)
            for example, answer in zip(of.examples, given, strict=True)
        ),
        Cost(2.0 * len(of.examples), 10 * len(of.examples)),
    )


def together(members: Sequence[str], of: Task, answers: str) -> Replay:
    """Answers of models that decode together."""
    made = profile("unite", of, answers)
    return Replay(made, calls=[(members, made, 0)])


def splits_of(dev: dict[str, str], held_out: dict[str, str], groups: str = "") -> tuple[AnsweredSplit, AnsweredSplit]:
    """The dev and the held-out questions with the answers of models."""
    learned, judged = task("dev", groups=groups), task("held_out", groups=groups)
    return (
        AnsweredSplit(learned, {name: profile(name, learned, answers) for name, answers in dev.items()}),
        AnsweredSplit(judged, {name: profile(name, judged, answers) for name, answers in held_out.items()}),
    )


def compare_strategies(*splits: AnsweredSplit, learned: bool = False, **options: Any) -> Compared:
    """Compare strategies, without learned votes if these are not wanted: they take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        if not learned:
            patch.setattr(LearnedVote, "learn", lambda _: iter(()))
        return comparison.compare_strategies(*splits, **options)


def compared(dev: dict[str, str], held_out: dict[str, str], **options: object) -> tuple[StrategyResult, ...]:
    """Compare models with these answers to the dev and the held-out questions; all of them vote, and are routed."""
    splits = splits_of(dev, held_out, str(options.pop("groups", "")))
    if sets := options.pop("together", None):
        splits[1].written.update(sets)  # type: ignore[attr-defined]
    for model, drawn in cast("dict[str, list[str]]", options.pop("draws", {})).items():
        for split in splits:
            split.draws[model] = [profile(model, split.task, each) for each in drawn]  # type: ignore[index]
    options = {"can_vote": True, "rules": ALL, **options}
    return compare_strategies(*splits, **options).results


ALL = Limits(vote_gap=100, max_voters=10)


def by_name(results: Sequence[StrategyResult]) -> dict[str, StrategyResult]:
    return {f"{each.strategy.name} {'+'.join(each.strategy.members)}": each for each in results}


RIGHTS = {"a": "11122", "b": "12311", "c": "31141"}
"""Each is right on three of five questions, and at least two of them agree on all but the fourth."""
UNEQUAL = {"a": "11112", "b": "12114", "c": "31151"}
"""a is better than b and c, and each is right on questions where another one is wrong."""
BY_TOPIC = {"a": "12", "b": "31", "c": "41"}
"""a is right on the first kind of questions, b and c on the second."""


# --- Which are compared ---


def test_three_models_have_a_vote_and_a_vote_with_weights() -> None:
    found = by_name(compared(UNEQUAL, UNEQUAL, learned=True))
    assert set(found) == {"single a", "vote a+b+c", "learned_vote c+a+b"}


def test_more_models_have_the_smallest_vote_and_that_of_all() -> None:
    answers = {**RIGHTS, "d": "22111", "e": "11221"}
    names = set(by_name(compared(answers, answers)))
    assert {"vote a+b+c", "vote a+b+c+d+e"} <= names


def test_two_models_have_no_vote_and_one_has_only_itself() -> None:
    assert set(by_name(compared({"a": "12", "b": "21"}, {"a": "12", "b": "21"}))) == {"single a"}
    assert set(by_name(compared({"a": "12"}, {"a": "12"}))) == {"single a"}


def test_answers_that_cannot_be_counted_have_no_vote() -> None:
    names = {each.strategy.name for each in compared(BY_TOPIC, BY_TOPIC, can_vote=False)}
    assert names == {"single"}


def test_groups_of_questions_have_a_router_that_knows_the_best_model_of_each() -> None:
    # a is right on group x, b on group y.
    results = compared({"a": "12", "b": "21"}, {"a": "12", "b": "21"}, groups="xy")
    router = by_name(results)["group_router a+b"]
    assert isinstance(router.strategy, GroupRouter)
    assert router.strategy.routes == (("x", "a"), ("y", "b"))
    assert "b answers y; a answers all other groups, and prompts that come without --group NAME" in (
        router.strategy.describe()
    )
    assert router.replay.profile.accuracy == 100
    assert costs_of(router) == (1, 10, 2)


def test_a_router_by_groups_has_only_the_models_that_it_uses() -> None:
    answers = {"a": "12", "b": "12", "c": "21"}
    assert "group_router a+c" in by_name(compared(answers, answers, groups="xy"))


def test_a_router_that_uses_one_model_only_is_not_offered() -> None:
    # a is the best on both groups.
    answers = {"a": "1", "b": "12"}
    assert {each.strategy.name for each in compared(answers, answers, groups="xy")} == {"single"}


def test_several_responses_of_the_best_model_are_a_strategy() -> None:
    draws = {"a": ["112", "121", "211"]}
    found = by_name(compared({"a": "112", "b": "2"}, {"a": "112", "b": "2"}, draws=draws))
    own = found["self_consistency a"]
    assert (own.strategy.responses_per_member, own.replay.profile.accuracy, costs_of(own)[0]) == (3, 100, 3)


def test_members_of_different_questions_are_refused() -> None:
    dev, held_out = task("dev"), task("held_out")
    learned = {name: profile(name, dev, "1") for name in "ab"}
    mixed = {"a": profile("a", held_out, "1"), "b": profile("b", dev, "1")}
    with pytest.raises(UniteError, match="different questions"):
        compare_strategies(AnsweredSplit(dev, learned), AnsweredSplit(held_out, mixed), can_vote=True)


# --- Their figures ---


ANSWERS = st.lists(st.text("12-", min_size=7, max_size=7), min_size=3, max_size=4)


def test_all_are_compared_with_the_best_model_on_all_questions() -> None:
    results = compared({"a": "12", "b": "1", "c": "12"}, {"a": "1", "b": "1112", "c": "12"})
    assert {each.figures.best_single_model for each in results} == {"b"}
    assert {each.figures.best_single_accuracy for each in results} == {75}
    baseline = by_name(results)["single b"]
    assert (baseline.gain.points, baseline.shown, baseline.figures.probability) == (0, "not_yet", None)


def test_all_answers_to_the_dev_questions_count_those_of_learned_strategies_by_parts() -> None:
    results = by_name(compared(UNEQUAL, UNEQUAL, learned=True))
    questions = {each.strategy.name: each.gain.questions for each in results.values()}
    assert questions["vote"] == questions["learned_vote"] == 2 * N


def test_splits_that_differ_are_not_used_together() -> None:
    found = compare_strategies(*splits_of(RIGHTS, dict.fromkeys("abc", "11111111112")), can_vote=True)
    assert found.moved == pytest.approx(100 * (37 / 40 - 0.6), abs=1)
    assert {each.gain.questions for each in found.results} == {N}
    assert compare_strategies(*splits_of(RIGHTS, RIGHTS), can_vote=True).moved is None


def test_the_learned_vote_is_tested_alone_and_the_other_votes_and_routers_by_holm() -> None:
    own = {"a": "11112", "b": "12114", "c": "31151", "d": "61711"}
    results = [each for each in compared(own, own, learned=True, groups="xyz") if each.strategy.name != "single"]
    (advised,) = (each for each in results if each.strategy.name == "learned_vote")
    assert advised.figures.p_adjusted == advised.gain.p_no_gain
    others = [each for each in results if each is not advised]
    assert len({each.replay.takes for each in others}) == len(others) > 1
    adjusted = [each.figures.p_adjusted for each in others]
    assert adjusted == pytest.approx(holm([each.gain.p_no_gain for each in others]))


def test_a_gain_that_nobody_would_doubt_is_shown_although_the_vote_of_all_voters_gains_nothing() -> None:
    # In each topic one model is right, and outvoted.
    answers = {"a": "12", "b": "21", "c": "22"}
    results = by_name(compared(answers, answers, groups="xy"))
    router, vote = results["group_router a+b"], results["vote a+b+c"]
    assert router.gain.p_no_gain < 1e-4
    assert vote.gain.p_no_gain > 0.2
    assert router.shown == "yes" != vote.shown


def test_a_loss_is_shown_although_the_vote_gains() -> None:
    answers = {"a": "112", "b": "121", "c": "211"}
    # The single responses of the first model are good, and its draws are all wrong.
    draws = {"a": ["2"] * 3}
    found = by_name(compared(answers, answers, draws=draws))
    assert (found["self_consistency a"].shown, found["vote a+b+c"].shown) == ("no", "yes")


def test_sets_that_decode_together_are_corrected_by_themselves() -> None:
    dev, held_out = splits_of({"a": "112", "b": "121"}, {"a": "112", "b": "121"})
    sets = {Decoded(names, "unite"): together(names, held_out.task, "1") for names in (("a", "b"), ("b", "a"))}
    judged = dataclasses.replace(held_out, written=sets)
    found = compare_strategies(dev, judged, can_vote=True).results
    own = [each for each in found if each.strategy in sets]
    assert [each.figures.p_adjusted for each in own] == holm([each.gain.p_no_gain for each in own])


def costs_of(result: StrategyResult) -> tuple[float, ...]:
    """Calls, tokens and seconds of a question."""
    row = result.figures
    return row.calls_per_question or 0.0, row.tokens_per_question or 0.0, row.seconds_per_question or 0.0


def test_what_a_vote_takes_is_counted_question_by_question() -> None:
    answers = {"a": "1112", "b": "1231", "c": "3241"}
    dev, held_out = splits_of(answers, answers)
    # Where the first two disagree, and the third is asked, all responses are long.
    first, second = (held_out.profiles[name].answers for name in "ab")
    lengths = [5 if a.extracted == b.extracted else 50 for a, b in zip(first, second, strict=True)]
    longer = {
        name: dataclasses.replace(
            own,
            answers=tuple(
                dataclasses.replace(a, tokens=n, prompt_tokens=2 * n, seconds=n / 10, dollars=float(n))
                for a, n in zip(own.answers, lengths, strict=True)
            ),
        )
        for name, own in held_out.profiles.items()
    }
    held_out = dataclasses.replace(held_out, profiles=longer)
    found = by_name(compare_strategies(dev, held_out, can_vote=True, rules=ALL).results)
    calls = [2 if length == 5 else 3 for length in lengths]
    voted = found["vote a+b+c"]
    wanted = sum(count * length for count, length in zip(calls, lengths, strict=True)) / N
    assert costs_of(voted) == pytest.approx((sum(calls) / N, wanted, wanted / 10))
    assert voted.figures.price_per_1000 == pytest.approx(1000 * wanted)


def test_a_cost_that_a_log_does_not_say_is_unknown() -> None:
    dev, held_out = task("dev"), task("held_out")
    learned = {name: profile(name, dev, answers) for name, answers in RIGHTS.items()}
    alone = {name: profile(name, held_out, answers, 0, 0.0) for name, answers in RIGHTS.items()}
    splits = AnsweredSplit(dev, learned), AnsweredSplit(held_out, alone)
    found = compare_strategies(*splits, can_vote=True).results
    assert all(each.figures.tokens_per_question is each.figures.seconds_per_question is None for each in found)


# --- Their order, and the recommendation ---


def test_the_largest_expected_gain_comes_first_and_of_equals_the_simplest() -> None:
    answers = {"a": "1", "b": "1112", "c": "1113"}
    assert [each.strategy.name for each in compared(answers, answers)] == ["single", "vote"]
    gains = [each.figures.expected_gain for each in compared(RIGHTS, RIGHTS)]
    assert gains == sorted(gains, reverse=True)


def test_the_set_that_decodes_together_is_compared_as_the_others_and_comes_last_among_equals() -> None:
    sets = {Decoded(("a", "b"), "unite"): together(("a", "b"), task("held_out"), "1")}
    results = compared({"a": "1", "b": "12"}, {"a": "1", "b": "12"}, together=sets)
    assert [each.strategy.name for each in results] == ["single", "unite"]
    unite = by_name(results)["unite a+b"]
    assert (unite.gain.points, unite.replay.takes, unite.figures.calls_per_question) == (0, (), 2)
    # Both members compute each of the ten tokens.
    assert (unite.figures.tokens_per_question, unite.figures.seconds_per_question) == (20, 2)
    assert recommended(results).key == Single(("a",))  # type: ignore[union-attr]


def result_of_strategy(strategy: Strategy, points: float, calls: float = 1.0) -> StrategyResult:
    """A strategy with this expected gain."""
    answers = profile(strategy.name, task("held_out"), "1")
    gain = Gain(points, 1.0, 100.0, 2000)
    row = {"n": N, "accuracy": answers.accuracy, "best_single_model": "a", "questions": 2000}
    ends = gain.interval()
    gains = {"measured_gain": points, "measured_gain_ci": ends, "expected_gain": points, "expected_gain_ci": ends}
    figures = StrategyFigures(**strategy_json(strategy), **row, **gains, calls_per_question=calls)
    return StrategyResult(figures, Replay(answers), np.zeros((1, N)), gain)


def changed(result: StrategyResult, **figures: Any) -> StrategyResult:
    """A result with other figures in its row."""
    return dataclasses.replace(result, figures=result.figures.model_copy(update=figures))


def _router(members: tuple[str, ...]) -> GroupRouter:
    return GroupRouter(members, ROUTES)


def recommended(results: Sequence[StrategyResult], **limits: Any) -> RecommendedStrategy | None:
    """What is recommended of these strategies."""
    return recommend(Compared(tuple(results)), Limits(**limits))


SINGLE, VOTE = Single(("a",)), Vote(("a", "b", "c"))
ROUTES = (("x", "a"), ("y", "b"))
ROUTER = GroupRouter(("a", "b", "c"), ROUTES)


CHEAP, PAIR = Single(("b",)), Vote(("a", "b"))
LEARNED, UNITE = LearnedVote(("a", "b", "c"), (1.0, 0.9, 0.8)), Decoded(("a", "b"), "unite")
HURT = GroupFigures(group="b", n=40, shown="no")
PER_CALL, PER_PRICE = "at least 0.2 points for each call", "at least 0.2 points for each multiple of its price"


def rows(*figures: tuple[Any, ...]) -> list[StrategyResult]:
    """Results of strategies, each with a gain, and perhaps calls of a question, a price and other figures."""
    made = []
    for strategy, gain, *more in figures:
        calls, price, others = [*more, *(1.0, None, {})[len(more) :]]
        made.append(changed(result_of_strategy(strategy, gain, calls), price_per_1000=price, **others))
    return made


def two(vote: float, router: float) -> list[StrategyResult]:
    return rows((SINGLE, 0.0), (VOTE, vote, 2.5), (ROUTER, router))


WITHIN = rows((SINGLE, 0.0, 2.0, 1.0), (VOTE, 3.0, 2.0, 2.5), (ROUTER, 1.0, 2.0, 1.2))
PRICED = rows((CHEAP, -4.0, 1.0, 0.1), (SINGLE, 0.0, 1.0, 1.0), (VOTE, 3.0, 1.0, 2.5), (ROUTER, -1.0, 1.0, 0.4))
TIMED = rows(
    (SINGLE, 0.0, 1.0, None, {"seconds_p95": 1.0}),
    (VOTE, 3.0, 2.5, None, {"seconds_p95": 2.0}),
    (ROUTER, 1.0, 1.0, None, {"seconds_p95": 1.5}),
)
ONLY_CHEAPEST = "Use b alone: no strategy takes at most $0.01 for 1,000 questions. This is the cheapest one ($0.10)."


@pytest.mark.parametrize(
    ("results", "limits", "wanted", "said"),
    [
        # The largest gain after the price of calls.
        (two(2.0, 1.0), {"min_gain": 0.0}, VOTE, ""),
        (two(2.0, 2.1), {"min_gain": 0.0}, ROUTER, ""),  # fewer calls and a larger gain
        (two(-0.1, -2.0), {"min_gain": 0.0}, SINGLE, ""),
        (two(2.0, 1.0), {"min_gain": 3.0}, SINGLE, ""),
        (two(5.0, -1.0), {"min_gain": 3.0}, VOTE, ""),
        # What costs more than another one must gain more for it.
        (rows((VOTE, 2.0, 3.0), (PAIR, 2.0, 2.0), (SINGLE, 0.0)), {}, PAIR, ""),
        (rows((VOTE, 2.19, 3.0), (PAIR, 2.0, 2.0), (SINGLE, 0.0)), {}, PAIR, ""),
        (rows((VOTE, 2.2, 3.0), (PAIR, 2.0, 2.0), (SINGLE, 0.0)), {}, VOTE, ""),
        (rows((VOTE, 2.1, 3.0), (PAIR, 2.0, 2.0), (SINGLE, 0.0)), {"min_gain": 0.0}, VOTE, ""),
        # A single model stays unless the gain is worth the calls.
        (rows((VOTE, 0.4, 3.1), (SINGLE, 0.0)), {}, SINGLE, PER_CALL),
        (rows((VOTE, 0.4, 3.1), (SINGLE, 0.0)), {"min_gain": 0.1}, VOTE, ""),
        (rows((VOTE, 0.7, 3.1), (SINGLE, 0.0)), {}, VOTE, ""),
        (rows((ROUTER, 0.1), (SINGLE, 0.0)), {}, SINGLE, PER_CALL),
        (rows((ROUTER, 0.1), (SINGLE, 0.0)), {"min_gain": 0.1}, ROUTER, ""),
        (rows((ROUTER, 0.2), (SINGLE, 0.0)), {}, ROUTER, ""),
        # Where prices are known, it must be worth the price and not the calls.
        (rows((VOTE, 1.0, 9.0, 4.9), (SINGLE, 0.0, 1.0, 1.0)), {}, VOTE, ""),
        (rows((VOTE, 1.0, 9.0, 5.1), (SINGLE, 0.0, 1.0, 1.0)), {}, SINGLE, PER_PRICE),
        # Within so many points of the best one, the cheapest.
        (WITHIN, {"min_gain": 0.0, "within": 1.9}, VOTE, ""),
        (WITHIN, {"min_gain": 0.0, "within": 2.0}, ROUTER, "the cheapest strategy at most"),
        (WITHIN, {"min_gain": 0.0, "within": 3.0}, SINGLE, "the cheapest strategy at most"),
        # A budget leaves out what costs more; if all do, the cheapest is left.
        (PRICED, {"budget": 2.5}, VOTE, ""),
        (PRICED, {"budget": 2.4}, SINGLE, ""),
        (PRICED, {"budget": 0.5}, ROUTER, ""),
        (PRICED, {"budget": 0.1}, CHEAP, ""),
        (PRICED, {"budget": 0.01}, CHEAP, ONLY_CHEAPEST),
        # Without a price nothing is within a budget.
        (
            rows((VOTE, 3.0), (SINGLE, 0.0, 1.0, 1.0)),
            {"budget": 5.0},
            SINGLE,
            "Use a alone: there is no other strategy within $5.00 for 1,000 questions to compare it with.",
        ),
        # What takes too long is left out; if all do, the best single model is left.
        (TIMED, {"latency": 2.0}, VOTE, ""),
        (TIMED, {"latency": 1.9}, ROUTER, ""),
        (TIMED, {"latency": 1.4}, SINGLE, "no other strategy within 1.4 s for 95% of the questions"),
        (
            TIMED,
            {"latency": 0.5},
            SINGLE,
            "no strategy takes at most 500 ms for 95% of the questions. This",
        ),
        # A shown loss, also of a route.
        (rows((ROUTER, 3.0), (SINGLE, 0.0)), {}, ROUTER, ""),
        (
            rows((ROUTER, 3.0, 1.0, None, {"groups": (HURT,)}), (SINGLE, 0.0)),
            {},
            SINGLE,
            " is expected to gain more (+3.0 points), but one of its groups loses.",
        ),
        # Where answers are counted, a learned vote is the advice, although others are expected to gain more.
        (rows((VOTE, 3.0, 2.0), (LEARNED, 2.0, 2.0), (ROUTER, 4.0), (SINGLE, 0.0)), {}, LEARNED, ""),
        (rows((UNITE, 3.0, 2.0), (LEARNED, 2.0, 2.0), (SINGLE, 0.0)), {}, UNITE, ""),
        (
            rows((UNITE, 2.3, 4.0), (LEARNED, 2.0, 2.0), (SINGLE, 0.0)),
            {},
            LEARNED,
            " is expected to gain more (+2.3 points), but that is not enough for its cost.",
        ),
        (
            rows((UNITE, 1.9, 2.0, None, {"expected_gain": 2.3}), (LEARNED, 2.0, 2.0), (SINGLE, 0.0)),
            {},
            LEARNED,
            " is expected to gain more (+2.3 points), but its measured gain is +1.9 points.",
        ),
        (rows((VOTE, 3.0, 2.0), (LEARNED, 2.0, 2.0), (SINGLE, 0.0)), {"within": 0.5}, VOTE, ""),
        # It stays unless it loses by more than one standard error after its cost, or nothing is expected.
        (rows((LEARNED, 0.1, 2.0), (SINGLE, 0.0)), {}, LEARNED, ""),
        (rows((LEARNED, -0.5, 2.0, None, {"expected_gain": 0.1}), (SINGLE, 0.0)), {}, LEARNED, ""),
        (rows((LEARNED, -0.7, 2.0, None, {"expected_gain": 0.1}), (SINGLE, 0.0)), {}, SINGLE, PER_CALL),
        (rows((LEARNED, 0.1, 2.0, None, {"expected_gain": -0.1}), (SINGLE, 0.0)), {}, SINGLE, "gain anything"),
        (rows((LEARNED, 0.1, 2.0), (SINGLE, 0.0)), {"min_gain": 0.2}, SINGLE, "at least 0.2 points"),
    ],
)
def test_what_is_recommended_follows_from_gains_costs_and_limits(
    results: list[StrategyResult], limits: dict[str, float], wanted: Strategy, said: str
) -> None:
    found = recommended(results, **limits)
    assert found is not None and found.key == wanted
    assert said in found.text
    reasons = ("for each", "the cheapest", "no other strategy within")
    assert said or isinstance(wanted, Single) or not any(reason in found.text for reason in reasons)
    if "min_gain" in limits and "within" not in limits:
        assert found.min_gain == limits["min_gain"]


def test_a_time_limit_needs_times() -> None:
    with pytest.raises(InputError, match=r"^--latency: no time is known; give logs with a column of seconds, or"):
        recommended([result_of_strategy(SINGLE, 0.0)], latency=1)


def test_a_budget_needs_prices() -> None:
    with pytest.raises(InputError, match=r"^--budget: no price is known; give price_in= and price_out= in the pool"):
        recommended([result_of_strategy(SINGLE, 0.0)], budget=1)


COSTS = st.tuples(*[st.integers(0, 3)] * 4)


@settings(max_examples=60, deadline=None)
@given(st.lists(COSTS, min_size=1, max_size=6), st.booleans(), st.one_of(st.none(), st.integers(0, 2)))
def test_no_recommended_strategy_is_dominated_in_its_gain_and_all_known_costs(
    figures: list[tuple[int, int, int, int]], has_prices: bool, within: int | None
) -> None:
    makers = (Vote, _router) * 3
    results = [
        changed(result_of_strategy(SINGLE, 0.0), price_per_1000=1.0 if has_prices else None, seconds_per_question=1.0)
    ]
    for n, (gain, calls, price, seconds) in enumerate(figures):
        own = result_of_strategy(makers[n](("a", "b", "c", "d", "e")[: 3 + n // 2]), float(gain), 1.0 + calls)
        results.append(
            changed(own, price_per_1000=float(price) if has_prices else None, seconds_per_question=float(seconds))
        )
    found = recommended(results, within=within)
    assert found is not None

    def figures_of(each: Any) -> tuple[float, ...]:
        costs = each.calls_per_question, each.price_per_1000 or 0.0, each.seconds_per_question or 0.0
        return each.expected_gain, *(-cost for cost in costs)

    best = next(each.figures for each in results if each.strategy == found.key)
    for each in (result.figures for result in results):
        pairs = list(zip(figures_of(each), figures_of(best), strict=True))
        is_better = all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)
        # A single model stays if the other's gain does not pay for its calls.
        assert not is_better or (best.is_single and each.expected_gain < 0.2 * each.calls_per_question)


def test_single_models_that_cost_less_and_are_better_than_all_cheaper_ones_are_compared() -> None:
    held_out = {"a": "1", "b": "1112", "c": "12", "d": "2"}
    dollars = {"a": 4.0, "b": 2.0, "c": 3.0, "d": 1.0}
    splits = splits_of(held_out, held_out)
    paid = {
        name: dataclasses.replace(
            own, answers=tuple(dataclasses.replace(each, dollars=dollars[name]) for each in own.answers)
        )
        for name, own in splits[1].profiles.items()
    }
    found = compare_strategies(splits[0], dataclasses.replace(splits[1], profiles=paid), can_vote=True).results
    assert {each.strategy.members[0]: each.figures.price_per_1000 for each in found} == {
        "a": 4000.0,
        "b": 2000.0,
        "d": 1000.0,
    }


@pytest.mark.parametrize(
    ("answers", "can_vote", "why"),
    [
        ("1112", True, "a vote takes 3 models, and no other model is within 15 points of the best one"),
        ("2221", False, "the responses have no extracted answers that a vote can count"),
    ],
)
def test_the_advice_says_why_there_is_no_vote(answers: str, can_vote: bool, why: str) -> None:
    models = {"a": answers, "b": "2221", "c": "3331"}
    found = compare_strategies(*splits_of(models, models), can_vote=can_vote)
    assert found.no_vote == why
    recommendation = recommend(Compared((result_of_strategy(SINGLE, 0.0),), no_vote=found.no_vote))
    assert recommendation is not None
    assert recommendation.text.startswith("Use a alone: there is no other strategy to compare it with, because " + why)


def test_a_vote_that_is_better_is_recommended_and_its_probability_is_high() -> None:
    held_out = {"a": "112", "b": "121", "c": "211"}
    recommendation = recommended(compared({"a": "112", "b": "121", "c": "211"}, held_out))
    assert recommendation is not None
    assert recommendation.key == Vote(("a", "b", "c"))
    assert recommendation.probability > 0.99
    # What other pools gain is less, but it does not fit here, so it counts little.
    assert 25 < recommendation.expected_gain < 36
    low, high = recommendation.expected_gain_ci
    assert 0 < low < recommendation.expected_gain < high


def test_what_may_be_chance_is_recommended_with_a_lower_probability() -> None:
    # On the first question b and c are right and a is wrong; where one of them is wrong, the two others are right.
    dev = {"a": "11112", "b": "11113", "c": "11114"}
    held_out = {"a": "2" + "11112" * 7 + "1111", "b": "1113" + "11115" * 7 + "1", "c": "1" * 30 + "44" + "11117" * 2}
    recommendation = recommended(compared(dev, {name: own[:40] for name, own in held_out.items()}))
    assert recommendation is not None
    assert recommendation.strategy == "vote"
    assert 0.6 < recommendation.probability < 0.95
    assert 0 < recommendation.expected_gain < 4


def test_without_strategies_nothing_is_recommended() -> None:
    assert recommended(()) is None


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (Single(("a",)), "Use a alone"),
        (Vote(("a", "b", "c")), "Ask a, b and c in this order, stop as soon as"),
        (SelfConsistency(("a",), 5), "Ask a 5 times"),
        (
            Decoded(("a", "b"), "unite"),
            "Decode a and b together, in this order: at each word they vote on the next piece of text (unite)",
        ),
    ],
)
def test_a_recommendation_says_what_to_do(strategy: Strategy, words: str) -> None:
    assert strategy.describe().startswith(words)


def test_voters_are_close_to_the_best_and_no_more_than_the_calls() -> None:
    dev = task("dev")
    profiles = [
        profile(name, dev, "1" * right + name * (20 - right))
        for name, right in zip("abcde", (12, 20, 17, 16, 18), strict=True)
    ]
    assert fitting_voters(profiles, Limits(vote_gap=15)) == ("b", "e", "c")
    assert fitting_voters(profiles, Limits(vote_gap=100, max_voters=1)) == ("b",)


@settings(max_examples=3, deadline=None)
@given(ANSWERS, ANSWERS)
def test_the_expected_gain_lies_between_the_predicted_and_the_measured_one(dev: list[str], held_out: list[str]) -> None:
    names = "abcd"[: min(len(dev), len(held_out))]
    learned, alone = dict(zip(names, dev, strict=False)), dict(zip(names, held_out, strict=False))
    for result in compared(learned, alone):
        shown = [each for each in (result.gain.points, result.figures.predicted_gain) if each is not None]
        assert min(shown) - 1e-9 <= result.figures.expected_gain <= max(shown) + 1e-9


def test_without_a_prediction_the_expected_gain_is_the_measured_one() -> None:
    draws = {"a": ["112", "121", "211"]}
    found = by_name(compared(BY_TOPIC, BY_TOPIC, draws=draws))
    drawn = found["self_consistency a"]
    assert drawn.figures.predicted_gain is None
    assert (drawn.figures.expected_gain, drawn.figures.expected_gain_ci) == (drawn.gain.points, drawn.gain.interval())
    vote = found["vote a+b+c"]
    assert vote.figures.predicted_gain is not None
    assert vote.figures.expected_gain != vote.gain.points


# --- In a run ---


def run_of_three(place: Place, models: Path) -> Result:
    """A run of three models that all vote."""
    place.job(models)
    place.task(metric="number")
    place.select("--quiet")
    return Run.open(place.folder / "run").result


def test_a_run_compares_strategies_without_decoding_anything_more(place: Place, models: Path) -> None:
    result = written(run_of_three(place, models))
    counts = Counter(one["strategy"] for one in result["strategies"])
    assert counts["vote"] == counts["unite"] == 1
    unite = next(one for one in result["strategies"] if one["strategy"] == "unite")
    for key in ("measured_gain", "measured_gain_ci", "accuracy", "n", "questions"):
        assert unite[key] == result["ensemble"][key]
    assert unite["p_adjusted"] == result["ensemble"]["p_adjusted"]
    assert not math.isnan(result["advice"]["recommendation"]["expected_gain"])


def test_logs_with_several_responses_say_whether_several_models_pay_against_them(place: Place) -> None:
    rows = [
        {
            "question": f"What is {n}?",
            "reference": str(n),
            "model": name,
            "draw": draw,
            "response": str(-n if n % 4 == wrong else n),
        }
        for n in range(120)
        for wrong, name in enumerate("abc")
        for draw in range(3)
    ]
    place.write("logs.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    ran = place.advisor("select", "--logs", "logs.jsonl", "--metric", "exact_match", "--out", "run", "--quiet")
    (told,) = [line for line in ran.out.splitlines() if line.startswith("At equal cost: ")]
    assert told.startswith("At equal cost: This pays against 3 responses of ") and "; 3 calls a question)." in told
    page = (place.folder / "run" / "report.html").read_text(encoding="utf-8")
    assert "This pays against 3 responses of " in page


def test_the_samples_say_whose_response_the_recommended_strategy_takes() -> None:
    dev, held_out = splits_of(RIGHTS, RIGHTS)
    vote = by_name(compare_strategies(dev, held_out, can_vote=True, rules=ALL).results)["vote a+b+c"]
    advice = AdviceSection(recommendation=recommended([vote]))
    own = recommended_of(advice, Compared((vote,)))
    profiles = list(held_out.profiles.values())
    lines = [written(each) for each in samples_of(held_out.task, "held_out", profiles, recommended=own)]
    for line, (taken, _) in zip(lines, vote.replay.takes, strict=True):
        response = line["responses"][line["recommended"]["model"]]
        assert line["recommended"]["model"] == taken
        assert (line["recommended"]["extracted"], line["recommended"]["score"]) == (
            response["extracted"],
            response["score"],
        )
    alone = AdviceSection(recommendation=recommended([result_of_strategy(SINGLE, 0.0)]))
    assert recommended_of(alone, Compared((vote,))) is None


@settings(max_examples=3, deadline=None)
@given(ANSWERS)
def test_no_vote_or_router_is_predicted_to_gain_more_than_its_models_know(held_out: list[str]) -> None:
    alone = dict(zip("abcd", held_out, strict=False))
    results = compared(alone, alone)
    for result in results:
        if result.figures.predicted_gain is None or not result.replay.takes:
            continue
        name = result.figures.best_single_model or ""
        best = scores(profile(name, task("held_out"), alone[name]))
        members = [scores(profile(name, task("held_out"), alone[name])) for name in result.strategy.members]
        helped = sum(max(own) > mine for mine, own in zip(best, zip(*members, strict=True), strict=True))
        assert result.figures.expected_gain <= 100 * helped / len(best) + 1e-9
