"""Whether a recommendation still holds on fresh questions.

A strategy that should gain something is compared with the best single model of the run, question by question. The
limits are one-sided: each holds with the probability 1 - ALPHA. The recommendation holds unless the verdict is
``worse`` or ``unclear``.

- ``worse``: the strategy is shown to be worse than the single model, or to gain less than the user wants; or its
  gain is shown to be smaller than the run expected, and the interval has values at or below what the user wants.
- ``better``: the gain is shown to be above 0.
- ``equal``: the run expected no gain, and a loss of more than 10 points is ruled out.
- ``unclear``: else. The interval has 0 in it, and the questions are too few to tell.

A single model has no gain. Its accuracy is compared with that in the run, on other questions:

- ``worse``: it is shown to be lower.
- ``equal``: a loss of more than 10 points is ruled out.
- ``unclear``: else.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from scipy import stats

from advisor.advice.gain import Gain
from advisor.records import ALPHA, MOST_NEEDED, Verdict
from advisor.statistics import Interval

LARGE_LOSS = 10.0
"""Points that a check must be able to see before it says that nothing changed."""
_POWER = 0.8
_SMALLEST = 0.05
"""Points of a gain that is not shown as 0.0; to tell a smaller one from none takes millions of questions."""


class Judgement(NamedTuple):
    """Whether a recommendation holds, with the end of a sentence that begins with the figures.

    For ``unclear``, ``questions`` is about how many fresh ones, in all, would show a gain of the expected size 4 times
    out of 5.
    """

    verdict: Verdict
    reason: str
    questions: int | None = None


def change_interval(now: float, now_ci: Interval, before: float, before_ci: Interval) -> Interval:
    """The interval of the change of a figure that was measured twice, on different questions.

    The intervals of the two figures are joined (Newcombe 1998, Statistics in Medicine 17, method 10; Zou and Donner
    2008, Statistics in Medicine 27). So it has about their confidence, the smaller one if they differ.
    """
    change = now - before
    low = change - math.hypot(now - now_ci[0], before_ci[1] - before)
    return low, change + math.hypot(now_ci[1] - now, before - before_ci[0])


def judge_gain(gain: Gain, expected: float, expected_ci: Interval, *, min_gain: float = 0.0) -> Judgement:
    """Judge a strategy by its gain on fresh questions and that of the run; the module's text has the rules."""
    interval = gain.interval()
    if gain.p_no_loss <= ALPHA:
        return Judgement("worse", "the test shows that it is worse than the single model")
    if interval[1] < min_gain:
        return Judgement("worse", f"the gain is shown to be less than {min_gain:g} points")
    is_less = change_interval(gain.points, interval, expected, expected_ci)[1] < 0
    if is_less and interval[0] <= min_gain:
        return Judgement("worse", f"this is shown to be less than expected, and it may be {min_gain:g} points or less")
    if interval[0] > 0:
        less = ", although it is shown to be less than expected" if is_less else ""
        return Judgement("better", f"the test shows the gain{less}")
    if expected < _SMALLEST:
        return _without_loss(gain.points, gain.points - interval[0], 0.0, gain.questions)
    quantiles = float(stats.norm.isf(ALPHA) + stats.norm.isf(1 - _POWER))
    # If these questions should have shown the expected gain, then what they did show is the better guess.
    sizes = [size for size in (expected, abs(gain.points)) if size >= _SMALLEST]
    counts = [math.ceil(gain.questions * (quantiles * gain.error / size) ** 2) for size in sizes]
    more = next((count for count in counts if gain.questions < count <= MOST_NEEDED), None)
    too_small = f"{MOST_NEEDED:,} questions would not tell a gain as small as this one from none"
    return Judgement("unclear", too_small if more is None else "the questions are too few to tell", more)


def judge_accuracy(now: float, now_ci: Interval, before: float, before_ci: Interval, questions: int) -> Judgement:
    """Judge a single model by its accuracy now and in the run, in points; the module's text has the rules."""
    if change_interval(now, now_ci, before, before_ci)[1] < 0:
        return Judgement("worse", "this is shown to be less than in the run")
    return _without_loss(now - before, now - now_ci[0], before_ci[1] - before, questions)


def _without_loss(change: float, half: float, fixed: float, questions: int) -> Judgement:
    """Judge a change that is not shown to be a loss.

    More fresh questions shrink ``half`` of its interval; the part ``fixed`` comes from the run.
    """
    if change - math.hypot(half, fixed) >= -LARGE_LOSS:
        return Judgement("equal", f"a loss of more than {LARGE_LOSS:g} points is ruled out")
    # With a change like this one, more questions rule out the large loss, or they show that it is a loss.
    distance = max(LARGE_LOSS + min(change, 0.0), -change)
    room = distance**2 - fixed**2
    more = max(math.ceil(questions * half**2 / room), questions + 1) if room > 1 else None
    reason = f"a loss of more than {LARGE_LOSS:g} points is not ruled out"
    if more is None or more > MOST_NEEDED:
        return Judgement("unclear", f"{reason}, because the run itself had too few questions")
    return Judgement("unclear", reason, more)
