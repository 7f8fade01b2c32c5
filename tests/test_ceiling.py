"""The ceiling: no strategy that takes a model's answer gains more, and its limit holds as often as it says."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from advisor import select
from advisor.advice.gain import ceiling_of
from advisor.run.folder import Run
from advisor.statistics import Floats

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


def test_the_limit_holds_for_the_model_that_is_chosen_by_the_same_questions() -> None:
    chance, held, draws = np.random.default_rng(0), 0, 400
    for _ in range(draws):
        # Eight equally good models, the hardest case: the one that is chosen was the luckiest.
        shared = chance.normal(size=100)
        scores = (0.7 * shared + math.sqrt(0.51) * chance.normal(size=(8, 100)) < 0.5).astype(float)
        truth = 100 * (_any_right() - stats.norm.cdf(0.5))
        held += truth <= ceiling_of(scores, range(8)).points_ci[1]
    assert held / draws >= 0.95


def _any_right() -> float:
    """The probability that one of the eight models is right, by numbers."""
    shared = np.linspace(-6, 6, 2001)
    wrong = stats.norm.sf((0.5 - 0.7 * shared) / math.sqrt(0.51)) ** 8
    return 1 - float(np.trapezoid(wrong * stats.norm.pdf(shared), shared))


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


def test_the_report_says_what_is_possible(run: Run) -> None:
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    ceiling = run.result.advice.ceiling
    assert ceiling is not None
    most = f"{ceiling.points_ci[1]:.1f} points over the best single model (95%;"
    assert f"No vote or router of these models can gain more than {most}" in page
    assert ceiling.all_wrong == 0
    assert "On each question at least one model is right." in page
