"""Votes and votes against slow counts that follow the definition."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_serving_strategies import Says
from test_strategies import task

from advisor.advice.rules import fitting_voters
from advisor.records import Answer, Limits, Profile
from advisor.run.asking import Answerer
from advisor.run.plan import StrategyPlan
from advisor.strategies import kinds
from advisor.strategies.learned_vote import LearnedVote
from advisor.strategies.replay import codes_of, play, replay_all
from advisor.strategies.strategy import AnsweredSplit, Call, QuestionText, TrainingData
from advisor.strategies.vote import Vote, VoteReader, asked_until_decided, is_decided
from ensemble.decode.settings import Settings
from ensemble.methods.voting import answer_codes, vote

if TYPE_CHECKING:
    pass

ANSWER = st.one_of(st.none(), st.sampled_from(["a", "b", "c"]))
COLUMN = st.lists(ANSWER, min_size=1, max_size=7)


def slow_vote(answers: list[str | None], weights: list[float] | None = None) -> int:
    """The first member that gave the answer with the most votes; among tied answers the one given first."""
    votes: dict[str, float] = {}
    for answer, weight in zip(answers, weights or [1.0] * len(answers), strict=True):
        if answer is not None:
            votes[answer] = votes.get(answer, 0.0) + weight
    best = max((round(count, 9) for count in votes.values()), default=0.0)
    return next((n for n, answer in enumerate(answers) if answer is not None and round(votes[answer], 9) == best), 0)


def column(answers: list[str | None]) -> np.ndarray:
    return answer_codes([[answer] for answer in answers])


@given(COLUMN)
def test_a_vote_equals_a_count_by_hand(answers: list[str | None]) -> None:
    assert vote(column(answers))[0] == slow_vote(answers)


@given(st.lists(st.tuples(ANSWER, st.integers(0, 8)), min_size=1, max_size=7))
def test_a_weighted_vote_equals_a_sum_by_hand(pairs: list[tuple[str | None, int]]) -> None:
    answers, weights = [answer for answer, _ in pairs], [weight / 4 for _, weight in pairs]
    assert vote(column(answers), weights)[0] == slow_vote(answers, weights)


@given(COLUMN)
def test_a_vote_is_decided_exactly_if_no_further_answers_change_its_winner(answers: list[str | None]) -> None:
    # All ways in which up to two more members can answer; "new" is an answer that no member gave so far.
    for left in (0, 1, 2):
        ends = product(["a", "b", "c", "new", None], repeat=left)
        winners = set()
        for end in ends:
            every = [*answers, *end]
            winner = every[slow_vote(every)]
            # Without any answer the first member's response is taken, whatever follows.
            winners.add(winner)
        decided = len(winners) == 1 and (answers[slow_vote(answers)] in winners)
        assert bool(is_decided(column(answers), left)[0]) == decided, (answers, left, winners)


@given(st.lists(COLUMN, min_size=1, max_size=5).filter(lambda columns: len({len(own) for own in columns}) == 1))
def test_a_vote_stops_at_the_first_member_after_which_the_vote_is_decided(columns: list[list[str | None]]) -> None:
    codes = answer_codes(list(zip(*columns, strict=True)))
    members = codes.shape[0]
    for question, calls in enumerate(asked_until_decided(codes)):
        own = codes[:, [question]]
        first = next(n for n in range(1, members + 1) if n == members or is_decided(own[:n], members - n)[0])
        assert calls == first
        assert own[vote(own[:calls])[0], 0] == own[vote(own)[0], 0]


def test_three_members_need_a_third_call_only_where_the_first_two_give_different_answers() -> None:
    codes = answer_codes([["a", "a", "a", None], ["a", "b", "b", "b"], ["a", "b", "c", "b"]])
    # In the last column the third member can at most tie, and then the second decides.
    assert asked_until_decided(codes).tolist() == [2, 3, 3, 2]
    assert vote(codes).tolist() == [0, 1, 0, 1]


def asked(name: str, answers: Sequence[str | None]) -> int:
    """The number of the model whose response `advisor run` and `advisor serve` take."""
    members = tuple(str(n) for n in range(len(answers)))
    plan = StrategyPlan(kinds()[name](members), (), reader=VoteReader("exact_match", "([a-c])", "test"))
    models = [Says(name, answer or "") for name, answer in zip(members, answers, strict=True)]
    return int(asyncio.run(Answerer(plan, models).answer("?", Settings())).model)


def test_the_flow_and_the_shortcut_of_a_vote_agree_on_ten_thousand_ballots() -> None:
    chance = np.random.default_rng(0)
    for members, weights in (
        (3, None),
        (5, None),
        (4, (2.0, 1.5, 1.0, 0.3)),
        (6, (0.7,) * 6),
        (5, (3.0, 0.0, 1.0, 1.0, 0.5)),
    ):
        names = tuple(str(n) for n in range(members))
        strategy = Vote(names) if weights is None else LearnedVote(names, weights)
        given = chance.integers(-1, 4, (members, 2000))
        profiles = {
            name: Profile(name, tuple(Answer("1", "", None if a < 0 else str(a), 0.0, "eos") for a in own))
            for name, own in zip(names, given.tolist(), strict=True)
        }
        shortcut = replay_all(strategy, AnsweredSplit(task("dev", 2000), profiles))

        def ask(calls: Sequence[tuple[int, Call]]) -> list[Answer]:
            return [profiles[names[call.members[0]]].answers[n] for n, call in calls]  # noqa: B023

        played = play(strategy.flow, [QuestionText("", "")] * 2000, ask)
        assert shortcut.takes == tuple((names[each.calls[each.taken].members[0]], None) for each in played)
        calls = np.stack(list(shortcut.asked.values())).sum(axis=0)
        assert calls.tolist() == [len(each.calls) for each in played]


@given(st.lists(ANSWER, min_size=3, max_size=7))
@example(["a", "b", "b", "c", "c"])
@example([None, "b", "c"])
def test_select_evaluate_run_and_serve_decide_ties_alike(answers: list[str | None]) -> None:
    profiles = [Profile(str(n), (Answer("1", a, a, 0.0, "eos"),)) for n, a in enumerate(answers)]
    chosen = vote(codes_of(profiles))[0]
    assert chosen == slow_vote(answers)
    assert asked("vote", answers) == chosen


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", [name for name, kind in kinds().items() if kind.COUNTS and kind.MEMBERS[1] > 1])
def test_of_equal_answers_each_vote_takes_that_of_the_most_accurate_model(kind: str, seed: int) -> None:
    """As tool calls that are right in content and wrong in form: one answer, and scores that depend on the model."""
    chance, n, models = np.random.default_rng(seed), 150, 6
    content = np.where(chance.random((models, n)) < 0.7, "a", chance.choice(["b", "c"], (models, n)))
    form = chance.random((models, n)) < chance.choice([0.2, 0.6, 0.95], models)[:, None]
    examples = tuple(replace(each, group="fg"[m % 2]) for m, each in enumerate(task("dev", n).examples))
    profiles = {
        f"m{row}": Profile(
            f"m{row}",
            tuple(
                Answer(each.id, text, text, float(text == "a" and is_valid), "eos")
                for each, text, is_valid in zip(examples, content[row], form[row], strict=True)
            ),
        )
        for row in range(models)
    }
    split = AnsweredSplit(replace(task("dev", n), examples=examples), profiles)
    given = TrainingData(split, "", fitting_voters(list(profiles.values()), Limits(vote_gap=100)), can_vote=True)
    for strategy in kinds()[kind].learn(given):
        takes = replay_all(strategy, split).takes
        plan = StrategyPlan(strategy, (), reader=VoteReader("exact_match", "([a-c])", "test"))
        for place, ((taken, _), each) in enumerate(zip(takes, examples, strict=True)):
            answers = {name: profiles[name].answers[place].extracted for name in strategy.members}
            equal = [name for name, text in answers.items() if text == answers[taken]]
            assert profiles[taken].accuracy == max(profiles[name].accuracy for name in equal)
            if place >= 30:
                continue
            models_told = [Says(name, answer or "") for name, answer in answers.items()]
            served = asyncio.run(Answerer(plan, models_told).answer("?", Settings(), group=each.group))
            assert served.model == taken
