"""The learned vote: what it learns, where the plain vote stays, and that it stops early without another answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_serving_strategies import Says, planned
from test_strategies import task

from advisor.advice.comparison import fitting_voters
from advisor.records import Answer, Limits, Profile
from advisor.run.asking import Answerer
from advisor.strategies import kinds
from advisor.strategies.learned_vote import LearnedVote
from advisor.strategies.replay import codes_of, play, replay_all
from advisor.strategies.schema import strategy_json, strategy_of
from advisor.strategies.strategy import AnsweredSplit, Call, QuestionText, TrainingData
from advisor.strategies.vote import Vote, VoteReader, asked_until_decided, is_decided
from ensemble.decode.settings import Settings
from ensemble.errors import InputError
from ensemble.methods.voting import answer_codes, vote

if TYPE_CHECKING:
    from pools import Place

    pass

pytest_plugins = ["pools"]

ANSWER = st.one_of(st.none(), st.sampled_from("abc"))
WEIGHT = st.one_of(st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0]), st.floats(0, 1e6))


def answered(right: np.ndarray, wrong: np.ndarray | None = None, clusters: Sequence[str] = ()) -> AnsweredSplit:
    """Models that are right (1), wrong (0) or without an answer (-1), models by questions; wrong answers by number."""
    models, n = right.shape
    questions = task("dev", n)
    if clusters:
        examples = tuple(replace(e, cluster=c) for e, c in zip(questions.examples, clusters, strict=True))
        questions = replace(questions, examples=examples)
    given = np.zeros((models, n), int) if wrong is None else wrong
    texts = np.where(right == 1, "1", given.astype(str))
    profiles = {}
    for row in range(models):
        own = [None if r < 0 else str(text) for r, text in zip(right[row], texts[row], strict=True)]
        answers = tuple(
            Answer(e.id, "text", text, float(r == 1), "eos")
            for e, text, r in zip(questions.examples, own, right[row], strict=True)
        )
        profiles[f"m{row}"] = Profile(f"m{row}", answers)
    return AnsweredSplit(questions, profiles)


def learned(split: AnsweredSplit, voters: Sequence[str] = ("m0", "m1", "m2")) -> LearnedVote:
    return next(LearnedVote.learn(training(split, voters)))


def training(split: AnsweredSplit, voters: Sequence[str], most_voters: int = 5) -> TrainingData:
    ranked = tuple(sorted(split.profiles, key=lambda name: -split.profiles[name].accuracy))
    return TrainingData(split, voters[0], ranked, tuple(voters), most_voters, can_vote=True)


def drawn(accuracies: Sequence[float], n: int, seed: int = 0, options: int = 4) -> AnsweredSplit:
    """Independent models with these accuracies; wrong answers are spread over the other options."""
    chance = np.random.default_rng(seed)
    right = (chance.random((len(accuracies), n)) < np.array(accuracies)[:, None]).astype(int)
    return answered(right, chance.integers(2, options + 1, right.shape))


# --- What it learns ---


def test_the_weights_are_in_the_order_of_what_independent_models_know() -> None:
    found = learned(drawn([0.55, 0.75, 0.65, 0.7], 3000))
    assert found.members == ("m1", "m3", "m2", "m0")
    assert list(found.weights) == sorted(found.weights, reverse=True)
    # The odds of one of three wrong options: that a model gives it if it is right, and that it does not.
    for name, p in {"m1": 0.75, "m3": 0.7, "m2": 0.65, "m0": 0.55}.items():
        wrong = (1 - p) / 3
        wanted = np.log(p / wrong) - np.log((1 - p) / (1 - wrong))
        assert found.weights[found.members.index(name)] == pytest.approx(wanted, rel=0.25)


def test_a_model_that_knows_nothing_is_no_member() -> None:
    chance = np.random.default_rng(1)
    right = (chance.random((4, 600)) < np.array([[0.7], [0.65], [0.6], [0.1]])).astype(int)
    # The last one is wrong as the first one is, so that its answer is evidence against itself.
    wrong = chance.integers(2, 4, right.shape)
    wrong[3] = wrong[0]
    assert "m3" not in learned(answered(right, wrong)).members


def test_a_model_that_repeats_others_counts_less_than_an_independent_one() -> None:
    chance = np.random.default_rng(2)
    right = (chance.random((5, 800)) < 0.6).astype(int)
    wrong = chance.integers(2, 4, right.shape)
    right[1:3], wrong[1:3] = right[0], wrong[0]
    found = learned(answered(right, wrong))
    own = dict(zip(found.members, found.weights, strict=True))
    copies = sum(own.get(name, 0.0) for name in ("m0", "m1", "m2"))
    assert found.same_as is None
    assert copies == pytest.approx(own["m3"], rel=0.35)


@pytest.mark.parametrize("seed", range(3))
def test_few_labels_of_many_models_are_enough_and_give_the_same_weights_again(seed: int) -> None:
    split = drawn(np.linspace(0.75, 0.35, 40).tolist(), 50, seed)
    found = learned(split)
    assert found == learned(split)
    assert all(0 < weight < 100 for weight in found.weights)


def test_no_more_models_are_asked_than_a_vote_may_have() -> None:
    split = drawn(np.linspace(0.3, 0.8, 60).tolist(), 100)
    for most in (3, 7):
        (found,) = LearnedVote.learn(training(split, ("m59", "m58", "m57"), most))
        assert 1 < len(found.members) <= most


# --- Where the plain vote stays ---


@pytest.mark.parametrize("kind", ["equal", "all right", "none right", "no answers", "one question"])
def test_where_labels_tell_nothing_the_plain_vote_stays(kind: str) -> None:
    right = np.random.default_rng(0).integers(0, 2, (5, 60))
    right = {"equal": np.repeat(right[:1], 5, axis=0), "all right": right * 0 + 1, "none right": right * 0}.get(
        kind, right * 0 - 1
    )
    if kind == "one question":
        right[:2, 3] = 0, 1
    found = learned(answered(right))
    assert (sorted(found.members), len(set(found.weights)), found.same_as) == (["m0", "m1", "m2"], 1, "vote")
    assert learned(answered(right), ("m0", "m1")).same_as == "single"


def test_where_the_plain_vote_is_the_best_learning_costs_at_most_two_points() -> None:
    """Equal, independent models: no weights are better than equal ones."""
    costs = []
    for seed in range(20):
        found, new = (
            learned(drawn([0.6] * 5, 100, seed), [f"m{n}" for n in range(5)]),
            drawn([0.6] * 5, 2000, 100 + seed),
        )
        plain = LearnedVote(tuple(new.profiles), (1.0,) * 5)
        own, others = (replay_all(each, new).profile.accuracy for each in (found, plain))
        costs.append(others - own)
    assert 0 <= np.mean(costs) <= 2


def write_log(path: Path, split: AnsweredSplit) -> None:
    """A log in the form of a pool."""
    lines = [
        json.dumps(
            {
                "id": example.id,
                "question": f"{example.id}?",
                "reference": "1",
                "models": {
                    name: [profile.answers[n].extracted, int(profile.answers[n].score), 9]
                    for name, profile in split.profiles.items()
                },
            }
        )
        for n, example in enumerate(split.task.examples)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")


def test_a_plain_vote_that_stays_is_told_by_a_code_and_in_the_report(place: Place) -> None:
    right = np.random.default_rng(0).integers(0, 2, (1, 120)).repeat(4, axis=0)
    right[:, :24] = np.eye(4, dtype=int).repeat(6, axis=1)
    write_log(Path("log.jsonl"), answered(right, np.arange(2, 6)[:, None] + np.zeros_like(right)))
    assert place.advisor("select", "--logs", "log.jsonl", "--out", "run").status == 0
    result = json.loads(Path("run/result.json").read_text(encoding="utf-8"))
    assert {"strategy": "learned_vote", "same_as": "vote"} in result["advice"]["not_compared"]
    assert "learned_vote" not in [each["strategy"] for each in result["strategies"]]
    assert "A <bdi>learned vote</bdi> was not compared" in Path("run/report.html").read_text(encoding="utf-8")


def test_it_is_compared_reported_and_checked(place: Place) -> None:
    split = drawn([0.75, 0.7, 0.65, 0.65, 0.5, 0.45, 0.4], 400)
    write_log(Path("log.jsonl"), split)
    assert place.advisor("select", "--logs", "log.jsonl", "--out", "run").status == 0
    result = json.loads(Path("run/result.json").read_text(encoding="utf-8"))
    [row] = [each for each in result["strategies"] if each["strategy"] == "learned_vote"]
    assert len(row["members"]) == len(row["weights"]) == 5
    assert row["calls_per_question"] < len(row["members"])
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert f"Learned vote, {len(row['members'])} models" in page and f"m0 ({row['weights'][0]:.1f}), " in page
    new = [replace(each, id=f"new {each.id}") for each in split.task.examples]
    write_log(Path("new.jsonl"), replace(split, task=replace(split.task, examples=tuple(new))))
    ran = place.advisor("check", "run", "--logs", "new.jsonl", "--strategy", "learned_vote", "--json")
    assert (ran.status, json.loads(ran.out)["strategy"]) == (0, "learned_vote")


def test_clusters_of_one_question_each_teach_what_none_teach() -> None:
    split = drawn([0.5, 0.8, 0.6], 100)
    clusters = [f"{n:03}" for n in range(100)]
    examples = tuple(replace(e, cluster=c) for e, c in zip(split.task.examples, clusters, strict=True))
    assert learned(replace(split, task=replace(split.task, examples=examples))) == learned(split)


# --- It stops early ---


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(ANSWER, WEIGHT), min_size=1, max_size=8))
def test_it_stops_where_part_of_the_rest_does_not_change_the_winner(pairs: list[tuple[str | None, float]]) -> None:
    answers, weights = [a for a, _ in pairs], [w for _, w in pairs]
    codes = answer_codes([[each] for each in answers])
    calls = int(asked_until_decided(codes, weights)[0])
    full = vote(codes, weights)[0]
    assert full == slow_vote(answers, weights)
    assert answers[vote(codes[:calls], weights[:calls])[0]] == answers[full]
    fewer = int(asked_until_decided(codes, weights, LearnedVote.REST)[0])
    chosen = answers[vote(codes[:fewer], weights[:fewer])[0]]
    assert fewer <= calls
    # Whatever the models that are not asked would have said.
    for count, rest, winner in ((calls, 1.0, answers[full]), (fewer, LearnedVote.REST, chosen)):
        for other in (None, "a", "b", "c", "new"):
            changed = [*answers[:count], *[other] * (len(answers) - count)]
            scaled = [*weights[:count], *(rest * each for each in weights[count:])]
            assert changed[slow_vote(changed, scaled)] == winner
    names = tuple(str(n) for n in range(len(pairs)))
    plan = planned(LearnedVote(names, tuple(weights)), VoteReader("exact_match", "([a-c])", "test"))
    models = [Says(name, answer or "") for name, answer in zip(names, answers, strict=True)]
    asked = asyncio.run(Answerer(plan, models).answer("?", Settings()))
    assert asked.calls == fewer
    assert answers[int(asked.model)] == chosen


def test_it_stops_as_soon_as_the_rest_has_less_weight() -> None:
    codes = answer_codes([["a", "a", None], ["b", "a", "b"], ["b", "c", "b"]])
    assert asked_until_decided(codes, [3.0, 1.0, 1.0]).tolist() == [1, 1, 3]
    assert asked_until_decided(codes, [2.0, 1.5, 1.0]).tolist() == [3, 2, 2]


def test_the_calls_of_its_evaluation_are_those_that_it_makes() -> None:
    split = drawn([0.8, 0.7, 0.6, 0.5], 80)
    strategy = LearnedVote(tuple(split.profiles), (1.2, 1.0, 0.9, 0.8))
    calls = np.stack(list(replay_all(strategy, split).steps.values())) >= 0
    codes = codes_of(list(split.profiles.values()))
    assert calls.sum(axis=0).tolist() == asked_until_decided(codes, strategy.weights, strategy.REST).tolist()
    assert calls.sum() < calls.size


def test_answers_that_were_not_there_when_it_learned_are_votes_like_others() -> None:
    strategy = LearnedVote(("a", "b", "c"), (1.0, 0.9, 0.8))
    new = {name: Profile(name, (Answer("1", "t", text, 0.0, "eos"),)) for name, text in zip("abc", "xyy", strict=True)}
    assert replay_all(strategy, AnsweredSplit(task("dev", 1), new)).takes == (("b", None),)
    none = {name: Profile(name, (Answer("1", None, None, 0.0, "error", "no"),)) for name in "abc"}
    assert replay_all(strategy, AnsweredSplit(task("dev", 1), none)).takes == (("a", None),)


# --- In files ---


def test_its_json_is_read_back() -> None:
    strategy = LearnedVote(("a", "b", "c"), (1.25, 0.5, 0.1))
    assert strategy_json(strategy) == {
        "strategy": "learned_vote",
        "members": ["a", "b", "c"],
        "weights": [1.25, 0.5, 0.1],
    }
    assert strategy_of(strategy_json(strategy), "x.json", "write it again") == strategy


@pytest.mark.parametrize(
    "change",
    [
        *({"weights": value} for value in ([1, 2], [1, 2, 1e7], [1, 2, float("nan")], [1, 2, "3"], None)),
        {"members": [f"m{n}" for n in range(51)], "weights": [1.0] * 51},
        {"members": ["a", "a", "b"]},
    ],
    ids=repr,
)
def test_an_odd_file_is_refused_in_one_line(change: dict[str, object]) -> None:
    values = {"strategy": "learned_vote", "members": ["a", "b", "c"], "weights": [1.0, 1.0, 1.0], **change}
    with pytest.raises(InputError, match=r"^x\.json: (weights|members).*; write it again$"):
        strategy_of(values, "x.json", "write it again")


# --- Plain votes ---


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
    plan = planned(kinds()[name](members), VoteReader("exact_match", "([a-c])", "test"))
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
        steps = np.stack(list(shortcut.steps.values())).T.tolist()
        assert steps == [[*each.steps, *[-1] * (members - len(each.steps))] for each in played]


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
    given = training(split, fitting_voters(list(profiles.values()), Limits(vote_gap=100)))
    for strategy in kinds()[kind].learn(given):
        takes = replay_all(strategy, split).takes
        plan = planned(strategy, VoteReader("exact_match", "([a-c])", "test"))
        for place, ((taken, _), each) in enumerate(zip(takes, examples, strict=True)):
            answers = {name: profiles[name].answers[place].extracted for name in strategy.members}
            equal = [name for name, text in answers.items() if text == answers[taken]]
            assert profiles[taken].accuracy == max(profiles[name].accuracy for name in equal)
            if place >= 30:
                continue
            models_told = [Says(name, answer or "") for name, answer in answers.items()]
            served = asyncio.run(Answerer(plan, models_told).answer("?", Settings(), group=each.group))
            assert served.model == taken
