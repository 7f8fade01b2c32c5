"""The recommendation, in words: the strategy that is expected to gain most after its cost.

What is recommended and what is shown are two things: a strategy can be the best choice although the test cannot exclude
chance. :mod:`advisor.advice.verdict` says what is shown about the set that decodes together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.advice.comparison import Compared, StrategyResult
from advisor.records import CONFIDENCE, TOLERANCE, Limits, signed
from advisor.statistics import Interval
from advisor.strategies.single import Single
from ensemble.common.text import counted, interval_name, price
from ensemble.errors import InputError

FEW_QUESTIONS = 30
"""With fewer questions the advice adds a warning: a single question is over 3 points then."""

LEAST_PER_CALL = 0.2
"""Points that a strategy must be expected to gain for each call of a question, unless ``--min-gain`` says otherwise: so
little is not worth what several models cost, and may be luck. A strategy that costs more than another one must gain so
much more than that. On real pools this costs hardly a point; larger values cost more than their fewer calls are worth
(`python -m benchmarks.pools --only recommended`, `regret_least_*`). Where prices are known, it counts how many times
the price of the single model the strategy costs."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to run.

    Attributes:
        result: The strategy, with what it gains and costs.
        min_gain: Points that this strategy had to be expected to gain. For a single model those of the option, or 0.
        text: What to run and what it gains, in sentences.
    """

    result: StrategyResult
    min_gain: float
    text: str


def recommend(compared: Compared, rules: Limits = Limits()) -> Recommendation | None:
    """Recommend the strategy that is expected to gain most after its cost; None if there is no strategy.

    From the expected gain of a strategy that is not a single model, what its cost must gain is taken away:
    :data:`LEAST_PER_CALL` for each call, or multiple of the single model's price, or ``min_gain``. The best single
    model stays unless another strategy is left with a gain, and not by the prediction alone: the measured gain must be
    more than one question, which would be luck too often. A strategy with a shown loss is not recommended, a router
    also if the loss is in one of its groups, and neither is one that costs no less than another one that gains as much.
    With ``within`` the cheapest strategy takes its place that is expected to gain at most so many points less: by
    price, or by calls where a price is not known. With ``budget`` strategies that cost more are left out; if all do,
    the cheapest is recommended.

    Args:
        compared: The strategies.
        rules: The limits, of which ``min_gain``, ``within`` and ``budget`` count.

    Raises:
        InputError: There is a budget, and no strategy has a known price.
    """
    if not compared.results:
        return None
    results = compared.results if rules.budget is None else _affordable(compared.results, rules.budget)
    base = max((each for each in results if isinstance(each.strategy, Single)), key=_rounded_gain, default=None)
    able = [
        each for each in results if isinstance(each.strategy, Single) or _pays(each, base, rules.min_gain)
    ] or results
    left = [each for each in able if not any(_dominates(other, each) for other in able)]
    # The results are in order, and `max` takes the first of several largest values.
    best = max(left, key=lambda each: _worth(each, base, rules.min_gain))
    if rules.within is not None:
        near = best.expected_gain - rules.within
        cheapest = _cheapest([each for each in results if each.shown != "no" or each is best], near)
        if cheapest is not best:
            text = (
                f"{cheapest.strategy.describe()}: it is the cheapest strategy at most {rules.within:g} points below "
                f"{best.strategy}. The expected gain is {signed(cheapest.expected_gain)} points, against "
                f"{signed(best.expected_gain)}.{few_questions(len(cheapest.profile.answers))}"
            )
            return Recommendation(cheapest, near, text)
    least = (rules.min_gain or 0.0) if isinstance(best.strategy, Single) else _least_gain(best, base, rules.min_gain)
    return Recommendation(best, least, _text(best, base, compared, rules))


def _rounded_gain(result: StrategyResult) -> float:
    # Rounded, so that a rounding error does not break a tie.
    return round(result.expected_gain, 9)


def _worth(result: StrategyResult, base: StrategyResult | None, min_gain: float | None) -> float:
    """The expected gain less what the strategy's cost must gain; of a single model, nothing is taken away."""
    cost = 0.0 if isinstance(result.strategy, Single) else _least_gain(result, base, min_gain)
    return round(result.expected_gain - cost, 9)


def _affordable(results: Sequence[StrategyResult], budget: float) -> Sequence[StrategyResult]:
    """The strategies within the budget, or the cheapest one if all cost more."""
    prices = [each.price for each in results if each.price is not None]
    if not prices:
        raise InputError(
            "--budget: no price is known; give price_in= and price_out= in the pool file, or logs with dollars"
        )
    return [each for each in results if _is_within(each, max(budget, min(prices)))]


def _is_within(result: StrategyResult, budget: float | None) -> bool:
    """Whether a strategy is known to cost no more; with no budget, each one is within it."""
    return budget is None or (result.price is not None and result.price <= budget + TOLERANCE)


def _cheapest(results: Sequence[StrategyResult], least: float) -> StrategyResult:
    """The cheapest strategy that is expected to gain this, and of equally cheap ones the one that gains most."""
    near = [each for each in results if each.expected_gain >= least - TOLERANCE]
    near = [each for each in near if not any(_dominates(other, each) for other in near)]
    is_priced = all(each.price is not None for each in near)
    return min(near, key=lambda each: ((each.price or 0.0) if is_priced else 0.0, each.calls, -each.expected_gain))


def least_gain(cost: float, min_gain: float | None) -> float:
    """Points that a strategy must be expected to gain to take the place of a single model.

    Args:
        cost: Its calls of a question, on average, or how many times the price of the single model it costs.
        min_gain: ``--min-gain``, in points; None if it is not given.
    """
    return LEAST_PER_CALL * cost if min_gain is None else min_gain


def _least_gain(result: StrategyResult, base: StrategyResult | None, min_gain: float | None) -> float:
    if base is None or not base.price or result.price is None:
        return least_gain(result.calls, min_gain)
    return least_gain(result.price / base.price, min_gain)


def _pays(result: StrategyResult, base: StrategyResult | None, min_gain: float | None) -> bool:
    """Whether a strategy gains something, is expected to gain enough, and has no shown loss in a group it routes."""
    # Gains are over the best single model. If that one is too expensive, a loss against it may still be the best.
    expected, measured = (0.0, 0.0) if base is None else (base.expected_gain, base.gain.points)
    is_loss = result.shown == "no" and expected >= 0
    routes_badly = bool(result.strategy.groups) and any(group.shown == "no" for group in result.groups)
    is_enough = result.expected_gain - expected >= _least_gain(result, base, min_gain) - TOLERANCE
    return is_enough and _is_measured(result, measured) and not is_loss and not routes_badly


def _is_measured(result: StrategyResult, over: float = 0.0) -> bool:
    """Whether the measured gain is more than this, and by more than one question of those that tell it."""
    return (result.gain.points - over) * result.gain.questions / 100 > 1 + TOLERANCE


def _dominates(one: StrategyResult, other: StrategyResult) -> bool:
    """Whether a strategy is in no figure worse than another one, and in one better: the gain, and each known cost."""
    costs = [(one.calls, other.calls), (one.price, other.price), (one.seconds, other.seconds)]
    pairs = [(-a, -b) for a, b in costs if a is not None and b is not None]
    pairs.append((_rounded_gain(one), _rounded_gain(other)))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def describe_gain(points: float, interval: Interval) -> str:
    """A gain with its interval: ``+4.2 points (90% interval +1.0 to +7.4)``."""
    return f"{signed(points)} points ({interval_name(CONFIDENCE)} {' to '.join(map(signed, interval))})"


def _text(best: StrategyResult, base: StrategyResult | None, compared: Compared, rules: Limits) -> str:
    results, ceiling, min_gain = compared.results, compared.ceiling, rules.min_gain
    end = _other_best(best, base, results, rules) + few_questions(len(best.profile.answers))
    if not _is_within(best, rules.budget):
        return (
            f"{best.strategy.describe()}: no strategy costs at most {price(rules.budget)} for 1,000 questions. This is "
            f"the cheapest one ({price(best.price)}).{few_questions(len(best.profile.answers))}"
        )
    # A single model has no gain to speak of: it is the baseline, or worse.
    if isinstance(best.strategy, Single):
        within = "" if rules.budget is None else " within the budget"
        others = [each for each in results if not isinstance(each.strategy, Single) and _is_within(each, rules.budget)]
        if not others:
            why = f", because {compared.no_vote}" if compared.no_vote else ""
            return f"{best.strategy.describe()}: there is no other strategy{within} to compare it with{why}.{end}"
        # A router takes one call.
        least = min(_least_gain(each, base, min_gain) for each in (best, *others))
        if ceiling is not None and ceiling.interval[1] < least - TOLERANCE:
            return (
                f"{best.strategy.describe()}: no vote or router of these models can gain more than "
                f"{ceiling.interval[1]:.1f} points (95%), and the least gain that pays is {least:g}.{end}"
            )
        enough = "anything"
        if min_gain:
            enough = f"at least {min_gain:g} points"
        elif min_gain is None and max(each.expected_gain for each in others) > 0:
            unit = "call of a question" if best.price is None else "multiple of its price"
            enough = f"at least {LEAST_PER_CALL:g} points for each {unit} (--min-gain)"
        hopeful = next((each for each in others if each.expected_gain > 0 and not _is_measured(each)), None)
        if hopeful is not None and hopeful.expected_gain >= _least_gain(hopeful, base, min_gain) - TOLERANCE:
            gained = hopeful.gain.points
            why = f"this is no more than one of {hopeful.gain.questions:,} questions"
            if gained <= 0:
                why = f"only by the prediction; the measured gain is {signed(gained)}"
            return (
                f"{best.strategy.describe()}: {hopeful.strategy} is expected to gain {hopeful.expected_gain:.1f} "
                f"points, but {why}.{end}"
            )
        return f"{best.strategy.describe()}: no other strategy{within} is expected to gain {enough}.{end}"
    # What was measured, whether the test shows it, and what it costs are other fields, which have their own lines.
    expected = describe_gain(best.expected_gain, best.expected_interval())
    return (
        f"{best.strategy.describe()}: over {best.best_single_model}, the best single model, the expected gain is "
        f"{expected}.{end}"
    )


def _other_best(
    best: StrategyResult, base: StrategyResult | None, results: Sequence[StrategyResult], rules: Limits
) -> str:
    """A sentence why the strategy with the most points is not recommended, with a space before it; empty if it is."""
    top = max(results, key=lambda each: each.profile.accuracy)
    points, own = f"{top.profile.accuracy:.1f}", f"{best.profile.accuracy:.1f}"
    if points == own:
        return ""
    if not _is_within(top, rules.budget):
        why = f"its price for 1,000 questions ({price(top.price)}) is not within the budget"
    elif isinstance(top.strategy, Single) or top.gain.points <= 0:
        why = "on all questions together it gains nothing"
    elif not _is_measured(top):
        why = "its measured gain is no more than one question"
    elif top.expected_gain < best.expected_gain:
        why = f"it is expected to gain less ({signed(top.expected_gain)} points)"
    elif top.expected_gain < _least_gain(top, base, rules.min_gain) - TOLERANCE:
        why = f"its expected gain ({signed(top.expected_gain)} points) is too small for its cost"
    elif not _pays(top, base, rules.min_gain):
        why = "it is shown to lose in some of its groups"
    else:
        why = f"its expected gain ({signed(top.expected_gain)} points) is not large enough for its higher cost"
    return f" {top.strategy} has more points on the held-out questions ({points} against {own}), but {why}."


def few_questions(n: int) -> str:
    """A sentence that a few questions tell little, with a space before it; empty for 30 or more."""
    if n >= FEW_QUESTIONS:
        return ""
    return f" {counted(n, 'question')} {'tells' if n == 1 else 'tell'} little: one question is {100 / n:.1f} points."
