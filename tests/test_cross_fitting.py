"""Cross-fitting: what chooses a question's answer, what is measured, and over which model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_strategies import by_name, compared, splits_of

from advisor.advice.comparison import compare_strategies
from advisor.advice.drift import paired_gain
from advisor.advice.gain import cross_fitted_gain, repeated_folds


@pytest.mark.parametrize("held_out", [["12"], ["12", "11"], ["12", "31", "13"]])
def test_a_correction_lowers_no_p_value(held_out: list[str]) -> None:
    """Also where strategies take the same responses on the held-out questions, and others on dev."""
    chance = np.random.default_rng(8)
    accuracies = {"a": 0.6, "b": 0.5, "c": 0.5, "d": 0.55, "e": 0.5}
    dev = {
        name: "".join(np.where(chance.random(40) < p, "1", chance.choice(list("23"), 40)))
        for name, p in accuracies.items()
    }
    judged = {name: held_out[place % len(held_out)] for place, name in enumerate(dev)}
    tested = [each for each in compared(dev, judged) if each.figures.p_adjusted is not None]
    assert len(tested) >= 3
    assert [
        (str(each), each.figures.p_adjusted) for each in tested if each.figures.p_adjusted < each.gain.p_no_gain
    ] == []


@given(st.lists(st.integers(0, 12), min_size=2, max_size=60))
def test_the_questions_of_a_cluster_are_in_one_fold(clusters: list[int]) -> None:
    labels = [str(each) for each in clusters]
    for folds in repeated_folds(len(labels), labels):
        assert all(len({fold for fold, own in zip(folds, labels, strict=True) if own == each}) == 1 for each in labels)


def test_one_cluster_has_no_folds() -> None:
    assert list(repeated_folds(5, ["a"] * 5)) == []


def test_all_labels_choose_the_voters_also_those_that_were_held_out() -> None:
    # On dev alone, c is far behind.
    dev, held_out = {"a": "1", "b": "1112", "c": "1222"}, {"a": "2221", "b": "1112", "c": "1"}
    found = compare_strategies(*splits_of(dev, held_out), can_vote=True).results
    assert {"a", "b", "c"} in [set(each.strategy.members) for each in found if each.strategy.name == "vote"]
    assert all(each.figures.cross_fitted for each in found)


def test_no_question_judges_a_choice_that_it_took_part_in() -> None:
    # Which model is good in which group is luck, so a router gains only by knowing the answers.
    gains = []
    for seed in range(30):
        chance = np.random.default_rng(seed)
        splits = [{name: "".join(chance.choice(["1", "2"], 40)) for name in "ab"} for _ in range(2)]
        found = by_name(compared(*splits, groups="vwxyz"))
        gains += [each.gain.points for name, each in found.items() if name.startswith("group_router")]
    assert len(gains) > 15
    assert np.mean(gains) < 4


def test_a_choice_that_varies_makes_the_interval_wider() -> None:
    steady = np.tile(np.array([1.0, 0.0, -1.0, 0.0, 1.0]), (4, 20))
    varying = steady.copy()
    varying[::2] = np.roll(steady[::2], 1, axis=1)
    assert cross_fitted_gain(varying).points == pytest.approx(cross_fitted_gain(steady).points)
    plain = cross_fitted_gain(varying.mean(axis=0)[None]).error
    assert cross_fitted_gain(varying).error > plain
    assert cross_fitted_gain(steady).error == pytest.approx(cross_fitted_gain(steady[:1]).error)


def test_what_was_named_before_is_compared_pair_by_pair() -> None:
    strategy, single = np.array([1.0, 1, 0, 1, 1]), np.array([1.0, 0, 0, 1, 0])
    assert paired_gain(strategy, single) == cross_fitted_gain((strategy - single)[None])
