"""A set that the rules did not choose: which one is put forward, what is said of it, and which sets are run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_pipeline import plan_of, plan_of_pool, run, spoil_ensembles

from advisor.advice.rules import select, with_chosen_set
from advisor.records import Limits, Standing
from advisor.run.result import PredictedFigures
from ensemble.common.schema import written

if TYPE_CHECKING:
    from pools import Place


pytest_plugins = ["pools"]


STANDINGS = [Standing(model, points, 20.0) for model, points in zip("abcd", (80.0, 78.0, 76.0, 60.0), strict=True)]


def test_another_set_has_its_own_primary_and_reasons() -> None:
    greedy = select(STANDINGS, Limits(max_models=2))
    moved = with_chosen_set(greedy, ("b", "c"), STANDINGS, Limits(max_models=2))
    assert moved.selected == ("b", "c")
    assert [d.model for d in moved.decisions] == list("abcd")
    assert [d.status for d in moved.decisions] == ["rejected", "primary", "selected", "rejected"]
    a, b, c, d = (decision.reason for decision in moved.decisions)
    assert "the set with the largest expected gain is one without it" in a
    assert "the most accurate of the set with the largest" in b
    assert c.startswith("its gap to the primary is 2.00 points")
    assert d == greedy.decisions[3].reason


def test_the_greedy_set_leaves_the_selection_as_it_is() -> None:
    greedy = select(STANDINGS, Limits())
    assert with_chosen_set(greedy, ("a", "b", "c"), STANDINGS, Limits()) is greedy


# --- With models ---


def test_sets_are_verified_in_the_order_of_their_predicted_gain(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = dataclasses.replace(plan_of(place, models, "alpha", "beta", "gamma"), set_by="predicted")
    loaded = spoil_ensembles(monkeypatch, lambda *_: None)
    result = written(run(plan))
    sets = result["prediction"]["sets"]
    gains = [one["predicted_gain"] for one in sets]
    assert gains == sorted(gains, reverse=True)
    decoded = [one for one in sets if one["decoded"]]
    assert 1 <= len(decoded) <= 4 and decoded == sets[: len(decoded)]
    assert next(name for name in loaded if "+" in name) == "+".join(sets[0]["models"])
    assert result["selected"] in [one["models"] for one in decoded]


def test_a_decoded_set_has_the_measured_gain_of_its_strategy(place: Place, models: Path) -> None:
    place.task(metric="chrf", reference="abcdefghijklmnopqrstuvwxyz{{answer}}")
    place.pool(*(str(models / name) for name in ("alpha", "beta")))
    result = written(run(plan_of_pool(place)))
    [own] = [row for row in result["strategies"] if row["strategy"] == "unite"]
    [found] = [one for one in result["prediction"]["sets"] if one["decoded"]]
    assert found["measured_gain"] == own["measured_gain"] != result["ensemble"]["difference"]


@pytest.mark.parametrize("gain", [1.0, -1.0])
def test_where_the_rules_leave_one_model_a_promising_set_is_still_verified(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch, gain: float
) -> None:
    promise = PredictedFigures(
        models=("alpha", "beta"), predicted_gain=gain, predicted_gain_ci=(gain - 3, gain + 3), vote=50.0, oracle=60.0
    )
    monkeypatch.setattr("advisor.jobs.held_out.predicted_sets", lambda *_: (promise,))
    plan = plan_of(place, models, "alpha", "beta", rules=Limits(max_models=1))
    result = run(plan)
    assert len(result.selected) == 1
    verified = result.ensemble and tuple(member.model for member in result.ensemble.members)
    assert verified == (("alpha", "beta") if gain > 0 else None)
