"""A race of real models: who is dropped is asked no more, and nothing is compared that was asked other questions."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_pipeline import break_forward, plan_of, run, spoil_ensembles, statuses

from advisor.choose.race import profile_candidates, race_order
from advisor.config import RunConfig
from advisor.jobs.result_json import result_of, samples_of
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.records import Limits
from advisor.response_cache import ResponseCache
from advisor.tasks import load_task
from ensemble.common.schema import written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pools import Place

    from ensemble import Ensemble

pytest_plugins = ["pools"]

QUESTIONS = 48
FIRST = 16
LENIENT = Limits(max_gap=20, max_length_ratio=1e9)


@pytest.fixture
def plan(place: Place, models: Path) -> RunConfig:
    """A race of alpha and others at a task whose right answers are what alpha writes."""
    plan = plan_of(place, models, "alpha", "beta", "gamma", verify=False, rules=LENIENT)
    questions = [{"question": f"What is {n} + {n}?", "answer": "?"} for n in range(2 * QUESTIONS)]
    place.task(questions, metric="exact_match")
    asked = dataclasses.replace(plan, dev=load_task("task.yaml"))
    with ResponseCache(place.cache) as store:
        answers = Profiler(asked, store, Progress(quiet=True)).alone(["alpha"], asked.dev)["alpha"].answers
    for question, answer in zip(questions, answers, strict=False):
        question["answer"] = answer.text
    place.task(questions, metric="exact_match", max_new_tokens=6)
    return dataclasses.replace(plan, dev=load_task("task.yaml"), race=0.05)


def test_a_race_says_that_it_has_dropped_nobody(plan: RunConfig) -> None:
    said: list[str] = []

    class Listener(Progress):
        def say(self, text: str) -> None:
            said.append(text)

    everybody = dataclasses.replace(plan, rules=Limits(max_gap=100))
    with ResponseCache(plan.cache_dir) as store:
        profiler = Profiler(everybody, store, Progress(quiet=True))
        assert not profile_candidates(everybody, profiler, Listener(quiet=True)).rejected
    assert said == [
        "the race has dropped no candidate: before all 48 questions were answered, no gap was certainly over 100 points"
    ]


def test_the_hopeless_are_dropped_after_the_first_round_and_reported_with_what_they_were_asked(plan: RunConfig) -> None:
    outcome = run(plan)
    result = written(result_of(outcome))
    assert statuses(outcome) == {"alpha": "primary", "beta": "rejected", "gamma": "rejected"}
    best, *dropped = result["candidates"]
    assert (best["n"], best["accuracy"], best["reason"][:31]) == (QUESTIONS, 100, "the most accurate of 3 candidat")
    for candidate in dropped:
        assert candidate["n"] == FIRST
        assert "gap" in candidate["reason"]
        assert "length" not in candidate["reason"]
        assert f"after {FIRST} of {QUESTIONS} questions" in candidate["reason"]
        assert (candidate["gap_ci"], candidate["close_call"]) == (None, None)
        assert candidate["accuracy_ci"][0] <= candidate["accuracy"] <= candidate["accuracy_ci"][1]
    assert result["pairs"] == []
    assert result["race"] == {"confidence": 0.95, "responses": QUESTIONS + 2 * FIRST, "of": 3 * QUESTIONS}
    assert "none of the other 2 fits alpha" in result["advice"]["text"]


def test_the_samples_have_the_responses_of_the_dropped_where_there_are_any(plan: RunConfig) -> None:
    samples = [written(each) for each in samples_of(run(plan))]
    assert [sample["id"] for sample in samples] == [example.id for example in plan.dev.examples]
    asked = [sample for sample in samples if "beta" in sample["responses"]]
    first = {plan.dev.examples[place].id for place in race_order(plan.dev)[:FIRST]}
    assert {sample["id"] for sample in asked} == first
    assert all("alpha" in sample["responses"] for sample in samples)
    json.dumps(samples, allow_nan=False)


def test_the_selection_is_that_of_the_full_run_which_goes_on_from_the_race(
    plan: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    raced = run(plan)
    asked: list[int] = []

    def count(names: Sequence[str], ensemble: Ensemble) -> None:
        encode = ensemble.encode
        monkeypatch.setattr(ensemble, "encode", lambda prompt: asked.append(1) or encode(prompt))

    loaded = spoil_ensembles(monkeypatch, count)
    full = run(dataclasses.replace(plan, race=None))
    assert full.selection.selected == raced.selection.selected
    assert loaded == ["beta", "gamma"]
    assert len(asked) == 2 * (QUESTIONS - FIRST)
    assert result_of(full).race is None


def test_whoever_was_behind_one_that_fails_later_races_again(
    plan: RunConfig, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_the_second_time(names: Sequence[str], ensemble: Ensemble) -> None:
        if loaded.count("alpha") == 2 and names == ["alpha"]:
            break_forward(ensemble)

    loaded = spoil_ensembles(monkeypatch, fail_the_second_time)
    outcome = run(dataclasses.replace(plan, cache_dir=place.folder / "another"))
    assert loaded == ["alpha", "beta", "gamma", "alpha", "beta", "gamma"]
    candidates = {each["model"]: each for each in written(result_of(outcome))["candidates"]}
    assert candidates["alpha"]["status"] == "failed"
    assert [candidates[name]["n"] for name in ("beta", "gamma")] == [QUESTIONS, QUESTIONS]


def test_the_order_of_a_race_is_drawn_by_the_seed(plan: RunConfig) -> None:
    order = race_order(plan.dev)
    assert sorted(order) == list(range(QUESTIONS)) != order
    assert race_order(dataclasses.replace(plan.dev, seed=1)) != order
