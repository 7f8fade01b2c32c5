"""The estimate of a gain against slow computations, and its level and coverage in a small simulation."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from test_strategies import by_name, compare_strategies, compared, splits_of

from advisor import select
from advisor.advice.gain import ceiling_of, cross_fitted_gain, repeated_folds
from advisor.run.folder import Run
from advisor.statistics import Floats


def test_the_gain_of_known_answers_is_the_plain_mean_with_the_interval_of_students_t() -> None:
    differences = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], 200, p=[0.1, 0.7, 0.2])
    found = cross_fitted_gain(differences[None])
    assert found.points == pytest.approx(100 * differences.mean())
    # One question more on each side keeps the variance above 0 if no answer changed.
    squares = ((differences - differences.mean()) ** 2).sum() * 200 / 199 + 2
    half = stats.t.isf(0.05, 199) * 100 * math.sqrt(squares) / 200
    assert found.interval() == pytest.approx((found.points - half, found.points + half))
    low, high = cross_fitted_gain(np.zeros((1, 40))).interval()
    assert low < 0 < high


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.3])
def test_the_interval_leaves_out_zero_exactly_where_a_one_sided_test_does(alpha: float) -> None:
    chance = np.random.default_rng(1)
    for seed in range(100):
        found = cross_fitted_gain(
            chance.choice([-1.0, 0.0, 1.0], (1, 80), p=[0.1, 0.8 - 0.002 * seed, 0.1 + 0.002 * seed])
        )
        low, high = found.interval(alpha)
        assert (low > 0) == (found.p_no_gain < alpha)
        assert (high < 0) == (found.p_no_loss < alpha)


# --- Cross-fitting ---


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
    tested = [each for each in compared(dev, judged, learned=True) if each.figures.p_adjusted is not None]
    assert len(tested) >= 2
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
    assert cross_fitted_gain(strategy - single) == cross_fitted_gain((strategy - single)[None])


# --- The ceiling ---


POOLS = Path(__file__).resolve().parents[1].parent / "shared" / "pools"


def right(*rows: str) -> Floats:
    """Scores by their signs: ``++-``."""
    return np.array([[float(sign == "+") for sign in row] for row in rows])


def test_the_ceiling_is_the_share_where_the_best_is_wrong_and_another_one_is_right() -> None:
    found = ceiling_of(right("+++---", "++-+--", "+-----"), (0, 1, 2))
    assert (found.points, found.all_wrong, found.n) == (pytest.approx(100 / 6), pytest.approx(100 / 3), 6)


def test_only_the_strategys_models_count_but_the_best_of_all_is_the_baseline() -> None:
    assert ceiling_of(right("+++---", "++-+--", "++--+-"), (1, 2)).points == pytest.approx(100 / 3)


def test_the_limit_is_clopper_and_pearsons_for_each_model_at_once() -> None:
    scores = right("+" * 90 + "-" * 10, "-" * 90 + "+" * 4 + "-" * 6)
    low, high = ceiling_of(scores, (0, 1)).points_ci
    exact = stats.binomtest(4, 100).proportion_ci(confidence_level=1 - 0.05 / 2, method="exact")
    assert (low, high) == (pytest.approx(100 * exact.low), pytest.approx(100 * exact.high))


def test_a_ceiling_of_nothing_still_has_a_limit() -> None:
    low, high = ceiling_of(right("+" * 50, "+" * 50), (0, 1)).points_ci
    assert low == 0
    assert high == pytest.approx(100 * (1 - (0.025 / 2) ** (1 / 50)))


def test_graded_scores_have_the_wider_limit() -> None:
    scores = right("+" * 40 + "-" * 20, "-" * 40 + "+" * 20)
    graded = scores.copy()
    graded[0, 0] = 0.5
    assert ceiling_of(graded, (0, 1)).points_ci[1] > ceiling_of(scores, (0, 1)).points_ci[1]


def test_questions_in_clusters_count_as_fewer() -> None:
    scores = np.repeat(right("+" * 20 + "-" * 10, "-" * 20 + "+" * 10), 10, axis=1)
    alone = ceiling_of(scores, (0, 1)).points_ci[1]
    whole = ceiling_of(scores, (0, 1), [str(n // 10) for n in range(300)]).points_ci[1]
    thirty = ceiling_of(scores[:, ::10], (0, 1)).points_ci[1]
    assert alone < whole
    assert whole == pytest.approx(thirty, rel=0.05)


@given(st.integers(2, 5), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_no_choice_among_the_answers_gains_more(models: int, questions: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    scores = (chance.random((models, questions)) < chance.random((models, 1))).astype(float)
    chosen = scores[chance.integers(0, models, questions), np.arange(questions)]
    gain = 100 * float((chosen - scores[scores.mean(axis=1).argmax()]).mean())
    found = ceiling_of(scores, range(models))
    assert gain <= found.points + 1e-9
    assert found.points_ci[0] <= found.points <= found.points_ci[1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    if not POOLS.is_dir():
        pytest.skip("../shared/pools is absent")
    folder = tmp_path_factory.mktemp("run") / "lineage"
    select(logs=[str(POOLS / "lineage-2025.jsonl.xz")], out=str(folder), quiet=True)
    return Run(folder)


def test_the_result_has_the_ceiling_of_the_pool_and_of_what_is_recommended(run: Run) -> None:
    advice = json.loads((run.folder / "result.json").read_text(encoding="utf-8"))["advice"]
    lines = [json.loads(line) for line in (run.folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    scores = np.array([[each["score"] for each in line["responses"].values()] for line in lines]).T
    best = scores[scores.mean(axis=1).argmax()]
    assert advice["ceiling"]["n"] == len(lines)
    assert advice["ceiling"]["points"] == pytest.approx(100 * (scores.max(axis=0) - best).mean())
    assert advice["ceiling"]["all_wrong"] == pytest.approx(100 * (scores.max(axis=0) == 0).mean())


def test_no_expected_gain_is_above_the_limit(run: Run) -> None:
    ceiling = run.result.advice.ceiling
    assert ceiling is not None
    for row in run.result.strategies:
        assert row.expected_gain_ci is None or row.expected_gain_ci[1] <= ceiling.points_ci[1] + 1e-9
