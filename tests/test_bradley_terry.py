"""Strengths from matches: against independent computations, and the coverage of the intervals."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import permutations

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from advisor.judge.bradley_terry import bradley_terry
from advisor.judge.prompts import Match


def drawn(
    strengths: dict[str, float], questions: int, seed: int, first: float = 0.0, ties: float = 0.0
) -> Iterator[Match]:
    """Matches of all pairs in both orders, with results drawn from the model; a share of them are ties."""
    generator = np.random.default_rng(seed)
    for question in range(questions):
        for (a, strong), (b, weak) in permutations(strengths.items(), 2):
            wins = generator.random() < expit(strong - weak + first)
            tie = generator.random() < ties
            yield Match(str(question), a, b, 0.5 if tie else float(wins))


def minorized(matches: list[Match], rounds: int = 20_000) -> tuple[dict[str, float], float]:
    """Strengths and home advantage by Hunter's MM algorithm (2004, Annals of Statistics 32, section 3), with one
    imaginary tie of each model against an opponent of worth 1, and one match that the order decides both ways."""
    models = sorted({name for match in matches for name in (match.first, match.second)})
    worth, home = dict.fromkeys(models, 1.0), 1.0
    for _ in range(rounds):
        wins, below = dict.fromkeys(models, 0.5), {model: 1 / (worth[model] + 1) for model in models}
        for match in matches:
            total = home * worth[match.first] + worth[match.second]
            wins[match.first] += match.score
            wins[match.second] += 1 - match.score
            below[match.first] += home / total
            below[match.second] += 1 / total
        new = {model: wins[model] / below[model] for model in models}
        # The imaginary match of the order is one between two equal models.
        home_below = 1 / (home + 1) + sum(
            new[match.first] / (home * new[match.first] + new[match.second]) for match in matches
        )
        new_home = (0.5 + sum(match.score for match in matches)) / home_below
        change = max(abs(new[model] / worth[model] - 1) for model in models) + abs(new_home / home - 1)
        worth, home = new, new_home
        if change < 1e-13:
            break
    middle = np.mean([np.log(each) for each in worth.values()])
    return {model: float(np.log(each) - middle) for model, each in worth.items()}, home


def test_strengths_are_those_of_hunters_algorithm() -> None:
    matches = list(drawn({"a": 1.0, "b": 0.3, "c": -0.4, "d": -0.9}, 6, seed=3, first=0.6, ties=0.2))
    # Uneven matches, so that strengths are not the order of the mean scores.
    matches = [each for n, each in enumerate(matches) if n % 5]
    expected, home = minorized(matches)
    found = bradley_terry(matches, resamples=10)
    assert {each.model: each.log_odds for each in found.strengths} == pytest.approx(expected, abs=1e-6)
    assert found.first_wins == pytest.approx(100 * home / (1 + home), abs=1e-6)


def test_two_models_with_a_match_a_question_have_jeffreys_interval() -> None:
    # Both orders equally often, so that the order takes nothing from the strengths.
    matches = [
        Match(str(n), "a", "b", float(n < 30)) if n % 2 else Match(str(n), "b", "a", float(n >= 30)) for n in range(40)
    ]
    low, high = bradley_terry(matches, resamples=4000).strengths[0].win_rate_ci
    # A win rate counts the tie of a model with itself.
    expected = 25 + 50 * stats.beta(30.5, 10.5).ppf([0.025, 0.975])
    assert (low, high) == pytest.approx(tuple(expected), abs=1)


def test_win_rates_are_the_mean_scores_if_all_meet_equally_often_and_the_order_has_no_effect() -> None:
    matches = list(drawn({"a": 0.8, "b": 0.0, "c": -0.5}, 200, seed=1))
    matches += [Match(each.question, each.second, each.first, 1 - each.score) for each in matches]
    found = bradley_terry(matches, resamples=10)
    assert [each.win_rate for each in found.strengths] == pytest.approx(
        [(50 + 2 * each.score) / 3 for each in found.strengths], abs=0.1
    )
    assert np.mean([each.win_rate for each in found.strengths]) == pytest.approx(50)


@pytest.mark.parametrize("score", [0.0, 1.0, 0.5])
def test_a_model_that_wins_or_loses_everything_has_a_finite_strength_and_an_interval(score: float) -> None:
    matches = [Match(str(n), "a", "b", score) for n in range(20)] + [
        Match(str(n), "b", "a", 1 - score) for n in range(20)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = bradley_terry(matches)
    for each in found.strengths:
        low, high = each.win_rate_ci
        assert np.isfinite(each.log_odds)
        assert 0 <= low < high <= 100
        assert low <= each.win_rate <= high


def test_a_judge_that_always_prefers_the_first_one_says_nothing_about_the_models() -> None:
    matches = [Match(str(n), *order, 1.0) for n in range(30) for order in (("a", "b"), ("b", "a"))]
    found = bradley_terry(matches)
    assert [each.win_rate for each in found.strengths] == pytest.approx([50, 50])
    assert found.first_wins > 98


def test_all_matches_of_a_question_are_resampled_together() -> None:
    """The same verdicts ten times a question: the interval stays as wide as with one verdict a question."""
    once = [Match(str(n), *(("a", "b") if n % 2 else ("b", "a")), float(n % 4 < 2)) for n in range(40)]
    widths = []
    for matches in (once, once * 10):
        low, high = bradley_terry(matches).strengths[0].win_rate_ci
        widths.append(high - low)
    assert widths[1] == pytest.approx(widths[0], rel=0.1)


def test_groups_of_models_that_never_met_are_named() -> None:
    matches = [Match("1", "a", "b", 1.0), Match("1", "c", "d", 0.0), Match("2", "b", "e", 0.5)]
    assert bradley_terry(matches, resamples=10).groups == (("a", "b", "e"), ("c", "d"))


def test_verdicts_that_cannot_be_read_are_left_out() -> None:
    matches = [Match("1", "a", "b", 1.0), Match("1", "b", "a", None)]
    assert [each.matches for each in bradley_terry(matches, resamples=10).strengths] == [1, 1]
    assert bradley_terry([Match("1", "a", "b", None)]).strengths == ()


def test_sets_do_not_change_the_win_rates_of_candidates() -> None:
    matches = list(drawn({"a": 0.5, "b": -0.5, "set": 1.5}, 40, seed=2))
    found = {each.model: each for each in bradley_terry(matches, candidates=["a", "b"], resamples=10).strengths}
    assert found["a"].win_rate == pytest.approx(25 + 50 * expit(found["a"].log_odds - found["b"].log_odds))
    assert found["a"].win_rate + found["b"].win_rate == pytest.approx(100)
    assert found["set"].win_rate > found["a"].win_rate


def test_matches_that_needed_no_judge_say_nothing_about_the_order() -> None:
    matches = [Match(str(n), *order, 1.0) for n in range(10) for order in (("a", "b"), ("b", "a"))]
    equal = [Match(str(n), "a", "b", 0.5) for n in range(10, 100)]
    alone, with_ties = (bradley_terry(matches, settled, resamples=10) for settled in ([], equal))
    assert with_ties.first_wins == pytest.approx(alone.first_wins)
    assert [each.matches for each in with_ties.strengths] == [110, 110]


def test_intervals_cover_the_truth() -> None:
    strengths = {"a": 3.0, "b": 0.5, "c": 0.0, "d": -1.0}
    values = np.array(list(strengths.values()))
    rates = 100 * expit(values[:, None] - values).mean(axis=1)
    truth = dict(zip(strengths, rates, strict=True))
    covered = []
    for seed in range(40):
        found = bradley_terry(list(drawn(strengths, 15, seed, first=0.5)), seed=seed, resamples=200)
        covered += [each.win_rate_ci[0] <= truth[each.model] <= each.win_rate_ci[1] for each in found.strengths]
    assert np.mean(covered) > 0.9


def test_turns_of_one_conversation_do_not_narrow_the_intervals() -> None:
    matches = list(drawn({"a": 0.4, "b": 0.0, "c": -0.2}, 20, seed=5))
    turns = [each._replace(question=f"{each.question}:{turn}") for each in matches for turn in (1, 2)]
    alone, cloned = bradley_terry(matches), bradley_terry(turns, clusters={q: q.split(":")[0] for q, *_ in turns})
    as_questions = bradley_terry(turns)
    for once, twice, narrow in zip(alone.strengths, cloned.strengths, as_questions.strengths, strict=True):
        assert twice.win_rate_ci == pytest.approx(once.win_rate_ci, abs=0.01)
        assert np.ptp(narrow.win_rate_ci) < 0.85 * np.ptp(twice.win_rate_ci)
    assert cloned.first_wins_ci == pytest.approx(alone.first_wins_ci, abs=0.01)
