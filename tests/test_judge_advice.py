"""Rules and recommendation on win rates, with simulated judges whose truth is known."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from scipy.special import expit

from advisor.judge.bradley_terry import bradley_terry
from benchmarks.judge import MODELS, Setting, advise, matches, shown, verdicts, win_rates


def test_a_lead_in_win_rates_is_no_larger_than_that_in_direct_comparisons() -> None:
    """A gap of g points means at least 50 + g / (1 + g^2) percent of direct comparisons, g as a share."""
    chance = np.random.default_rng(0)
    for _ in range(50):
        strengths = chance.normal(scale=chance.uniform(0.1, 3), size=chance.integers(2, 9))
        rates = expit(strengths[:, None] - strengths).mean(axis=1)
        for a, b in combinations(range(len(strengths)), 2):
            gap = abs(rates[a] - rates[b])
            assert expit(abs(strengths[a] - strengths[b])) >= 0.5 + gap / (1 + gap**2) - 1e-9


def test_simulated_scores_are_the_estimated_win_rates_if_the_order_has_no_effect() -> None:
    """The points of the leaderboard and the win rates of the judge's section are one scale."""
    chance = np.random.default_rng(1)
    found = verdicts(MODELS, Setting(300, 0.0), chance)
    # The same verdict in the other order, so that the place takes nothing.
    found = (found + 1 - found.transpose(0, 2, 1)) / 2
    points = {name: 100 * values.mean() for name, values in win_rates(list(MODELS), found)}
    ranking = bradley_terry(matches(list(MODELS), found), resamples=1)
    for each in ranking.strengths:
        assert abs(each.win_rate - points[each.model]) < 1


def test_the_rules_choose_models_of_nearly_equal_strength() -> None:
    _, _, chosen = advise(0.0, Setting(300, 1.0), np.random.default_rng(2))
    assert chosen[:2] == ("a", "b")
    assert "e" not in chosen


def test_a_set_that_is_no_better_is_seldom_shown_to_gain() -> None:
    assert shown(0.0, Setting(40, 1.0), 15) <= 0.1


def test_a_set_that_wins_most_comparisons_is_shown_and_recommended() -> None:
    is_shown, recommended, _ = advise(1.5, Setting(80, 1.0), np.random.default_rng(3))
    assert (is_shown, recommended) == ("yes", "unite")
