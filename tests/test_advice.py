"""The verdict and its words, and the margins of the rules' decisions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from advisor.advice.compared_models import compare
from advisor.advice.comparison import StrategyResult, compare_strategies
from advisor.advice.pairs import all_pairs
from advisor.advice.predict import real_sets
from advisor.advice.recommendation import advise, close_calls, moved_warning
from advisor.advice.rules import select
from advisor.records import Answer, Decision, Limits, Profile, Selection, Standing
from advisor.statistics import (
    accuracy_interval,
    bonett_price,
    mcnemar,
    questions_needed,
)
from advisor.strategies.strategy import AnsweredSplit, Decoded, Replay
from advisor.tasks.task import Example, Task
from ensemble.errors import UniteError

FITTING = select([Standing("a", 80.0, 20.0), Standing("b", 78.0, 22.0)], Limits())
ALONE = select([Standing("a", 80.0, 20.0), Standing("b", 60.0, 22.0)], Limits())


def profile(model: str, scores: Sequence[float] | np.ndarray, lengths: list[int] | None = None) -> Profile:
    lengths = lengths if lengths is not None else [1] * len(scores)
    pairs = enumerate(zip(scores, lengths, strict=True))
    return Profile(
        model, tuple(Answer(f"q{i}", "x" * length, "x", float(score), "eos") for i, (score, length) in pairs)
    )


def together(gained: int, lost: int, both: int, n: int, *, on_dev: bool = False) -> StrategyResult:
    """Unite of a and b on held-out questions, with b always wrong; on as many dev questions a is as accurate."""
    ensemble = [1] * gained + [0] * lost + [1] * both + [0] * (n - gained - lost - both)
    best = [0] * gained + [1] * lost + [1] * both + [0] * (n - gained - lost - both)
    alone = {"a": profile("a", best), "b": profile("b", [0] * n)}
    strategy = Decoded(("a", "b"), "unite")
    examples = tuple(Example(f"q{i}", f"Question {i}?", "", "x") for i in range(n))
    task = Task("t", "number", "dev", examples, (), 1, 0, 0, None, (), "")
    written = profile("unite", ensemble)
    sets = {strategy: Replay(written, calls=[(strategy.members, written, 0)])}
    dev = AnsweredSplit(task, alone, sets if on_dev else {})
    held_out = AnsweredSplit(task, alone, sets)
    found = compare_strategies(dev, held_out, can_vote=False).results
    return next(each for each in found if each.strategy == strategy)


# --- The verdict ---


def test_a_significant_gain_is_advised_with_its_figures() -> None:
    result = together(gained=60, lost=34, both=361, n=500)
    advice = advise(FITTING, result)
    assert advice.verdict == "better"
    low, high = result.gain.interval()
    assert advice.text == (
        "Decoded together, a and b are better than one model alone: the gain is "
        f"{result.gain.points:+.1f} points (90% interval {low:+.1f} to {high:+.1f}); one-sided p = "
        f"{result.gain.p_no_gain:.3f}. On 500 held-out questions alone, unite scores 84.2 points, and a, the best "
        "single model, 79.0."
    )


def test_a_significant_loss_is_a_reason_to_use_the_best_single_model() -> None:
    advice = advise(FITTING, together(gained=10, lost=40, both=300, n=500))
    assert advice.verdict == "worse"
    assert advice.text.startswith("Decoded together, a and b are worse than a alone: the gain is -")
    assert "unite scores 62.0 points, and a, the best single model, 68.0" in advice.text


def test_a_gain_that_may_be_chance_is_not_advised_and_comes_with_its_probability() -> None:
    advice = advise(FITTING, together(gained=20, lost=15, both=300, n=500))
    assert advice.verdict == "unclear"
    assert advice.text.startswith("Cannot tell whether a and b, decoded together, are better than a alone:")
    assert "With the predicted gain, they are better than a alone with probability 0." in advice.text
    assert advice.text.endswith(real_sets())


def test_an_interval_that_leaves_out_zero_without_correction_is_explained() -> None:
    result = together(gained=60, lost=40, both=361, n=500, on_dev=True)
    row = result.figures.model_copy(update={"p_adjusted": 0.3})
    result = dataclasses.replace(result, figures=row, shown="not_yet")
    assert result.gain.interval()[0] > 0
    assert "The interval has no correction, so it leaves out 0." in advise(FITTING, result).text
    assert "has no correction" not in advise(FITTING, together(gained=60, lost=40, both=361, n=500)).text


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 60))
def test_the_verdict_and_the_interval_never_contradict_each_other(gained: int, lost: int, both: int) -> None:
    result = together(gained, lost, both, gained + lost + both + 10)
    low, high = result.gain.interval()
    expected = "better" if low > 0 else "worse" if high < 0 else "unclear"
    assert advise(FITTING, result).verdict == expected


# --- Without a comparison ---


def test_a_set_that_was_not_run_is_not_judged_and_says_how_to_verify() -> None:
    advice = advise(FITTING)
    assert advice.verdict == "unclear"
    assert advice.text.startswith("Cannot tell whether a and b, decoded together, are better than a alone")
    assert "without --no-verify" in advice.text and advice.text.endswith(real_sets())


def test_where_nothing_fits_the_rules_no_model_is_advised() -> None:
    advice = advise(ALONE)
    assert advice.verdict == "worse"
    assert advice.text == (
        "By the rules no set can decode together: the other candidate does not fit a. "
        "The next best, b: its gap to the primary is 20.00 points, over the limit of 10. No set was run, so this is "
        "not tested."
    )


def test_a_limit_of_one_model_is_named() -> None:
    fits = select([Standing("a", 80.0, 20.0), Standing("b", 79.0, 20.0)], Limits(max_models=1))
    assert advise(fits).text == "b fits a by the rules, but --max-models 1 leaves no set that could decode."


def test_one_candidate_is_used_alone() -> None:
    only = select([Standing("a", 80.0, 20.0)], Limits())
    assert advise(only).text == "Use a alone: it is the only candidate."
    failed = Selection((*only.decisions, Decision("b", "failed", "failed", "could not be loaded")), only.selected)
    assert advise(failed).text == "Use a alone: it is the only candidate that could be run."
    assert advise(failed).verdict == "worse"


def test_models_that_are_worse_on_the_held_out_questions_are_said_to_be() -> None:
    assert "6.1 points worse on the held-out questions than on dev" in (moved_warning(-6.1) or "")


# --- Margins ---


def members(*accuracies: int, lengths: tuple[int, ...] | None = None) -> list[Profile]:
    """Profiles a, b, ... on 200 questions with so many right; a is long where b is short."""
    lengths = lengths or (20,) * len(accuracies)
    named = enumerate(zip("abcdef", accuracies, lengths, strict=False))
    return [
        profile(name, [1] * right + [0] * (200 - right), [length - 5 * (-1) ** i, length + 5 * (-1) ** i] * 100)
        for i, (name, right, length) in named
    ]


GAP_FLIPS = "the gap may be on the other side of its limit"


def test_a_gap_far_from_its_limit_holds() -> None:
    near, far = close_calls(members(160, 156, 60), "a", Limits()).values()
    assert "on the other side" not in (near.text or "")
    assert far.text is None


@pytest.mark.parametrize("right", [142, 138])  # 9 and 11 points behind
def test_what_is_close_to_its_limit_may_flip_either_way(right: int) -> None:
    [call] = close_calls(members(160, right), "a", Limits()).values()
    assert GAP_FLIPS in (call.text or "")
    assert call.gap_ci[0] < 10 < call.gap_ci[1]


def test_what_the_length_rule_rejects_no_gap_can_turn_round() -> None:
    [call] = close_calls(members(160, 138, lengths=(20, 60)), "a", Limits()).values()
    assert call.text is None


def test_a_candidate_close_to_the_primary_may_be_the_better_one() -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.random((2, 200)) < 0.7).astype(float)
    first, second = sorted((profile("a", a), profile("b", b)), key=lambda p: -p.accuracy)
    [call] = close_calls([first, second], first.model, Limits()).values()
    assert "it may be the more accurate of the two" in (call.text or "")


def test_the_margins_come_in_the_order_of_the_profiles_without_the_primary() -> None:
    profiles = members(140, 160, 150)
    assert list(close_calls(profiles, "b", Limits())) == ["a", "c"]


def test_margins_on_different_questions_are_refused() -> None:
    fewer = profile("b", [1] * 199, [20] * 199)
    with pytest.raises(UniteError, match=r"a and b answered different questions \(200 and 199 of them\)"):
        close_calls([*members(160), fewer], "a", Limits())


@pytest.mark.parametrize(("right", "says"), [(0, "look at the prompt"), (200, "nothing to gain")])
def test_where_all_are_always_right_or_always_wrong_nothing_breaks_and_it_is_said(right: int, says: str) -> None:
    profiles = members(right, right, right)
    selection = select([Standing(each.model, each.accuracy, each.mean_length) for each in profiles], Limits())
    assert selection.selected == ("a", "b", "c")
    for low, high in (call.gap_ci for call in close_calls(profiles, "a", Limits()).values()):
        assert low < 0 < high
    [first, *_] = all_pairs(profiles)
    assert (first.gap, first.kappa, first.oracle) == (0, None, right / 2)
    advice = advise(selection, together(0, 0, right, 200))
    assert advice.verdict == "unclear"
    assert says in advice.text


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


def test_the_interval_of_graded_scores_is_near_scipys_bootstrap() -> None:
    values = np.random.default_rng(3).beta(2, 3, size=120)
    theirs = stats.bootstrap((100 * values,), np.mean, method="percentile", rng=np.random.default_rng(1))
    ours = accuracy_interval(profile("a", values))
    assert ours == pytest.approx(tuple(theirs.confidence_interval), abs=0.25)


# --- The difference of ensemble and best single model ---


def test_mcnemar_gives_the_exact_p_value_of_a_published_table_and_1_without_a_discordant_question() -> None:
    # Bentur et al. 2009, as in Fagerland, Lydersen and Laake (2013): 1 and 7 discordant of 21, exact p = 0.0703.
    assert mcnemar(differences(1, 7, 21)) == pytest.approx(0.0703, abs=5e-5)
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


# --- How many questions ---


@pytest.mark.parametrize(
    ("gained", "lost", "needed"),
    [(0.30, 0.15, 155), (0.45, 0.05, 23)],  # two public calculators of Connor's formula at 5% and 80%
)
def test_connors_formula_gives_the_numbers_of_others(gained: float, lost: float, needed: int) -> None:
    assert questions_needed(100 * (gained - lost), gained + lost) == needed


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


def test_the_best_single_is_the_best_on_these_questions_and_the_first_of_equals() -> None:
    members = [profile("weak", [0, 0, 1, 0]), profile("first", [1, 1, 0, 0]), profile("second", [0, 0, 1, 1])]
    assert compare(profile("unite", [1, 1, 1, 0]), members).over == "first"


def test_graded_scores_are_compared_by_resampling() -> None:
    generator = np.random.default_rng(0)
    single = generator.random(80)
    found = compare(profile("unite", np.clip(single + 0.1, 0, 1)), [profile("a", single)])
    assert (found.test, found.difference_method) == ("sign-flip permutation", "Student's t")
    assert found.p_two_sided < 0.01
    assert 0 < found.difference_ci[0] < found.difference < found.difference_ci[1]


def test_other_questions_and_nothing_to_compare_are_errors() -> None:
    other = Profile("b", (Answer("q9", "x", "x", 1.0, "eos"),))
    with pytest.raises(UniteError, match=r"unite and b answered different questions \(q0 and q9\)"):
        compare(profile("unite", [1]), [other])
    with pytest.raises(UniteError, match=r"unite and b answered different questions \(3 and 2 of them\)"):
        compare(profile("unite", [1, 0, 1]), [profile("b", [1, 0])])
    with pytest.raises(UniteError, match="no member"):
        compare(profile("unite", [1]), [])
    with pytest.raises(UniteError, match="no held-out question"):
        compare(profile("unite", []), [profile("a", [])])
