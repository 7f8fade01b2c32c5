"""The estimate of a gain against slow computations, and its level and coverage in a small simulation."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from scipy import stats

from advisor.advice.gain import estimate_gain


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
