"""A cascade in some groups, the single model in the others: what it is, and that the choice of groups is no luck."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from advisor.advice.comparison import Compared, compare_strategies
from advisor.advice.recommendation import recommend
from advisor.records import Answer, Limits, Profile
from advisor.strategies.cascade import cascade_calls
from advisor.strategies.group_cascade import GroupCascade
from advisor.strategies.strategy import AnsweredSplit
from advisor.strategies.vote import codes_of, winners
from advisor.tasks.task import Example, Signature, Task

GROUPS = ("art", "law", "math", "physics")
DEV, HELD_OUT = 150, 650
DRAWS = 8


class Effect(NamedTuple):
    """The share of a group's questions that a vote gains, and that it loses."""

    gained: float
    lost: float


SAME = dict.fromkeys(GROUPS, Effect(0.07, 0.03))
APART = {"art": Effect(0.0, 0.12), "law": Effect(0.0, 0.12), "math": Effect(0.16, 0.0), "physics": Effect(0.16, 0.0)}


def split_of(name: str, size: int, effects: dict[str, Effect], chance: np.random.Generator) -> AnsweredSplit:
    """Questions of all groups in turn. A vote of a, b and c gains and loses against a as often as `effects` says."""
    examples, rows = [], []
    for number in range(size):
        group = GROUPS[number % len(GROUPS)]
        luck, other = chance.random(2)
        gained, lost = effects[group]
        row = "211" if luck < gained else "122" if luck < gained + lost else "121" if other < 0.2 else "112"
        if luck > 0.6:
            row = "234"  # all are wrong, and none agree
        examples.append(Example(f"{name}-{number}", "", "", "1", group=group))
        rows.append(row)
    signature = Signature("sums", "number", name, size, 0, 0, "", ())
    task = Task("sums", "number", name, tuple(examples), (), 1, 0, 0, None, (), "", signature)
    return AnsweredSplit(
        task,
        {
            model: Profile(
                model,
                tuple(
                    Answer(example.id, "text", row[n], float(row[n] == "1"), "eos")
                    for example, row in zip(examples, rows, strict=True)
                ),
            )
            for n, model in enumerate("abc")
        },
    )


def true_gain(strategy: GroupCascade, effects: dict[str, Effect]) -> float:
    return 100 * sum(effects[group].gained - effects[group].lost for group in strategy.in_groups) / len(GROUPS)


@cache
def drawn(kind: str) -> list[Compared]:
    effects = {"same": SAME, "apart": APART}[kind]
    found = []
    for seed in range(DRAWS):
        chance = np.random.default_rng(seed)
        splits = [split_of(name, size, effects, chance) for name, size in (("dev", DEV), ("held_out", HELD_OUT))]
        found.append(compare_strategies(splits[0], splits[1], can_vote=True, rules=Limits(vote_gap=100)))
    return found


def test_where_groups_differ_the_cascade_of_the_right_groups_is_recommended() -> None:
    for compared in drawn("apart"):
        found = recommend(compared)
        assert found is not None and found.result.strategy == GroupCascade(
            ("a", "b", "c"), ("math", "physics"), ("art", "law")
        )


def test_where_groups_do_not_differ_it_is_not_recommended_over_the_plain_cascade() -> None:
    chosen = [recommend(compared) for compared in drawn("same")]
    names = [each.result.strategy.name for each in chosen if each is not None]
    assert names.count("group_cascade") == 0
    assert names.count("cascade") >= DRAWS - 1


@pytest.mark.parametrize(("kind", "effects"), [("same", SAME), ("apart", APART)])
def test_the_gain_is_on_average_no_more_than_the_true_one(kind: str, effects: dict[str, Effect]) -> None:
    errors = [
        (each.gain.points - true_gain(each.strategy, effects), each.expected_gain - true_gain(each.strategy, effects))
        for compared in drawn(kind)
        for each in compared.results
        if isinstance(each.strategy, GroupCascade)
    ]
    assert bool(errors) == (kind == "apart")
    # A standard error of the mean is 0.3 points.
    assert all(np.mean(own) < 0.3 for own in zip(*errors, strict=True))


def test_it_answers_as_the_vote_in_its_groups_and_as_the_first_member_elsewhere() -> None:
    split = split_of("held_out", 40, APART, np.random.default_rng(0))
    strategy = GroupCascade(("a", "b", "c"), ("math",), ("art", "law", "physics"))
    responses = [split.profiles[name] for name in strategy.members]
    is_in = [example.group == "math" for example in split.task.examples]
    wanted = [pick if own else 0 for pick, own in zip(winners(responses, split.task), is_in, strict=True)]
    picks = strategy.picks(responses, split.task)
    assert picks == wanted
    asked = np.where(is_in, cascade_calls(codes_of(responses)), 1)
    calls = strategy.calls(responses, split.task, picks)
    assert calls.tolist() == [(asked > member).tolist() for member in range(3)]


def test_its_words_name_the_groups() -> None:
    strategy = GroupCascade(("a", "b", "c"), ("math", "physics"), ("law",))
    assert str(strategy) == "Cascade in 2 groups, 3 models"
    assert strategy.headline() == "Run a cascade of three models in 2 groups of questions, and a alone in the others."
    assert strategy.describe().startswith("In the groups math and physics, ask a, b and c in this order, stop")
    assert strategy.list_members(("a", "b", "c")) == "a, then b, then c in math and physics; a alone in all others"
    assert strategy.groups == ("law", "math", "physics")
