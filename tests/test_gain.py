"""The estimate of a gain against slow computations, and its level and coverage in a small simulation."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from test_strategies import by_name, compare_strategies, compared, splits_of

from advisor import select
from advisor.advice.drift import paired_gain
from advisor.advice.gain import ceiling_of, cross_fitted_gain, estimate_gain, repeated_folds
from advisor.run.folder import Run
from advisor.statistics import Floats


def drawn(accuracies: list[float], questions: int, seed: int, size: int = 1) -> np.ndarray:
    """Who is right at which question: models by questions. The questions of a cluster of a size are alike."""
    chance = np.random.default_rng(seed)
    shared = chance.standard_normal(questions)
    own = chance.standard_normal((len(accuracies), questions))
    if size > 1:
        clusters = np.arange(questions) // size
        shared = (shared + chance.standard_normal(questions)[clusters]) / np.sqrt(2)
        own = (own + chance.standard_normal((len(accuracies), questions))[:, clusters]) / np.sqrt(2)
    return ((shared + own) / np.sqrt(2) < stats.norm.ppf(accuracies)[:, None]).astype(float)


def test_shares_come_from_all_questions_and_rates_from_those_that_the_strategy_answered() -> None:
    scores = drawn([0.65, 0.6, 0.55], 400, 1)
    strategy, singles = scores[0], scores[1:]
    answered = np.arange(400) >= 200
    by_pattern: dict[tuple[float, ...], list[float]] = defaultdict(list)
    for question in range(200, 400):
        by_pattern[tuple(singles[:, question])].append(strategy[question])
    wanted = 0.0
    for question in range(400):
        pattern = tuple(singles[:, question])
        own = by_pattern[pattern]
        prior = (sum(pattern) + 0.5) / 3
        rate = (sum(own) + prior) / (len(own) + 1)
        wanted += (strategy[question] if answered[question] else rate) - singles[0, question]
    found = estimate_gain(singles, strategy[answered], answered)
    # The correction for hindsight is small where one model is clearly the best.
    assert found.points == pytest.approx(100 * wanted / 400, abs=0.3)
    assert (found.questions, found.answered) == (400, 200)


def test_the_gain_of_known_answers_is_the_plain_mean() -> None:
    for seed in range(5):
        scores = drawn([0.95, 0.94, 0.93, 0.6], 80, seed)
        strategy, singles = scores[0], scores[1:]
        best = singles[singles.mean(axis=1).argmax()]
        found = estimate_gain(singles, strategy, np.ones(80, bool))
        assert found.observed == pytest.approx(100 * (strategy - best).mean())


def test_a_strategy_that_equals_the_best_model_gains_nothing() -> None:
    singles = drawn([0.7, 0.5], 300, 2)
    found = estimate_gain(singles, singles[0], np.ones(300, bool))
    assert abs(found.points) < 1
    low, high = found.interval()
    assert low < 0 < high
    assert found.p_no_gain > 0.3


def test_graded_scores_are_estimated_by_regression() -> None:
    chance = np.random.default_rng(3)
    singles = chance.beta(2, 3, (3, 600))
    strategy = np.clip(singles.mean(axis=0) + 0.1 + 0.05 * chance.standard_normal(600), 0, 1)
    answered = np.arange(600) % 2 == 0
    found = estimate_gain(singles, strategy[answered], answered)
    truth = 100 * (strategy.mean() - singles.mean(axis=1).max())
    assert found.points == pytest.approx(truth, abs=1.0)
    paired = (strategy - singles[singles.mean(axis=1).argmax()])[answered]
    half = 1.96 * paired.std(ddof=1) / np.sqrt(len(paired))
    low, high = found.interval(0.025)
    assert high - low < 200 * half


@pytest.mark.parametrize(("size", "questions"), [(1, 200), (5, 300), (10, 400)])
def test_the_level_and_the_coverage_hold(size: int, questions: int) -> None:
    # 400 draws each: a rate of 5% is seen as 8% or less with 99.6%, and a coverage of 95% as 91.5% or more.
    false, covered = 0, 0
    for seed in range(400):
        gain = 0.0 if seed % 2 else 0.05
        scores = drawn([0.6 + gain, 0.6, 0.58, 0.52], questions, seed, size)
        answered = np.arange(questions) >= questions // 2
        clusters = None if size == 1 else [str(n // size) for n in range(questions)]
        found = estimate_gain(scores[1:], scores[0][answered], answered, clusters)
        low, high = found.interval(0.025)
        covered += low <= 100 * gain <= high
        false += not gain and found.p_no_gain <= 0.05
    assert false / 200 <= 0.085
    assert covered / 400 >= 0.915


def test_patterns_show_a_gain_more_often_than_the_paired_test() -> None:
    by_patterns, by_pairs = 0, 0
    for seed in range(200):
        scores = drawn([0.66, 0.6, 0.55, 0.52], 600, seed)
        answered = np.arange(600) >= 300
        by_patterns += estimate_gain(scores[1:], scores[0][answered], answered).p_no_gain <= 0.05
        differences = (scores[0] - scores[1])[answered]
        gained, lost = int((differences > 0).sum()), int((differences < 0).sum())
        by_pairs += stats.binomtest(gained, gained + lost).pvalue <= 0.05 and gained > lost
    assert by_patterns > 1.3 * by_pairs


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.3])
def test_the_interval_leaves_out_zero_exactly_where_a_one_sided_test_does(alpha: float) -> None:
    for seed in range(200):
        scores = drawn([0.66 - 0.001 * seed, 0.6, 0.6], 200, seed)
        found = estimate_gain(scores[1:], scores[0], np.ones(200, bool))
        low, high = found.interval(alpha)
        assert (low > 0) == (found.p_no_gain < alpha)
        assert (high < 0) == (found.p_no_loss < alpha)


def test_hindsight_is_corrected_in_part_where_models_are_tied() -> None:
    # The first model is as good as the best one; against the luckiest one it seems to lose over 3 points.
    found = []
    for seed in range(300):
        singles = drawn([0.6] * 6, 200, seed)
        found.append(estimate_gain(singles, singles[0], np.ones(200, bool)))
    observed, corrected = (np.mean([getattr(each, name) for each in found]) for name in ("observed", "points"))
    assert observed < -3
    assert 0.6 * observed < corrected < 0


def test_equal_answers_have_an_interval_with_a_width() -> None:
    singles = np.ones((3, 40))
    low, high = estimate_gain(singles, np.ones(40), np.ones(40, bool)).interval()
    assert low < 0 < high


def chosen_voters(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Voters, their vote and the dev scores of the other models: the best 3 of 8 on 300 dev questions.

    One model is better than seven tied ones by as much as makes a vote with two of them exactly as good as it.
    """
    chance = np.random.default_rng(seed)
    accuracies = np.array([0.36 / 0.52, *[0.6] * 7])
    scores = (chance.random((8, 600)) < accuracies[:, None]).astype(float)
    ranked = np.argsort(-scores[:, :300].mean(axis=1), kind="stable")
    voters = scores[ranked[:3]]
    return voters, (voters.sum(axis=0) > 1.5).astype(float), scores[ranked[3:], :300]


def test_members_that_were_lucky_on_dev_do_not_break_the_level() -> None:
    # Of 600 draws, a rate of 5% is seen as 7.5% or less with 99.6%.
    unaware, aware = 0, 0
    for seed in range(600):
        voters, vote, passed_over = chosen_voters(seed)
        everywhere = np.ones(600, bool)
        unaware += estimate_gain(voters, vote, everywhere).p_no_gain <= 0.05
        aware += estimate_gain(voters, vote, everywhere, passed_over=passed_over).p_no_gain <= 0.05
    assert unaware / 600 > 0.1
    assert aware / 600 <= 0.075


def test_candidates_far_behind_do_not_change_the_estimate() -> None:
    scores = drawn([0.65, 0.6, 0.55, 0.1, 0.05], 600, 4)
    answered = np.arange(600) >= 300
    alone = estimate_gain(scores[1:3], scores[0][answered], answered)
    found = estimate_gain(scores[1:3], scores[0][answered], answered, passed_over=scores[3:, :300])
    assert (found.observed, found.error) == pytest.approx((alone.observed, alone.error))


def test_single_models_that_are_not_members_were_not_chosen() -> None:
    scores = drawn([0.65, 0.6, 0.55, 0.1, 0.2], 600, 5)
    answered = np.arange(600) >= 300
    found = [
        estimate_gain(scores[1:4], scores[0][answered], answered, members=members, passed_over=scores[4:, :300]).error
        for members in (2, None)
    ]
    # The third model is worse than the one that was passed over, so as a member it would have been chosen by a tie.
    assert found[0] < found[1]


def test_after_a_close_choice_dev_counts_little() -> None:
    changed = []
    for seed in range(200):
        voters, vote, passed_over = chosen_voters(seed)
        found = estimate_gain(voters, vote, np.ones(600, bool), passed_over=passed_over)
        changed.append((found.observed, found.error))
        held_out = estimate_gain(voters[:, 300:], vote[300:], np.ones(300, bool))
        everywhere = estimate_gain(voters, vote, np.ones(600, bool))
        assert everywhere.error < found.error < 1.1 * held_out.error
    # The true gain is 0; without the correction the mean is above 1.
    assert np.mean(changed, axis=0)[0] == pytest.approx(0, abs=0.5)


def test_the_shares_have_the_freedom_of_all_clusters() -> None:
    scores = drawn([0.65, 0.6, 0.55], 400, 6, 10)
    clusters = np.arange(400) // 10
    few = np.arange(400) >= 350
    found = estimate_gain(scores[1:], scores[0][few], few, clusters)
    assert 4 < found.freedom < 39
    everywhere = estimate_gain(scores[1:], scores[0], np.ones(400, bool), clusters)
    assert everywhere.freedom == pytest.approx(39)


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
