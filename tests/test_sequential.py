"""Questions in batches: limits against published tables, error probabilities by simulation, recorded looks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from advisor.advice.gain import Gain
from advisor.advice.sequential import (
    boundaries,
    corrected_p,
    limits_of,
    look_until_sure,
    looks_in_words,
    planned_looks,
    with_earlier,
)
from advisor.run.result import InterimAnalysis

FIFTHS = np.arange(1, 6) / 5
BLANK = InterimAnalysis(
    questions="abc",
    members=("a", "b"),
    method="unite",
    k=10,
    plan=planned_looks(800),
    n=800,
    p_no_gain=1.0,
    p_no_loss=1.0,
    limit=0.0,
    test=1,
)


def found(points: float) -> Gain:
    return Gain(points, 2.0, 299.0, 300)


def verify_with(z_values: dict[int, float]) -> Callable[[int], Gain]:
    """A verification whose estimate has these z-values at the looks; 0 at others."""
    return lambda n: Gain(2 * z_values.get(n, 0.0), 2.0, 1e9, n)


def test_spending_like_o_brien_and_fleming_gives_the_published_limits() -> None:
    # Lan and DeMets' program, one-sided 0.025; also in Proschan, Lan and Wittes (2006), section 5.
    spent = 2 * stats.norm.sf(stats.norm.isf(0.025 / 2) / np.sqrt(FIFTHS))
    assert boundaries(FIFTHS, spent) == pytest.approx([4.877, 3.357, 2.680, 2.290, 2.031], abs=6e-4)


def test_spending_like_pocock_gives_the_published_limits() -> None:
    spent = 0.025 * np.log1p((math.e - 1) * FIFTHS)
    assert boundaries(FIFTHS, spent) == pytest.approx([2.438, 2.427, 2.410, 2.397, 2.386], abs=6e-4)


@pytest.mark.parametrize(("questions", "looks"), [(1, (1,)), (110, (110,)), (300, (100, 150, 225, 300))])
def test_the_last_look_has_all_questions(questions: int, looks: tuple[int, ...]) -> None:
    assert planned_looks(questions) == looks


def test_one_look_is_the_plain_test() -> None:
    assert limits_of((80,), 0.05) == pytest.approx((0.05,))


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.3])
def test_a_correction_gives_alpha_exactly_at_the_limit(alpha: float) -> None:
    plan = planned_looks(800)
    for n, limit in zip(plan, limits_of(plan, alpha), strict=True):
        assert corrected_p(BLANK.model_copy(update={"n": n}), limit) == pytest.approx(alpha, abs=1e-6)


def test_a_correction_never_makes_a_p_value_smaller() -> None:
    for n in BLANK.plan:
        for p_value in (0.0, 1e-9, 0.04, 0.5, 0.9999, 1.0):
            assert p_value <= corrected_p(BLANK.model_copy(update={"n": n}), p_value) <= 1


@pytest.mark.parametrize(("plan", "test"), [((800,), 1), ((400, 800), 1), ((800,), 2)])
def test_only_the_single_look_of_the_first_test_corrects_nothing(plan: tuple[int, ...], test: int) -> None:
    look = BLANK.model_copy(update={"plan": plan, "test": test})
    assert look.corrects is not (corrected_p(look, 0.02) == pytest.approx(0.02))


def test_all_looks_together_keep_alpha() -> None:
    # Sums of independent parts, as the estimate on more and more questions; 1 in 20,000 is 0.2 points of the rate.
    plan = planned_looks(800)
    parts = np.diff(plan, prepend=0)
    sums = np.cumsum(np.random.default_rng(0).standard_normal((20_000, len(plan))) * np.sqrt(parts), axis=1)
    crossed = stats.norm.sf(sums / np.sqrt(plan)) <= limits_of(plan, 0.05)
    assert 0.045 < crossed.any(axis=1).mean() < 0.055


@pytest.mark.parametrize("sign", [1, -1])
def test_questions_end_as_soon_as_a_limit_is_crossed(sign: int) -> None:
    asked = []
    z_values = {150: sign * 3.0}

    def verify(n: int) -> Gain:
        asked.append(n)
        return verify_with(z_values)(n)

    looks = look_until_sure(verify, BLANK)
    assert asked == [100, 150] == [look.n for look in looks]
    assert [look.is_sure for look in looks] == [False, True]


def test_a_test_whose_set_fails_does_not_claim_all_questions() -> None:
    looks = look_until_sure(lambda n: None if n > 150 else verify_with({})(n), BLANK)
    assert [look.n for look in looks] == [100, 150]
    assert "ended after 150 of at most 800, because what it tested failed" in (looks_in_words(looks) or "")


def test_the_same_set_on_more_questions_is_another_test() -> None:
    first = look_until_sure(verify_with({}), BLANK.model_copy(update={"plan": (300,)}))
    assert look_until_sure(verify_with({}), BLANK, first)[0].test == 2


def test_a_repeated_run_is_the_same_test() -> None:
    first = look_until_sure(verify_with({}), BLANK)
    other = look_until_sure(verify_with({}), BLANK.model_copy(update={"members": ("a", "c")}), first)
    earlier = with_earlier(other, first)
    again = look_until_sure(verify_with({}), BLANK, earlier)
    assert again == first
    assert with_earlier(again, earlier) == (*other, *first)


def test_other_questions_are_fresh() -> None:
    first = look_until_sure(verify_with({}), BLANK)
    assert look_until_sure(verify_with({}), BLANK.model_copy(update={"questions": "def"}), first)[0].test == 1
