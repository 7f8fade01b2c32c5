"""Racing: nobody who fits is dropped more often than the alpha says, and the hopeless are dropped early."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.choose.race import FIRST_ROUND, Race, log_wealth
from advisor.choose.rules import select
from advisor.records import ALPHA, Limits, Standing
from advisor.statistics import Floats

QUESTIONS = 300
RULES = Limits()


def answers(*accuracies: float, questions: int = QUESTIONS, seed: int = 0) -> Floats:
    """Models by questions, with exactly these accuracies in points, right where the question is easy for all."""
    generator = np.random.default_rng(seed)
    easy = generator.standard_normal(questions)
    scores = np.zeros((len(accuracies), questions))
    for model, points in enumerate(accuracies):
        easiest = np.argsort(easy + generator.standard_normal(questions))
        scores[model, easiest[: round(points * questions / 100)]] = 1
    return scores


def reshuffles(count: int, questions: int = QUESTIONS) -> list[np.ndarray]:
    generator = np.random.default_rng(1)
    return [generator.permutation(questions) for _ in range(count)]


def race(scores: Floats, rules: Limits, alpha: float = ALPHA, order: np.ndarray | None = None) -> Race:
    """A race on known scores; without an order, the questions come as they are."""
    ordered = scores if order is None else scores[:, order]
    models, questions = ordered.shape
    running = Race(models, questions, rules.max_gap, alpha)
    while places := running.next_round:
        running.record({model: ordered[model, places.start : places.stop].tolist() for model in running.running})
    return running


def asked(raced: Race, scores: Floats) -> tuple[int, ...]:
    """The number of questions that each candidate answered."""
    dropped = {drop.model: drop.questions for drop in raced.drops}
    return tuple(dropped.get(model, scores.shape[1]) for model in range(len(scores)))


def chosen(scores: Floats, running: tuple[int, ...]) -> tuple[str, ...]:
    """The set of the full run, among those who were asked everything."""
    return select([Standing(f"m{m}", 100 * float(scores[m].mean()), 1.0) for m in running], RULES).selected


# --- What it saves, and what it must not cost ---


def test_the_same_set_in_200_reshuffles_and_a_third_of_the_responses_of_the_hopeless_half() -> None:
    scores = answers(65, 64, 62, 20, 20, 20)
    full = chosen(scores, tuple(range(6)))
    races = [race(scores, RULES, order=order) for order in reshuffles(200)]
    assert sum(chosen(scores, raced.running) == full for raced in races) >= 190
    counts = [asked(raced, scores) for raced in races]
    assert all(count[:3] == (QUESTIONS,) * 3 for count in counts)
    hopeless = np.array([count[3:] for count in counts]) / QUESTIONS
    assert hopeless.mean() < 0.25  # far below a third
    assert np.mean([sum(count) / (6 * QUESTIONS) for count in counts]) == pytest.approx((1 + hopeless.mean()) / 2)


def test_a_candidate_that_is_just_within_the_gap_is_dropped_no_more_often_than_the_level_says() -> None:
    scores = answers(60, 50, questions=100)
    wrong = sum(bool(race(scores, RULES, 0.5, order).drops) for order in reshuffles(400, 100))
    assert 0 < wrong <= 200  # the bets are against a claim that is true, and a alpha of a half lets some through
    assert sum(bool(race(scores, RULES, 0.05, order).drops) for order in reshuffles(400, 100)) <= 20


def test_the_wealth_of_a_bet_against_what_is_true_is_1_on_average_without_replacement() -> None:
    # A tiny population, all orders of which can be tried: the martingale itself, not a bound on it.
    population = np.array([1.0, 1.0, 0.0, -1.0, -1.0, 0.5])
    orders = np.array(list(itertools.permutations(range(6))))
    wealth = np.exp(log_wealth(population[orders], float(population.mean()), 6))
    mean = wealth.mean(axis=0)
    assert mean[:4] == pytest.approx(1)
    assert (mean[4:] < 1 + 1e-9).all()  # where the rest is certain, nothing is bet on it, or lost


@settings(deadline=None, max_examples=25)
@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), min_size=1, max_size=40), st.integers(0, 20))
def test_wealth_is_infinite_only_where_the_claim_is_refuted_whatever_the_rest_brings(
    seen: list[float], more: int
) -> None:
    questions, limit = len(seen) + more, 0.1
    refuted = [sum(seen[:t]) - (questions - t) > questions * limit + 1e-9 for t in range(1, len(seen) + 1)]
    infinite = np.isinf(log_wealth(np.array([seen]), limit, questions)[0]).all(axis=1)
    assert infinite.tolist() == refuted


def test_the_bound_is_below_the_gap_on_all_questions() -> None:
    scores = answers(70, 20, 30)
    true = 100 * (scores[0].mean() - scores.mean(axis=1))
    drops = [drop for order in reshuffles(40) for drop in race(scores, RULES, order=order).drops]
    assert len(drops) == 80
    assert all(RULES.max_gap < drop.bound <= true[drop.model] for drop in drops)
    assert all(drop.bound < drop.gap for drop in drops)


# --- How it goes ---


def test_rounds_double_and_the_last_takes_what_is_left() -> None:
    running, rounds = Race(2, 300, max_gap=10), []
    while places := running.next_round:
        rounds.append(len(places))
        running.record(dict.fromkeys(running.running, [1.0] * len(places)))
    assert rounds == [FIRST_ROUND, 16, 32, 64, 172]
    assert (sum(rounds), running.drops) == (300, ())


def test_a_candidate_that_is_left_alone_is_asked_the_rest_at_once() -> None:
    scores = np.array([[1.0] * 300, [0.0] * 300])
    raced = race(scores, RULES)
    assert asked(raced, scores) == (300, FIRST_ROUND)
    assert raced.running == (0,)


@pytest.mark.parametrize("questions", [1, 5, FIRST_ROUND, 24])
def test_with_few_questions_everybody_is_asked_all_of_them(questions: int) -> None:
    scores = np.array([[1.0] * questions, [0.0] * questions])
    raced = race(scores, RULES)
    assert asked(raced, scores) == (questions, questions)
    assert raced.drops == ()


def test_ties_and_a_single_candidate_drop_nobody() -> None:
    for scores in (np.ones((5, 300)), np.zeros((5, 300)), np.ones((1, 300))):
        raced = race(scores, RULES)
        assert raced.drops == ()
        assert asked(raced, scores) == (scores.shape[1],) * len(scores)


def test_a_gap_of_100_points_drops_nobody() -> None:
    assert race(np.array([[1.0] * 300, [0.0] * 300]), Limits(max_gap=100)).drops == ()


def test_graded_scores_race_too() -> None:
    generator = np.random.default_rng(0)
    scores = np.stack([generator.beta(8, 4, 300), generator.beta(8, 4, 300), generator.beta(2, 8, 300)])
    raced = race(scores, RULES)
    assert [drop.model for drop in raced.drops] == [2]
    assert asked(raced, scores)[2] < 100
