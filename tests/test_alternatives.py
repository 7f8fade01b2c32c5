"""What else to do with a set: when voting and the router are looked at, what they come to, and what is said of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_pipeline import plan_of, run

from advisor.output.result_json import result_of
from advisor.output.terminal import held_out
from advisor.records import Answer, Profile
from advisor.statistics import compare
from advisor.tasks import Task, load_task
from advisor.verify.strategies import compare_strategies, recommend
from ensemble.errors import UniteError

if TYPE_CHECKING:
    from pools import Place

pytest_plugins = ["pools"]

HALF = 40
TOPICS = ("What is the sum of {0} and {0}?", "How old is Ann after {0} years?")


def task_of(place: Place, metric: str = "number") -> tuple[Task, Task]:
    """Two kinds of questions in turn, 40 for each split."""
    numbers = range(2 * HALF)
    questions = [{"question": TOPICS[n % 2].format(n), "answer": str(n)} for n in numbers]
    name = place.task(questions, metric=metric)
    return load_task(name), load_task(name, "held_out")


def profile(model: str, task: Task, right: str, wrong: str = "9") -> Profile:
    """Answers to a task: a character a question, repeated over all of them; R is right."""
    letters = (right * HALF)[:HALF]
    return Profile(
        model,
        tuple(
            Answer(example.id, f"It is {answer}.", answer, float(letter == "R"), "eos")
            for example, letter in zip(task.examples, letters, strict=True)
            for answer in [str(example.reference) if letter == "R" else wrong]
        ),
    )


def members(task: Task, *rights: str) -> list[Profile]:
    """Members a, b, c with wrong answers that differ."""
    return [profile(name, task, right, f"-{n}") for n, (name, right) in enumerate(zip("abc", rights, strict=False))]


def test_a_router_learns_on_dev_who_is_right_at_which_questions(place: Place) -> None:
    dev, test = task_of(place)
    found = compare_strategies(dev, members(dev, "R-", "-R"), test, members(test, "R-", "-R"))
    assert [(one.method, one.comparison.accuracy) for one in found] == [("router", 100)]
    assert found[0].comparison.delta == 50
    said = recommend(found)
    assert said is not None
    assert "a router" in said
    assert "100.0 points" in said
    assert "50.0 more than a alone (p < 0.001)" in said


def test_a_router_that_learnt_what_does_not_hold_is_not_recommended(place: Place) -> None:
    dev, test = task_of(place)
    found = compare_strategies(dev, members(dev, "R-", "-R"), test, members(test, "-R", "R-"))
    assert found[0].comparison.accuracy == 0
    assert found[0].p_adjusted < 0.001
    assert recommend(found) is None


def test_voting_takes_what_most_members_say_and_both_are_corrected_for_each_other(place: Place) -> None:
    dev, test = task_of(place)
    rights = ("RR--R", "R-RR-", "-RRRR")
    found = compare_strategies(dev, members(dev, *rights), test, members(test, *rights))
    assert [one.method for one in found] == ["voting", "router"]
    voting = found[0]
    # Two of three are right on every question but the third and fourth fifths, where a is alone wrong.
    assert voting.comparison.accuracy == 100
    assert len(found) == 2
    assert voting.p_adjusted == pytest.approx(min(1.0, 2 * voting.comparison.p_value))
    assert "a vote" in (recommend(found) or "")
    assert "correction for 2 alternatives" in (recommend(found) or "")


def test_what_is_not_significant_is_not_mentioned(place: Place) -> None:
    dev, test = task_of(place)
    right = "R" * (HALF - 2)
    alone = members(test, right + "-R", right + "R-", "-" + right + "R")
    found = compare_strategies(dev, members(dev, "R", "R", "R"), test, alone)
    assert max(one.comparison.accuracy for one in found) == 100
    assert recommend(found) is None


@pytest.mark.parametrize("metric", ["contains", "bleu"])
def test_there_is_no_vote_where_answers_are_long_or_read_with_the_reference_at_hand(place: Place, metric: str) -> None:
    dev, test = task_of(place, metric)
    rights = ("RR-", "R-R", "-RR")
    assert [one.method for one in compare_strategies(dev, members(dev, *rights), test, members(test, *rights))] == [
        "router"
    ]


def test_two_members_have_no_vote_and_one_has_no_alternative(place: Place) -> None:
    dev, test = task_of(place)
    assert [one.method for one in compare_strategies(dev, members(dev, "R", "-"), test, members(test, "R", "-"))] == [
        "router"
    ]
    assert compare_strategies(dev, members(dev, "R"), test, members(test, "R")) == ()


def test_too_few_dev_questions_leave_the_router_out(place: Place) -> None:
    dev, test = task_of(place)
    few = dataclasses.replace(dev, examples=dev.examples[:10])
    learned = [dataclasses.replace(one, answers=one.answers[:10]) for one in members(dev, "R", "-", "R")]
    assert [one.method for one in compare_strategies(few, learned, test, members(test, "R", "-", "R"))] == ["voting"]


def test_members_of_different_questions_are_refused(place: Place) -> None:
    dev, test = task_of(place)
    mixed = [*members(test, "R")[:1], *members(dev, "R", "R")[1:]]
    with pytest.raises(UniteError, match="different questions"):
        compare_strategies(dev, members(dev, "R", "R"), test, mixed)


def test_a_run_looks_at_the_alternatives_without_decoding_anything_more(place: Place, models: Path) -> None:
    plan = plan_of(place, models, "alpha", "beta", "gamma")
    outcome = run(plan)
    assert outcome.alternatives == ()  # six dev questions, and answers that are read with the reference at hand
    place.task(metric="number")
    plan = dataclasses.replace(plan, dev=load_task("task.yaml"), held_out=load_task("task.yaml", "held_out"))
    outcome = run(plan)
    result = result_of(outcome)
    assert [one["method"] for one in result["alternatives"]] == ["voting"]
    verified = outcome.verified
    assert verified is not None
    assert result["alternatives"][0]["best_single"] == max(member.accuracy for member in verified.members)
    assert held_out(result["ensemble"], result["alternatives"]).row_count == 3 + 1 + 1


def test_an_alternative_is_held_against_the_best_member_as_the_ensemble_is(place: Place) -> None:
    dev, test = task_of(place)
    alone = members(test, "RR--R", "R-RR-", "-RRRR")
    voting = compare_strategies(dev, members(dev, "R", "R", "R"), test, alone)[0]
    assert voting.method == "voting"
    assert voting.comparison == compare(profile("voting", test, "R"), alone)


def test_a_better_model_outside_of_the_set_has_to_be_beaten_too(place: Place) -> None:
    dev, test = task_of(place)
    alone, rival = members(test, "R-", "-R"), profile("outside", test, "R")
    found = compare_strategies(dev, members(dev, "R-", "-R"), test, alone, rivals=[rival])[0]
    assert (found.comparison.best_single, found.comparison.delta) == ("outside", 0)
    assert recommend([found]) is None
