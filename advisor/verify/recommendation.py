"""The recommendation: the strategy that did best on the held-out questions, in words.

What is recommended and what is shown are two things: a strategy can be the best choice although the test cannot exclude
chance. :mod:`advisor.verify.advice` says what is shown about the set that decodes together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.records import LEVEL, Shown, join, signed
from advisor.statistics import Interval
from advisor.verify.strategies import Strategy, StrategyResult
from reports.text import counted

_FEW_QUESTIONS = 30
"""With fewer questions the advice adds a warning: a single question is over 3 points then."""
_SHOWN = {
    "yes": "the test shows that it is better",
    "not_yet": "the test does not show a difference yet",
    "no": "the test shows that it is worse",
}


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to run, what it gains, and whether the test shows it.

    Attributes:
        strategy: What to run.
        expected_gain: Points over the best single model on the held-out questions; at most 0 for a single model.
        expected_gain_ci: Its interval, in points.
        calls_per_question: Responses that a question takes, on average.
        price_per_1000: Dollars of 1,000 questions; None if it is not known.
        shown: Whether the test shows the gain.
        text: The recommendation in sentences.
    """

    strategy: Strategy
    expected_gain: float
    expected_gain_ci: Interval
    calls_per_question: float
    price_per_1000: float | None
    shown: Shown
    text: str


def recommend(results: Sequence[StrategyResult], level: float = LEVEL) -> Recommendation | None:
    """Recommend the best of the compared strategies; None without one.

    Args:
        results: The strategies, the best first, as :func:`advisor.verify.strategies.compare_strategies` returns them.
        level: The accepted probability of a false alarm, between 0 and 1.
    """
    if not results:
        return None
    best = results[0]
    comparison = best.comparison
    return Recommendation(
        strategy=best.strategy,
        expected_gain=comparison.delta,
        expected_gain_ci=comparison.delta_ci,
        calls_per_question=best.calls,
        price_per_1000=best.price,
        shown=best.shown(level),
        text=_text(best, level),
    )


def describe(strategy: Strategy) -> str:
    """What to do, as the beginning of a sentence: ``Ask a, b and c in this order, and ...``."""
    names = join(strategy.members)
    sentences = {
        "single": f"Use {names} alone",
        "vote": f"Ask {names}, and take the answer that most of them give (a vote)",
        "cascade": f"Ask {names} in this order, stop as soon as the rest cannot change the majority, and take the "
        "answer that most of them give (a cascade)",
        "weighted_vote": f"Ask {names}, and take the answer with the most weight (a vote, weighted by accuracy)",
        "router": f"Send each question to the one of {names} that was right on similar dev questions (a router)",
        "group_router": f"Send each group of questions to the one of {names} that was best on it (a router by groups)",
        "self_consistency": f"Ask {names} {strategy.draws} times, and take the answer that it gives most often "
        "(self-consistency)",
    }
    return sentences.get(strategy.name, f"Decode {names} together, in this order ({strategy.name})")


def _text(best: StrategyResult, level: float) -> str:
    comparison = best.comparison
    gain, interval = signed(comparison.delta), " to ".join(map(signed, comparison.delta_ci))
    on = f"on {counted(comparison.n, 'held-out question')} it scores {comparison.accuracy:.1f} points"
    # A single model has no gain to speak of: it is the baseline, or worse.
    if best.strategy.name == "single":
        return f"{describe(best.strategy)}: {on}, and no other strategy scores more.{few_questions(comparison.n)}"
    calls = f"{best.calls:.1f} calls a question"
    return (
        f"{describe(best.strategy)}: {on}, {gain} ({interval}) against the best single "
        f"model, {comparison.best_single}, with {calls}; {_SHOWN[best.shown(level)]}.{few_questions(comparison.n)}"
    )


def few_questions(n: int) -> str:
    """A sentence that a few questions tell little, with a space before it; empty for 30 or more."""
    if n >= _FEW_QUESTIONS:
        return ""
    return f" {counted(n, 'question')} {'tells' if n == 1 else 'tell'} little: one question is {100 / n:.1f} points."
