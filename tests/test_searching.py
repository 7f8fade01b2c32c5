"""A set that the rules did not choose: which one is put forward, what is said of it, and which sets are run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_pipeline import LENIENT, plan_of, plan_of_pool, run, spoil_ensembles, statuses

from advisor.advice.predict import PredictedSet, Prediction
from advisor.advice.search import best_of, sentence, with_chosen_set
from advisor.choose.rules import select
from advisor.jobs.result_json import result_of, samples_of
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.records import Limits, Standing
from advisor.response_cache import ResponseCache
from advisor.tasks import load_task
from ensemble.common.schema import written
from ensemble.errors import MemberError

if TYPE_CHECKING:
    from pools import Place

    from ensemble import Ensemble

pytest_plugins = ["pools"]


def prospect(models: str, rules: bool = False) -> PredictedSet:
    return PredictedSet(tuple(models), Prediction(1.0, 2.0), 50.0, 60.0, rules)


def decoded(models: str, accuracy: float | None, rules: bool = False) -> PredictedSet:
    return dataclasses.replace(prospect(models, rules=rules), accuracy=accuracy)


# --- What is put forward ---


def test_the_best_on_dev_is_put_forward_and_the_greedy_set_where_it_is_as_good() -> None:
    greedy, other = decoded("ab", 70.0, rules=True), decoded("ac", 70.0)
    assert best_of([greedy, other]) is greedy
    better = dataclasses.replace(other, accuracy=70.1)
    assert best_of([greedy, better]) is better
    assert best_of([dataclasses.replace(greedy, accuracy=None), other]) is other


def test_where_no_set_can_be_decoded_none_is_found() -> None:
    assert best_of([decoded("ab", None, rules=True)]) is None
    assert best_of([]) is None


STANDINGS = [Standing(model, points, 20.0) for model, points in zip("abcd", (80.0, 78.0, 76.0, 60.0), strict=True)]


def test_another_set_has_its_own_primary_and_reasons() -> None:
    greedy = select(STANDINGS, Limits(max_models=2))
    moved = with_chosen_set(greedy, ("b", "c"), STANDINGS, Limits(max_models=2), "search")
    assert moved.selected == ("b", "c")
    assert [d.model for d in moved.decisions] == list("abcd")
    assert [d.status for d in moved.decisions] == ["rejected", "primary", "selected", "rejected"]
    a, b, c, d = (decision.reason for decision in moved.decisions)
    assert "the set that did best on the dev questions when decoded is one without it" in a
    assert "the most accurate of the set that did best" in b
    assert c.startswith("its gap to the primary is 2.00 points")
    assert d == greedy.decisions[3].reason


def test_the_greedy_set_leaves_the_selection_as_it_is() -> None:
    greedy = select(STANDINGS, Limits())
    assert with_chosen_set(greedy, ("a", "b", "c"), STANDINGS, Limits(), "search") is greedy


def test_the_sentence_says_what_was_compared_where() -> None:
    tried = [decoded("ab", 70.0, rules=True), decoded("ac", 71.5), decoded("bc", None)]
    single = dataclasses.replace(STANDINGS[0], accuracy=70.5)
    assert sentence(tried, tried[1], single, 300) == (
        "A search found this set, the best of 2 that were decoded: 71.5 points on the 300 dev questions; the rules' "
        "own choice, a and b, 70.0."
    )
    assert sentence(tried, tried[0], single, 300) == (
        "The rules' own choice was the best of the 2 sets decoded in a search: 70.0 points on the 300 dev questions; "
        "a alone scores 70.5."
    )


# --- With models ---


def test_a_search_decodes_sets_on_dev_and_one_on_the_held_out_questions(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = dataclasses.replace(plan_of(place, models, "alpha", "beta", "gamma"), set_by="search", max_decoded_sets=3)
    loaded = spoil_ensembles(monkeypatch, lambda *_: None)
    outcome = run(plan)
    result = written(result_of(outcome))
    sets = result["prediction"]["sets"]
    tried = [one for one in sets if one["dev_accuracy"] is not None]
    assert len(tried) == 3 and sum(one["rules"] for one in tried) == 1
    (verified,) = [one for one in sets if one["measured_gain"] is not None]
    assert verified["models"] == result["selected"]
    assert result["ensemble"] is not None
    together = [name for name in loaded if "+" in name]
    assert len(together[0].split("+")) == 3, "the set of the rules is decoded first"
    assert {*together[:3]} == {"+".join(one["models"]) for one in tried}
    assert "sets decoded in a search" in result["advice"]["text"] or "A search found" in result["advice"]["text"]


def test_a_set_that_is_better_on_dev_is_put_forward_and_verified(place: Place, models: Path) -> None:
    plan = dataclasses.replace(plan_of(place, models, "alpha", "beta", "gamma"), set_by="search", max_decoded_sets=4)
    with ResponseCache(place.cache) as store:
        profiler = Profiler(plan, store, Progress(quiet=True))
        order = select(
            [profile.standing for profile in profiler.alone(["alpha", "beta", "gamma"], plan.dev).values()],
            LENIENT,
        ).selected
        wanted = order[1:]
        answers = [answer.text for answer in profiler.together(wanted, plan.dev).answers]
    # Now what this set writes is right.
    questions = [{"question": f"What is {n} + {n}?", "answer": "?"} for n in range(1, 13)]
    for question, answer in zip(questions, answers, strict=False):
        question["answer"] = answer
    place.task(questions, metric="exact_match")
    plan = dataclasses.replace(plan, dev=load_task("task.yaml"), held_out=load_task("task.yaml", "held_out"))
    outcome = run(plan)
    result = written(result_of(outcome))
    assert result["selected"] == list(wanted)
    assert statuses(outcome)[wanted[0]] == "primary"
    put = [one for one in result["prediction"]["sets"] if one["models"] == list(wanted)]
    assert [one["dev_accuracy"] for one in put] == [100]
    assert [member["model"] for member in result["ensemble"]["members"]] == list(wanted)
    assert outcome.verified is not None
    best = next(one["models"] for one in result["prediction"]["sets"] if one["rules"])[0]
    lines = [line for line in map(written, samples_of(outcome)) if line["split"] == "held_out"]
    assert {*lines[0]["responses"]} == {*wanted, best}, "the best candidate is compared with the set, too"
    assert "A search found this set, the best of 4" in result["advice"]["text"]
    assert "No other set was compared on held-out questions" in result["advice"]["text"]


def test_a_set_that_cannot_be_run_is_listed_with_its_reason(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_three(names: Sequence[str], ensemble: Ensemble) -> None:
        if len(names) == 3:
            raise MemberError("not enough memory for three")

    spoil_ensembles(monkeypatch, fail_three)
    plan = dataclasses.replace(
        plan_of(place, models, "alpha", "beta", "gamma", verify=False), set_by="search", max_decoded_sets=2
    )
    sets = written(result_of(run(plan)))["prediction"]["sets"]
    failed = next(one for one in sets if one["rules"])
    assert (failed["dev_accuracy"], failed["error"]) == (None, "not enough memory for three")
    assert [one["dev_accuracy"] for one in sets if one["dev_accuracy"] is not None] == [0]


def test_sets_are_verified_in_the_order_of_their_predicted_gain(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = dataclasses.replace(plan_of(place, models, "alpha", "beta", "gamma"), set_by="predicted", max_decoded_sets=2)
    loaded = spoil_ensembles(monkeypatch, lambda *_: None)
    outcome = run(plan)
    sets = written(result_of(outcome))["prediction"]["sets"]
    gains = [one["predicted_gain"] for one in sets]
    assert gains == sorted(gains, reverse=True)
    decoded = [one for one in sets if one["decoded"]]
    assert 1 <= len(decoded) <= 2 and decoded == sets[: len(decoded)]
    assert next(name for name in loaded if "+" in name) == "+".join(sets[0]["models"])
    assert written(result_of(outcome))["selected"] in [one["models"] for one in decoded]


def test_a_decoded_set_has_the_measured_gain_of_its_strategy(place: Place, models: Path) -> None:
    place.task(metric="chrf", reference="abcdefghijklmnopqrstuvwxyz{{answer}}")
    place.pool(*(str(models / name) for name in ("alpha", "beta")))
    result = written(result_of(run(plan_of_pool(place))))
    [own] = [row for row in result["strategies"] if row["strategy"] == "unite"]
    [found] = [one for one in result["prediction"]["sets"] if one["decoded"]]
    assert found["measured_gain"] == own["measured_gain"] != result["ensemble"]["difference"]


def test_the_interval_of_a_prediction_has_the_level_of_the_run(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promise = PredictedSet(("alpha", "beta"), Prediction(1.0, 2.0), 50.0, 60.0, rules=True)
    monkeypatch.setattr("advisor.jobs.held_out.predicted_sets", lambda *_: (promise,))
    plan = dataclasses.replace(plan_of(place, models, "alpha", "beta", verify=False), confidence=0.4)
    [found] = written(result_of(run(plan)))["prediction"]["sets"]
    assert found["predicted_gain_ci"] == list(Prediction(1.0, 2.0).interval(0.3))


@pytest.mark.parametrize("gain", [1.0, -1.0])
def test_where_the_rules_leave_one_model_a_promising_set_is_still_verified(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch, gain: float
) -> None:
    promise = PredictedSet(("alpha", "beta"), Prediction(gain, 2.0), 50.0, 60.0, rules=False)
    monkeypatch.setattr("advisor.jobs.held_out.predicted_sets", lambda *_: (promise,))
    plan = plan_of(place, models, "alpha", "beta", rules=Limits(max_models=1))
    outcome = run(plan)
    assert len(outcome.selection.selected) == 1
    verified = None if outcome.verified is None else outcome.verified.models
    assert verified == (("alpha", "beta") if gain > 0 else None)
