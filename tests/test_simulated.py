"""The simulations behind the figures of the advice: what they draw has the truth that they claim."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.studies import _simulated
from benchmarks.studies._simulated import Cell

MANY = 200_000


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("size", [1, 10])
def test_scores_have_exactly_the_means_that_are_asked_for(size: int, graded: bool) -> None:
    chance = np.random.default_rng(0)
    means = np.array([0.3, 0.2, 0.1])
    numbers = _simulated._numbers(3, MANY, 0.5, chance, size)
    found = _simulated._scores(numbers.of_models(), means, graded)
    # Six standard errors; in clusters the scores are alike.
    assert found.mean(axis=1) == pytest.approx(means, abs=6 * np.sqrt(0.25 * size / MANY))


def test_a_set_that_borrows_from_its_members_agrees_more_with_them_and_has_the_same_mean() -> None:
    chance = np.random.default_rng(1)
    numbers = _simulated._numbers(3, MANY, 0.5, chance)
    member = numbers.of_models()[0]
    agreement = []
    for borrowed in (0.0, 0.8):
        together = _simulated._together(numbers, borrowed, chance)
        assert (together.mean(), together.std()) == pytest.approx((0, 1), abs=0.02)
        agreement.append(np.corrcoef(together, member)[0, 1])
    assert agreement[0] == pytest.approx(0.5, abs=0.02)
    assert agreement[1] > 0.6


def test_graded_scores_are_mostly_zero_and_few_are_large() -> None:
    chance = np.random.default_rng(2)
    numbers = _simulated._numbers(1, MANY, 0.5, chance)
    scores = _simulated._scores(numbers.of_models(), np.array([0.15]), True)
    assert (scores == 0).mean() > 0.5
    assert scores.max() > 0.95


def test_questions_of_a_cluster_share_half_and_others_nothing() -> None:
    numbers = _simulated._numbers(1, MANY, 0.5, np.random.default_rng(3), 5).of_models()[0].reshape(-1, 5)
    assert np.corrcoef(numbers[:, 0], numbers[:, 4])[0, 1] == pytest.approx(0.5, abs=0.03)
    assert np.corrcoef(numbers[:-1, 4], numbers[1:, 0])[0, 1] == pytest.approx(0, abs=0.03)


def test_a_vote_with_two_tied_models_gains_exactly_nothing() -> None:
    scores = _simulated.voters(3, MANY, 0.65, np.random.default_rng(4), alike=0.3)
    gains = _simulated.majority(scores) - scores[0]
    # Five standard errors.
    assert gains.mean() == pytest.approx(0, abs=5 * gains.std() / np.sqrt(MANY))
    assert gains.std() > 0.3


def test_a_draw_has_a_p_value_for_no_gain_and_an_interval_for_both_gains() -> None:
    found = _simulated.draw_cell(Cell("near", 20, 5, True), 6, 0)
    assert (len(found.p_values), len(found.covered), len(found.covered_90)) == (6, 12, 12)
    assert not (found.covered_90 & ~found.covered).any()


@pytest.mark.parametrize("size", [1, 5])
def test_a_vote_that_is_chosen_and_judged_by_all_labels_is_seldom_shown_falsely(size: int) -> None:
    assert float((_simulated.draw_all_asked(200, 300, 0, size=size) <= 0.05).mean()) < 0.09
