"""The statistics, against published numbers and other implementations, and the comparison that is made with them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from advisor.records import Answer, Profile
from advisor.statistics import (
    accuracy_interval,
    bonett_price,
    compare,
    mcnemar,
    paired_intervals,
    questions_needed,
    sign_flip,
)
from ensemble.errors import UniteError


def profile(model: str, scores: Sequence[float] | np.ndarray, lengths: list[int] | None = None) -> Profile:
    lengths = lengths if lengths is not None else [1] * len(scores)
    pairs = enumerate(zip(scores, lengths, strict=True))
    return Profile(
        model, tuple(Answer(f"q{i}", "x" * length, "x", float(score), "eos") for i, (score, length) in pairs)
    )


def differences(gained: int, lost: int, n: int) -> np.ndarray:
    return np.array([1.0] * gained + [-1.0] * lost + [0.0] * (n - gained - lost))


# --- Accuracy ---


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_numbers_of_newcombe_1998(right: int, n: int, low: float, high: float) -> None:
    interval = accuracy_interval(profile("a", [1] * right + [0] * (n - right)))
    assert interval == pytest.approx((100 * low, 100 * high), abs=0.006)


@pytest.mark.parametrize("score", [0, 1])
def test_an_accuracy_of_0_or_100_has_an_interval_with_a_width(score: int) -> None:
    low, high = accuracy_interval(profile("a", [score] * 50))
    assert 0 <= low < high <= 100
    assert high - low > 5


def test_the_interval_of_graded_scores_is_scipys_bootstrap() -> None:
    values = np.random.default_rng(3).beta(2, 3, size=120)
    theirs = stats.bootstrap((100 * values,), np.mean, method="percentile", rng=np.random.default_rng(1))
    ours = accuracy_interval(profile("a", values))
    assert ours == pytest.approx(tuple(theirs.confidence_interval), abs=0.25)


# --- The bootstrap ---


def test_the_gap_is_bootstrapped_in_pairs_as_scipy_does() -> None:
    generator = np.random.default_rng(2)
    best = (generator.random(200) < 0.7).astype(float)
    other = np.where(generator.random(200) < 0.8, best, 1 - best)

    def difference(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(100 * (a.mean(axis=axis) - b.mean(axis=axis)))

    theirs = stats.bootstrap((best, other), difference, paired=True, method="percentile", rng=generator)
    [(ours, _)] = paired_intervals(profile("a", best), [profile("b", other)])
    assert ours == pytest.approx(tuple(theirs.confidence_interval), abs=0.6)


def test_the_length_ratio_is_bootstrapped_in_pairs_as_scipy_does() -> None:
    generator = np.random.default_rng(2)
    short = generator.integers(20, 60, size=150)
    long = short + generator.integers(5, 90, size=150)

    def ratio(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(b.mean(axis=axis) / a.mean(axis=axis))

    theirs = stats.bootstrap((short, long), ratio, paired=True, method="percentile", rng=generator)
    ones = [1] * 150
    [(_, ours)] = paired_intervals(profile("a", ones, list(short)), [profile("b", ones, list(long))])
    assert ours == pytest.approx(tuple(theirs.confidence_interval), abs=0.02)


def test_the_ratio_to_a_model_that_says_next_to_nothing_may_be_infinite_but_is_a_number() -> None:
    silent, spoken = [0] * 29 + [3], [5] * 30
    [(_, (low, high))] = paired_intervals(profile("a", [1] * 30, spoken), [profile("b", [1] * 30, silent)])
    assert math.isfinite(low)
    assert high == math.inf


# --- The difference of ensemble and best single model ---


def test_mcnemar_gives_the_exact_p_value_of_a_published_table() -> None:
    # Bentur et al. 2009, as in Fagerland, Lydersen and Laake (2013): 1 and 7 discordant of 21, exact p = 0.0703.
    assert mcnemar(differences(1, 7, 21)) == pytest.approx(0.0703, abs=5e-5)


def test_mcnemar_without_a_discordant_question_is_sure_of_nothing() -> None:
    assert mcnemar(differences(0, 0, 40)) == 1


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 200))
def test_bonett_price_is_walds_interval_with_a_question_gained_and_one_lost(gained: int, lost: int, same: int) -> None:
    n = gained + lost + same
    padded = 100 * differences(gained + 1, lost + 1, n + 2)
    middle, half = padded.mean(), 1.959964 * padded.std() / math.sqrt(n + 2)
    expected = max(-100, middle - half), min(100, middle + half)
    assert bonett_price(differences(gained, lost, n)) == pytest.approx(expected, abs=1e-4)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 400))
def test_the_interval_holds_the_difference_and_agrees_with_the_test(gained: int, lost: int, same: int) -> None:
    n = max(1, gained + lost + same)
    observed = differences(gained, lost, n)
    low, high = bonett_price(observed)
    assert low <= 100 * observed.mean() <= high
    if mcnemar(observed) <= 0.05:
        assert low > 0 or high < 0


def test_sign_flip_is_exact_on_few_questions() -> None:
    # All eight sign patterns of three differences: two are as extreme as the observed one.
    assert sign_flip(np.array([0.2, 0.3, 0.4])) == pytest.approx(2 / 8)


def test_one_question_with_a_graded_metric_shows_nothing() -> None:
    assert sign_flip(np.array([0.25])) == 1


def test_sign_flip_is_mcnemar_where_scores_are_plain() -> None:
    observed = differences(9, 3, 14)
    assert sign_flip(observed) == pytest.approx(mcnemar(observed), abs=0.01)


# --- How many questions ---


@pytest.mark.parametrize(
    ("gained", "lost", "needed"),
    [(0.30, 0.15, 155), (0.45, 0.05, 23)],  # two public calculators of Connor's formula at 5% and 80%
)
def test_connors_formula_gives_the_numbers_of_others(gained: float, lost: float, needed: int) -> None:
    assert questions_needed(100 * (gained - lost), gained + lost) == needed


def test_so_many_questions_do_tell_four_times_out_of_five() -> None:
    gained, lost = 0.08, 0.04
    n = questions_needed(100 * (gained - lost), gained + lost)
    assert n is not None
    drawn = np.random.default_rng(1).multinomial(n, [gained, lost, 1 - gained - lost], size=2000)
    told = np.mean([mcnemar(differences(b, c, n)) <= 0.05 for b, c, _ in drawn])
    assert 0.75 <= told <= 0.85


@settings(max_examples=100)
@given(st.integers(0, 80), st.integers(0, 80), st.integers(0, 300))
def test_what_cannot_be_told_needs_more_questions_than_there_were(gained: int, lost: int, same: int) -> None:
    n = max(1, gained + lost + same)
    observed = differences(gained, lost, n)
    needed = questions_needed(100 * observed.mean(), float((observed**2).mean()))
    if gained == lost:
        assert needed is None
    elif mcnemar(observed) > 0.05:
        assert needed is not None
        assert needed > n


@given(st.floats(0.5, 20), st.floats(0.2, 1))
def test_a_higher_confidence_needs_more_questions(delta: float, discordance: float) -> None:
    lax, strict = questions_needed(delta, discordance, 0.025), questions_needed(delta, discordance, 0.005)
    assert lax is not None
    assert strict is not None
    assert lax <= strict


# --- The comparison ---


def test_the_comparison_has_the_figures_of_a_table_counted_by_hand() -> None:
    ensemble = profile("unite", [1] * 80 + [0] * 20)
    best = profile("b", [0] * 15 + [1] * 70 + [0] * 15)  # 15 gained, 5 lost
    found = compare(ensemble, [profile("a", [1] * 60 + [0] * 40), best])
    assert (found.of, found.over, found.n) == ("unite", "b", 100)
    assert (found.gained, found.lost) == (15, 5)
    assert found.difference == pytest.approx(10)
    assert found.discordance == pytest.approx(0.2)
    assert found.p_two_sided == pytest.approx(stats.binomtest(15, 20).pvalue)
    assert found.difference_ci == bonett_price(differences(15, 5, 100))
    assert (found.test, found.difference_method) == ("exact McNemar", "Bonett-Price")


def test_the_best_single_is_the_best_on_these_questions_and_the_first_of_equals() -> None:
    members = [profile("weak", [0, 0, 1, 0]), profile("first", [1, 1, 0, 0]), profile("second", [0, 0, 1, 1])]
    assert compare(profile("unite", [1, 1, 1, 0]), members).over == "first"


def test_graded_scores_are_compared_by_resampling() -> None:
    generator = np.random.default_rng(0)
    single = generator.random(80)
    found = compare(profile("unite", np.clip(single + 0.1, 0, 1)), [profile("a", single)])
    assert (found.test, found.difference_method) == ("sign-flip permutation", "paired bootstrap")
    assert found.p_two_sided < 0.01
    assert found.difference_ci[0] < found.difference < found.difference_ci[1]


def test_other_questions_are_an_error_that_names_both() -> None:
    other = Profile("b", (Answer("q9", "x", "x", 1.0, "eos"),))
    with pytest.raises(UniteError, match=r"unite and b answered different questions \(q0 and q9\)"):
        compare(profile("unite", [1]), [other])
    with pytest.raises(UniteError, match=r"unite and b answered different questions \(3 and 2 of them\)"):
        compare(profile("unite", [1, 0, 1]), [profile("b", [1, 0])])


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(UniteError, match="no member"):
        compare(profile("unite", [1]), [])
    with pytest.raises(UniteError, match="no held-out question"):
        compare(profile("unite", []), [profile("a", [])])


def test_questions_that_failed_do_not_bend_the_length_ratio() -> None:
    whole = profile("a", [1] * 40, [10] * 40)
    failed = [dataclasses.replace(answer, text="", error="too long") for answer in whole.answers[:20]]
    half = Profile("b", (*failed, *whole.answers[20:]))
    assert half.mean_length == 10
    ((_, ratio),) = paired_intervals(whole, [half])
    assert ratio == (1, 1)
