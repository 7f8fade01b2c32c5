"""The recommendation, in words: the strategy with the largest expected gain, or the usual one if it is close.

What is recommended and what is shown are two things: a strategy can be the best choice although the test cannot exclude
chance. :mod:`advisor.advice.verdict` says what is shown about the set that decodes together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.advice.comparison import StrategyResult
from advisor.records import ALPHA, TOLERANCE, Shown, signed
from advisor.statistics import Interval
from advisor.strategies import largest_usual
from advisor.strategies.strategy import Strategy
from ensemble.common.text import counted, interval_name

FEW_QUESTIONS = 30
"""With fewer questions the advice adds a warning: a single question is over 3 points then."""

SWITCH = 1.0
"""Points that another strategy that asks several models, or one of several, must gain more than the cascade of all
voters. The best of several estimates is partly luck, and on real pools this cascade is the best choice most often
(docs/pools.md)."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to run, what it gains, and whether the test shows it.

    Attributes:
        strategy: What to run.
        expected_gain: Points over the best single model; 0 for this model itself. It combines the gain on these
            questions with the predicted one.
        expected_gain_ci: Its interval, in points; with the run's confidence.
        calls_per_question: Responses that a question takes, on average.
        seconds_per_question: Seconds that a question takes, if models run one after the other; None if not known.
        price_per_1000: Dollars of 1,000 questions; None if it is not known.
        shown: Whether the test shows the gain.
        min_gain: Points that a strategy with more than one model or call must gain.
        text: What to run and what it gains, in sentences.
    """

    strategy: Strategy
    expected_gain: float
    expected_gain_ci: Interval
    calls_per_question: float
    seconds_per_question: float | None
    price_per_1000: float | None
    shown: Shown
    min_gain: float
    text: str


def recommend(results: Sequence[StrategyResult], alpha: float = ALPHA, min_gain: float = 0.0) -> Recommendation | None:
    """Recommend the strategy with the largest expected gain; None if there is no strategy.

    If the cascade of all voters gains something, another strategy that asks models one by one replaces it only if it
    gains :data:`SWITCH` points more. A set that decodes together needs no such margin.

    Args:
        results: The strategies, as :func:`advisor.advice.comparison.compare_strategies` returns them.
        alpha: The probability that the true gain is beyond one end of the interval, between 0 and 0.5.
        min_gain: Points that a strategy must gain if it has more than one model, or takes more than one response for a
            question.
    """
    if not results:
        return None
    worth = {each.strategy: _worth(each, min_gain) for each in results}
    usual = largest_usual([each.strategy for each in results])
    if usual is not None and worth[usual] > 0:
        for strategy in worth:
            if strategy.ASKS and not strategy.IS_SINGLE and strategy != usual:
                worth[strategy] -= SWITCH
    # The results are in order, and `max` takes the first of several largest values.
    best = max(results, key=lambda each: round(worth[each.strategy], 9))
    is_baseline = best.strategy.IS_SINGLE and best.strategy.members == (best.best_single_model,)
    return Recommendation(
        strategy=best.strategy,
        expected_gain=0.0 if is_baseline else best.expected_gain,
        expected_gain_ci=(0.0, 0.0) if is_baseline else best.expected_interval(alpha),
        calls_per_question=best.calls,
        seconds_per_question=best.seconds,
        price_per_1000=best.price,
        shown=best.shown,
        min_gain=min_gain,
        text=_text(best, results, alpha, min_gain),
    )


def _worth(result: StrategyResult, min_gain: float) -> float:
    """The expected gain minus the price of more than one model or call."""
    is_complex = len(result.strategy.members) > 1 or result.calls > 1 + TOLERANCE
    return result.expected_gain - (min_gain if is_complex else 0.0)


def describe_gain(points: float, interval: Interval, alpha: float) -> str:
    """A gain with its interval: ``+4.2 points (90% interval +1.0 to +7.4)``."""
    return f"{signed(points)} points ({interval_name(1 - 2 * alpha)} {' to '.join(map(signed, interval))})"


def _text(best: StrategyResult, results: Sequence[StrategyResult], alpha: float, min_gain: float) -> str:
    few = few_questions(len(best.profile.answers))
    # A single model has no gain to speak of: it is the baseline, or worse.
    if best.strategy.IS_SINGLE:
        others = [each for each in results if not each.strategy.IS_SINGLE]
        if not others:
            return f"{best.strategy.describe()}: there is no other strategy to compare it with.{few}"
        if min_gain:
            return (
                f"{best.strategy.describe()}: no other strategy is expected to gain at least {min_gain:g} points.{few}"
            )
        return f"{best.strategy.describe()}: no other strategy is expected to gain anything.{few}"
    # What was measured, whether the test shows it, and what it costs are other fields, which have their own lines.
    expected = describe_gain(best.expected_gain, best.expected_interval(alpha), alpha)
    # A reader who sees the measured gain elsewhere must know that it is not overlooked here.
    is_opposite = round(best.gain.points, 1) * round(best.expected_gain, 1) < 0
    opposite = (
        f" The measured gain has the other sign ({signed(best.gain.points)} points), so the expected one is mostly the "
        "prediction."
    )
    return (
        f"{best.strategy.describe()}: over {best.best_single_model}, the best single model, the expected gain is "
        f"{expected}.{opposite if is_opposite else ''}{few}"
    )


def few_questions(n: int) -> str:
    """A sentence that a few questions tell little, with a space before it; empty for 30 or more."""
    if n >= FEW_QUESTIONS:
        return ""
    return f" {counted(n, 'question')} {'tells' if n == 1 else 'tell'} little: one question is {100 / n:.1f} points."
