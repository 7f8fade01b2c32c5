"""The verdict and its words, and the margins of the rules' decisions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.advice.comparison import StrategyResult, compare_strategies
from advisor.advice.pairs import all_pairs
from advisor.advice.predict import real_sets
from advisor.advice.recommendation import advise, close_calls, moved_warning
from advisor.advice.rules import select
from advisor.advice.sequential import questions_range
from advisor.records import Answer, Decision, Limits, Profile, Selection, Standing
from advisor.strategies.strategy import AnsweredSplit, Decoded, Replay
from advisor.tasks.task import Example, Signature, Task
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
    task = Task(
        "t", "number", "dev", examples, (), 1, 0, 0, None, (), "", Signature("t", "number", "dev", n, 0, 0, "", ())
    )
    written = profile("unite", ensemble)
    sets = {strategy: Replay(written, calls=[(strategy.members, written)])}
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
    assert advice.questions_needed is None


def test_a_significant_loss_is_a_reason_to_use_the_best_single_model() -> None:
    advice = advise(FITTING, together(gained=10, lost=40, both=300, n=500))
    assert advice.verdict == "worse"
    assert advice.text.startswith("Decoded together, a and b are worse than a alone: the gain is -")
    assert "unite scores 62.0 points, and a, the best single model, 68.0" in advice.text


def test_a_gain_that_may_be_chance_is_not_advised() -> None:
    advice = advise(FITTING, together(gained=20, lost=15, both=300, n=500))
    assert advice.verdict == "unclear"
    assert advice.text.startswith("Cannot tell whether a and b, decoded together, are better than a alone:")


def test_a_doubtful_gain_comes_with_a_range_of_questions() -> None:
    advice = advise(FITTING, together(gained=20, lost=15, both=300, n=500))
    assert advice.questions_needed is not None
    low, high = advice.questions_needed
    assert high is None
    assert f"you need {low:,} or more held-out questions in total" in advice.text
    assert "there may be no gain" in advice.text


def test_dev_questions_that_the_set_answered_are_no_held_out_questions() -> None:
    result = together(gained=20, lost=15, both=300, n=500, on_dev=True)
    assert result.gain.answered == 1000
    needed, both = advise(FITTING, result).questions_needed, questions_range(result.gain)
    assert needed is not None
    assert both is not None
    assert needed[0] == max(both[0] - 500, 1)


def test_an_interval_that_leaves_out_zero_without_correction_is_explained() -> None:
    result = together(gained=60, lost=40, both=361, n=500, on_dev=True)
    row = result.figures.model_copy(update={"p_adjusted": 0.3, "shown": "not_yet"})
    result = dataclasses.replace(result, figures=row)
    assert result.gain.interval()[0] > 0
    assert "The interval has no correction, so it leaves out 0." in advise(FITTING, result).text
    assert "has no correction" not in advise(FITTING, together(gained=60, lost=40, both=361, n=500)).text


@pytest.mark.parametrize("run", [None, together(gained=20, lost=15, both=300, n=500)])
def test_where_nothing_is_shown_the_advice_says_what_sets_of_real_models_came_to(run: StrategyResult | None) -> None:
    assert advise(FITTING, run).text.endswith(real_sets())


def test_where_the_users_own_questions_show_a_gain_other_models_do_not_matter() -> None:
    assert real_sets() not in advise(FITTING, together(gained=60, lost=34, both=361, n=500)).text


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
    assert "without --no-verify" in advice.text


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


# --- Notes ---


def test_few_questions_are_said_to_tell_little() -> None:
    assert "20 questions tell little: one question is 5.0 points." in advise(FITTING, together(2, 1, 9, 20)).text
    assert "tell little" not in advise(FITTING, together(2, 1, 9, 30)).text


def test_nothing_right_at_all_points_to_the_prompt() -> None:
    assert "look at the prompt" in advise(FITTING, together(0, 0, 0, 50)).text


def test_a_best_single_model_that_is_always_right_leaves_nothing_to_gain() -> None:
    assert "nothing to gain" in advise(FITTING, together(0, 0, 50, 50)).text


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
LENGTH_FLIPS = "the length ratio may be on the other side of its limit"


def test_a_gap_far_from_its_limit_holds() -> None:
    near, far = close_calls(members(160, 156, 60), "a", Limits()).values()
    assert "on the other side" not in (near.text or "")
    assert far.text is None


@pytest.mark.parametrize("right", [142, 138])  # 9 and 11 points behind
def test_a_gap_close_to_its_limit_may_flip_either_way(right: int) -> None:
    [call] = close_calls(members(160, right), "a", Limits()).values()
    assert call.gap_ci[0] < 10 < call.gap_ci[1]
    assert GAP_FLIPS in (call.text or "")


@pytest.mark.parametrize("length", [39, 41])
def test_a_length_ratio_close_to_its_limit_may_flip_either_way(length: int) -> None:
    [call] = close_calls(members(160, 158, lengths=(20, length)), "a", Limits()).values()
    assert LENGTH_FLIPS in (call.text or "") and GAP_FLIPS not in (call.text or "")


def test_a_candidate_close_to_the_primary_may_be_the_better_one() -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.random((2, 200)) < 0.7).astype(float)
    first, second = sorted((profile("a", a), profile("b", b)), key=lambda p: -p.accuracy)
    [call] = close_calls([first, second], first.model, Limits()).values()
    assert "it may be the more accurate of the two" in (call.text or "")


def test_a_rule_that_rejects_for_certain_leaves_the_other_nothing_to_turn_round() -> None:
    [call] = close_calls(members(160, 138, lengths=(20, 60)), "a", Limits()).values()
    assert call.text is None
    [call] = close_calls(members(160, 40, lengths=(20, 41)), "a", Limits()).values()
    assert call.text is None
    [call] = close_calls(members(160, 138, lengths=(20, 41)), "a", Limits()).values()
    assert GAP_FLIPS in (call.text or "") and LENGTH_FLIPS in (call.text or "")


def test_splits_that_differ_are_warned_of() -> None:
    assert moved_warning(None) is None
    assert "6.1 points worse on the held-out questions than on dev" in (moved_warning(-6.1) or "")


def test_the_margins_come_in_the_order_of_the_profiles_without_the_primary() -> None:
    profiles = members(140, 160, 150)
    assert list(close_calls(profiles, "b", Limits())) == ["a", "c"]


def test_empty_responses_have_margins_too() -> None:
    silent = profile("b", [0] * 200, [0] * 200)
    [call] = close_calls([*members(10), silent], "a", Limits()).values()
    assert call.length_ratio_ci == (float("inf"), float("inf"))
    assert LENGTH_FLIPS not in (call.text or "")


def test_margins_on_different_questions_are_refused() -> None:
    fewer = profile("b", [1] * 199, [20] * 199)
    with pytest.raises(UniteError, match=r"a and b answered different questions \(200 and 199 of them\)"):
        close_calls([*members(160), fewer], "a", Limits())


@pytest.mark.parametrize(("right", "says"), [(0, "look at the prompt"), (200, "nothing to gain")])
def test_where_all_are_always_right_or_always_wrong_nothing_breaks_and_it_is_said(right: int, says: str) -> None:
    profiles = members(right, right, right)
    selection = select([Standing(each.model, each.accuracy, each.mean_length) for each in profiles], Limits())
    assert selection.selected == ("a", "b", "c")
    assert [call.gap_ci for call in close_calls(profiles, "a", Limits()).values()] == [(0, 0), (0, 0)]
    [first, *_] = all_pairs(profiles)
    assert (first.gap, first.kappa, first.oracle) == (0, None, right / 2)
    advice = advise(selection, together(0, 0, right, 200))
    assert advice.verdict == "unclear"
    assert says in advice.text
