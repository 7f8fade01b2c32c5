"""A vote with weights learned from labels: its likelihood, when it stops, when it is offered."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.advice.comparison import compare_strategies
from advisor.choose.rules import fitting_voters
from advisor.logs.join import join_logs
from advisor.records import Answer, Limits, Profile
from advisor.strategies.learned_vote import LearnedVote, _Labelled
from advisor.strategies.strategy import AnsweredSplit, TrainingData
from advisor.strategies.vote import codes_of, winners
from advisor.tasks.task import Example, Signature, Task
from ensemble.methods._votes import NONE, answer_codes

POOL = Path(__file__).parents[1].parent / "shared" / "pools" / "math-l5.jsonl.xz"
LETTERS = ["a", "b", "c", None]


def split_of(name: str, answers: dict[str, list[str | None]], right: float = 1.0) -> AnsweredSplit:
    """Questions whose right answer is 1, with the score `right`."""
    size = len(next(iter(answers.values())))
    examples = tuple(Example(f"{name}-{n}", "", "", "1") for n in range(size))
    task = Task(
        "sums",
        "number",
        name,
        examples,
        (),
        1,
        0,
        0,
        None,
        (),
        "",
        Signature("sums", "number", name, size, 0, 0, "", ()),
    )
    profiles = {
        model: Profile(
            model,
            tuple(
                Answer(each.id, "text", answer, right * (answer == "1"), "eos")
                for each, answer in zip(examples, own, strict=True)
            ),
        )
        for model, own in answers.items()
    }
    return AnsweredSplit(task, profiles)


def with_copies(size: int, seed: int) -> dict[str, list[str | None]]:
    """Two good models that are wrong independently, and three copies of one that is less often right."""
    chance = np.random.default_rng(seed)

    def answers(accuracy: float) -> list[str | None]:
        return ["1" if luck < accuracy else f"w{n}{seed}{accuracy}" for n, luck in enumerate(chance.random(size))]

    good, other, weak = answers(0.74), answers(0.73), answers(0.62)
    return {"a": good, "b": other, "c": weak, "d": list(weak), "e": list(weak)}


def learn(split: AnsweredSplit) -> list[LearnedVote]:
    names = tuple(split.profiles)
    return list(LearnedVote.learn(TrainingData(split, names[0], names, True)))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(*[st.sampled_from(LETTERS)] * 4), min_size=1, max_size=8),
    st.lists(st.floats(0, 5), min_size=4, max_size=4),
)
def test_the_loss_and_its_slope_are_those_of_a_slow_sum(rows: list[tuple[str | None, ...]], own: list[float]) -> None:
    weights = np.array(own)

    def slow(at: np.ndarray) -> float:
        total = 0.0
        for row in rows:
            each = {answer: math.exp(sum(at[n] for n in range(4) if row[n] == answer)) for answer in set(row) - {None}}
            if "a" in each and len(each) > 1:
                total -= math.log(each["a"] / sum(each.values()))
        return total

    answers = list(zip(*rows, strict=True))
    right = np.array([[float(answer == "a") for answer in model] for model in answers])
    loss, slope = _Labelled(answer_codes(answers), right).loss(weights)
    assert loss == pytest.approx(slow(weights), abs=1e-9)
    for n, step in enumerate(np.eye(4) * 1e-5):
        assert slope[n] == pytest.approx((slow(weights + step) - slow(weights - step)) / 2e-5, abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(LETTERS), min_size=4, max_size=4),
    st.lists(st.integers(1, 8), min_size=4, max_size=4),
)
def test_it_stops_exactly_when_no_further_answers_change_the_winner(row: list[str | None], own: list[int]) -> None:
    weights = sorted((each / 4 for each in own), reverse=True)
    strategy = LearnedVote(tuple("mnop"), tuple(weights))

    def winner(answers: tuple[str | None, ...]) -> str | None:
        votes = {a: sum(w for b, w in zip(answers, weights, strict=True) if b == a) for a in answers if a is not None}
        most = max(votes.values(), default=0)
        return next((a for a in answers if a is not None and votes[a] == most), None)

    def is_open(asked: int) -> bool:
        ends = product([*LETTERS, "new"], repeat=4 - asked)
        return len({winner((*row[:asked], *end)) for end in ends}) > 1

    expected = next(n for n in range(1, 5) if not is_open(n))
    split = split_of("dev", {model: [answer] for model, answer in zip("mnop", row, strict=True)})
    responses = list(split.profiles.values())
    picks = strategy.picks(responses, split.task.examples)
    assert row[picks[0]] == winner(tuple(row))
    assert strategy.calls(responses, split.task.examples, picks).sum() == expected


def test_copies_of_a_weak_model_outvote_a_plain_vote_and_not_a_learned_one() -> None:
    (learned,) = learn(split_of("dev", with_copies(400, 1)))
    fresh = split_of("held_out", with_copies(2000, 2))
    own = learned.apply([fresh.profiles[name] for name in learned.members], fresh.task.examples).accuracy
    profiles = list(fresh.profiles.values())
    plain = np.mean([profiles[n].answers[q].score for q, n in enumerate(winners(profiles))])
    assert own > 100 * plain + 5
    weights = dict(zip(learned.members, learned.weights, strict=True))
    assert min(weights["a"], weights["b"]) > max(weights.get(name, 0.0) for name in "cde")
    assert list(learned.weights) == sorted(learned.weights, reverse=True)


def test_it_is_compared_with_the_others_by_parts() -> None:
    dev, held_out = (split_of(name, with_copies(300, seed)) for name, seed in (("dev", 3), ("held_out", 4)))
    found = compare_strategies(dev, held_out, list("abcde"), can_vote=True).results
    results = {
        each.strategy.name: each for each in found if each.strategy.name != "cascade" or len(each.strategy.members) == 5
    }
    assert results["learned_vote"].gain.answered == 600
    assert results["learned_vote"].profile.accuracy > results["cascade"].profile.accuracy + 5
    assert results["learned_vote"].calls < len(results["learned_vote"].strategy.members)


def test_models_that_are_no_voters_can_be_members() -> None:
    split = split_of("dev", with_copies(400, 1))
    (learned,) = LearnedVote.learn(TrainingData(split, "c", ("c", "d", "e"), True))
    assert {"a", "b"} <= set(learned.members)


def test_where_it_is_not_better_the_plain_vote_stays_and_it_is_not_offered() -> None:
    answers: dict[str, list[str | None]] = {name: ["1", "2"] * 40 for name in "abc"}
    (learned,) = learn(split_of("dev", answers))
    assert (learned.members, learned.is_trivial) == (("a", "b", "c"), True)
    found = compare_strategies(split_of("dev", answers), split_of("held_out", answers), list("abc"), can_vote=True)
    assert "learned_vote" not in {each.strategy.name for each in found.results}


def test_graded_answers_and_too_few_models_teach_nothing() -> None:
    assert learn(split_of("dev", with_copies(60, 1), right=0.5)) == []
    assert learn(split_of("dev", {name: own for name, own in with_copies(60, 1).items() if name in "ab"})) == []


def test_questions_of_one_cluster_are_left_out_together() -> None:
    # Each question ten times. By themselves their copies would be in the other folds, and luck would look like skill.
    chance = np.random.default_rng(5)
    names = [f"m{n:02d}" for n in range(30)]
    rows: dict[str, list[str | None]] = {
        name: [answer for luck in chance.random(14) for answer in ["1" if luck < 0.5 else "2"] * 10] for name in names
    }
    split = split_of("dev", rows)
    whole = replace(
        split,
        task=replace(
            split.task,
            examples=tuple(replace(each, cluster=str(n // 10)) for n, each in enumerate(split.task.examples)),
        ),
    )
    (apart,), (together,) = learn(split), learn(whole)
    assert not apart.is_trivial
    assert together.is_trivial


@pytest.mark.skipif(not POOL.is_file(), reason="../shared/pools is not here")
def test_real_models_have_a_learned_vote_that_does_not_lose_and_saves_calls() -> None:
    logs = join_logs([str(POOL)])
    profiles = [own for own in logs.profiles.values() if 30 < own.accuracy < 50]
    numbers = np.random.default_rng(0).permutation(len(profiles[0].answers)).tolist()
    seen, rest = numbers[:400], numbers[400:]
    dev = AnsweredSplit(logs.task("dev", seen, 0), {own.model: own.part(seen) for own in profiles})
    voters = fitting_voters(list(dev.profiles.values()), Limits())
    (learned,) = LearnedVote.learn(TrainingData(dev, voters[0], tuple(voters), True))
    responses = [logs.profiles[name].part(rest) for name in learned.members]
    assert (codes_of(responses) != NONE).any()
    examples = logs.task("held_out", rest, 0).examples
    picks = learned.picks(responses, examples)
    plain = [logs.profiles[name].part(rest) for name in voters]
    usual = np.mean([plain[n].answers[q].score for q, n in enumerate(winners(plain))])
    assert learned.apply(responses, examples).accuracy >= 100 * usual - 2
    assert learned.calls(responses, examples, picks).sum(axis=0).mean() < len(learned.members)
