"""The recommendation, and the verdict on the set that decodes together, in words.

What is recommended and what is shown are two things: a strategy can be the best choice although a test cannot exclude
chance.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from advisor.advice.comparison import Compared, StrategyResult
from advisor.advice.predict import real_sets
from advisor.records import (
    ALPHA,
    CONFIDENCE,
    FIGURE_CONFIDENCE,
    TOLERANCE,
    Limits,
    Profile,
    Selection,
    compared_lengths,
    gap,
    join,
    length_ratio,
    signed,
    within,
)
from advisor.run.result import AdviceSection, RecommendedStrategy, StrategyFigures
from advisor.run.sentences import better_in_words
from advisor.statistics import Interval, check_same_questions, paired_interval, scores, z_value
from advisor.strategies import ADVICE, DEFAULT
from advisor.strategies.best_of import BestOf
from ensemble.common.text import counted, duration, interval_name, p_value, percent, price
from ensemble.errors import InputError

LEAST_PER_CALL = 0.2
"""Points that a strategy must be expected to gain for each call of a question, unless ``--min-gain`` says otherwise: so
little is not worth what several models cost, and may be luck. A strategy that costs more than another one must gain so
much more than that. On real pools this costs hardly a point; larger values cost more than their fewer calls are worth
(`python -m benchmarks.pools --only recommended`, `regret_least_*`). Where prices are known, it counts how many times
the price of the single model the strategy costs."""


def recommend(compared: Compared, rules: Limits = Limits()) -> RecommendedStrategy | None:
    """Recommend a strategy; None where no strategy was compared.

    Where answers can be counted, the learned vote is the advice, or the plain one if it learned no other: to choose
    among several strategies gains nothing on real pools. It stays unless its expected gain is 0 or less, or its
    measured gain, after what its cost must gain, is a loss of more than one standard error; then it is the best single
    model. A cost must gain :data:`LEAST_PER_CALL` for each call, or multiple of the single model's price; with
    ``min_gain`` the expected gain must be at least so large instead. A set that decodes together or a fusion takes
    its place where it gained more on the held-out questions, after its cost, and is expected to.

    Where answers cannot be counted, or with ``budget``, ``latency`` or ``within``, all strategies compete by their
    expected gain after their cost. A router with a shown loss in one of its groups is not recommended, and neither is a
    strategy that costs no less than another one that gains as much. With ``within`` the cheapest strategy takes the
    place of the best that is expected to gain at most so many points less: by price, or by calls where a price is not
    known. With ``budget`` strategies that cost more are left out; if all do, the cheapest is recommended, and it is an
    error if no price is known. With ``latency`` those that take longer are left out, likewise; if all do, the best
    single model is recommended.
    """
    if not compared.results:
        return None
    # What only the judge of a run can take is there to compare with.
    results = every = [each.figures for each in compared.results if each.strategy.KIND != BestOf.KIND]
    if rules.budget is not None or rules.latency is not None:
        results = _allowed(every, rules)
    elif rules.within is None:
        results = every = _offered(every, compared)
    base = max((each for each in results if each.is_single), key=_rounded_gain, default=None)
    able = [each for each in results if each.is_single or _pays(each, base, rules.min_gain)] or results
    left = [each for each in able if not any(_dominates(other, each) for other in able)]
    if any(_is_vote(each) for each in left):
        left = [each for each in left if not each.is_single]
    # The results are in order, and `max` takes the first of several largest values.
    best = max(left, key=lambda each: _worth(each, base, rules.min_gain))
    if rules.within is not None:
        near = _expected(best) - rules.within
        cheapest = _cheapest(results, near)
        if cheapest is not best:
            text = (
                f"{cheapest.key.describe()}: it is the cheapest strategy at most {rules.within:g} points below "
                f"{best.title}. The expected gain is {signed(_expected(cheapest))} points, against "
                f"{signed(_expected(best))}."
            )
            return _recommended(cheapest, near, text)
    least = (rules.min_gain or 0.0) if best.is_single else _least_gain(best, base, rules.min_gain)
    return _recommended(best, least, _text(best, base, every, compared, rules))


def _offered(results: Sequence[StrategyFigures], compared: Compared) -> list[StrategyFigures]:
    """What can be the advice: where answers are counted, a vote, single models, and what writes new texts."""
    votes = [each for each in results if _is_vote(each)]
    learned = next((each.same_as for each in compared.not_compared if each.strategy == ADVICE), None)
    if not votes and learned is None:
        return list(results)
    if learned == DEFAULT:
        plain = [each for each in results if each.strategy == DEFAULT]
        votes = sorted(plain, key=lambda each: -len(each.members))[:1]
    return [each for each in results if each in votes or each.is_single or _writes(each)]


def _is_vote(result: StrategyFigures) -> bool:
    return result.strategy == ADVICE


def _recommended(best: StrategyFigures, min_gain: float, text: str) -> RecommendedStrategy:
    method = best.strategy if best.is_decoded else None
    return RecommendedStrategy(**dict(best), method=method, min_gain=min_gain, text=text)


def _expected(result: StrategyFigures) -> float:
    return result.expected_gain or 0.0


def _calls(result: StrategyFigures) -> float:
    return result.calls_per_question or 0.0


def _rounded_gain(result: StrategyFigures) -> float:
    # Rounded, so that a rounding error does not break a tie.
    return round(_expected(result), 9)


def _worth(result: StrategyFigures, base: StrategyFigures | None, min_gain: float | None) -> float:
    """What a strategy gains less what its cost must gain; of a single model, nothing is taken away."""
    cost = 0.0 if result.is_single else _least_gain(result, base, min_gain)
    return round(_counted(result) - cost, 9)


def _counted(result: StrategyFigures) -> float:
    """The expected gain; of what writes new texts, not more than it gained on the held-out questions."""
    return min(_expected(result), result.measured_gain or 0.0) if _writes(result) else _expected(result)


def _writes(result: StrategyFigures) -> bool:
    return result.is_decoded or result.key.author is not None


def _allowed(results: Sequence[StrategyFigures], rules: Limits) -> list[StrategyFigures]:
    """The strategies within ``budget`` and ``latency``; if none is, the best single model, or by price the cheapest."""
    prices = [each.price_per_1000 for each in results if each.price_per_1000 is not None]
    if rules.budget is not None and not prices:
        raise InputError(
            "--budget: no price is known; give price_in= and price_out= in the pool file, or logs with dollars"
        )
    if rules.latency is not None and all(each.seconds_p95 is None for each in results):
        raise InputError("--latency: no time is known; give logs with a column of seconds, or a pool of models")
    allowed = [each for each in results if not _over(each, rules)]
    if not allowed and rules.latency is not None:
        return [max((each for each in results if each.is_single), key=_rounded_gain)]
    return allowed or [each for each in results if each.price_per_1000 == min(prices)]


def _over(result: StrategyFigures, rules: Limits) -> str:
    """Why a strategy is not within ``budget`` and ``latency``, a clause; empty if it is."""
    dollars, seconds = result.price_per_1000, result.seconds_p95
    if rules.budget is not None and (dollars is None or dollars > rules.budget + TOLERANCE):
        return f"its price for 1,000 questions ({price(dollars)}) is not within the budget"
    if rules.latency is not None and (seconds is None or seconds > rules.latency + TOLERANCE):
        return f"95% of its answers take up to {duration(seconds)}, which is more than {duration(rules.latency)}"
    return ""


def _cheapest(results: Sequence[StrategyFigures], least: float) -> StrategyFigures:
    """The cheapest strategy that is expected to gain this, and of equally cheap ones the one that gains most."""
    near = [each for each in results if _expected(each) >= least - TOLERANCE]
    near = [each for each in near if not any(_dominates(other, each) for other in near)]
    is_priced = all(each.price_per_1000 is not None for each in near)
    return min(
        near, key=lambda each: ((each.price_per_1000 or 0.0) if is_priced else 0.0, _calls(each), -_expected(each))
    )


def least_gain(cost: float, min_gain: float | None) -> float:
    """Points that a strategy must be expected to gain to take the place of a single model.

    Its cost are its calls of a question, or how many times the price of the single model it costs.
    """
    return LEAST_PER_CALL * cost if min_gain is None else min_gain


def _least_gain(result: StrategyFigures, base: StrategyFigures | None, min_gain: float | None) -> float:
    if base is None or not base.price_per_1000 or result.price_per_1000 is None:
        return least_gain(_calls(result), min_gain)
    return least_gain(result.price_per_1000 / base.price_per_1000, min_gain)


def _pays(result: StrategyFigures, base: StrategyFigures | None, min_gain: float | None) -> bool:
    """Whether a strategy gains something that is worth its cost, and has no shown loss in a group that it routes."""
    # Gains are over the best single model. If that one is too expensive, a loss against it may still be the best.
    expected, measured = (0.0, 0.0) if base is None else (_expected(base), base.measured_gain or 0.0)
    gain, least = _counted(result) - expected, _least_gain(result, base, min_gain)
    if _is_vote(result) and min_gain is None and result.measured_gain_ci is not None:
        low, high = result.measured_gain_ci
        error = (high - low) / 2 / z_value(ALPHA)
        return gain > TOLERANCE and (result.measured_gain or 0.0) - measured - least >= -error
    return gain >= least - TOLERANCE and not _routes_badly(result)


def _routes_badly(result: StrategyFigures) -> bool:
    """Whether it is a router with a shown loss in one of its groups."""
    return bool(result.key.groups) and any(group.shown == "no" for group in result.groups or ())


def _dominates(one: StrategyFigures, other: StrategyFigures) -> bool:
    """Whether a strategy is in no figure worse than another one, and in one better: the gain, and each known cost."""
    costs = [
        (_calls(one), _calls(other)),
        (one.price_per_1000, other.price_per_1000),
        (one.seconds_per_question, other.seconds_per_question),
    ]
    pairs = [(-a, -b) for a, b in costs if a is not None and b is not None]
    pairs.append((round(_counted(one), 9), round(_counted(other), 9)))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def describe_gain(points: float, interval: Interval | None) -> str:
    """A gain with its interval: ``+4.2 points (90% interval +1.0 to +7.4)``."""
    return f"{signed(points)} points ({interval_name(CONFIDENCE)} {' to '.join(map(signed, interval or ()))})"


def _text(
    best: StrategyFigures,
    base: StrategyFigures | None,
    results: Sequence[StrategyFigures],
    compared: Compared,
    rules: Limits,
) -> str:
    ceiling, min_gain = compared.ceiling, rules.min_gain
    limits = [] if rules.budget is None else [f"{price(rules.budget)} for 1,000 questions"]
    limits += [] if rules.latency is None else [f"{duration(rules.latency)} for 95% of the questions"]
    if over := _over(best, rules):
        cheapest = f"the cheapest one ({price(best.price_per_1000)})"
        which = cheapest if rules.latency is None else f"the best single model: {over}"
        return f"{best.key.describe()}: no strategy takes at most {join(limits)}. This is {which}."
    end = _other_best(best, results, rules)
    # A single model has no gain to speak of: it is the baseline, or worse.
    if best.is_single:
        within = f" within {join(limits)}" if limits else ""
        others = [each for each in results if not each.is_single and not _over(each, rules)]
        if not others:
            why = f", because {compared.no_vote}" if compared.no_vote else ""
            return f"{best.key.describe()}: there is no other strategy{within} to compare it with{why}.{end}"
        # A router takes one call.
        least = min(_least_gain(each, base, min_gain) for each in (best, *others))
        if ceiling is not None and ceiling.points_ci[1] < least - TOLERANCE:
            return (
                f"{best.key.describe()}: no vote or router of these models can gain more than "
                f"{ceiling.points_ci[1]:.1f} points (95%), and the least gain that pays is {least:g}.{end}"
            )
        enough = "anything"
        if min_gain:
            enough = f"at least {min_gain:g} points"
        elif min_gain is None and max(_expected(each) for each in others) > 0:
            unit = "call of a question" if best.price_per_1000 is None else "multiple of its price"
            enough = f"at least {LEAST_PER_CALL:g} points for each {unit} (--min-gain)"
        return f"{best.key.describe()}: no other strategy{within} is expected to gain {enough}.{end}"
    # What it gains, how sure it is, and what it costs are other fields, which have their own lines.
    return f"{best.key.describe()}.{end}"


def _other_best(best: StrategyFigures, results: Sequence[StrategyFigures], rules: Limits) -> str:
    """A sentence why what is expected to gain most is not recommended, with a space before it; empty if it is."""
    top = max(results, key=_rounded_gain)
    if _rounded_gain(top) <= _rounded_gain(best):
        return ""
    measured = top.measured_gain or 0.0
    if over := _over(top, rules):
        why = over
    elif _routes_badly(top):
        why = "one of its groups loses"
    elif (_writes(top) or _is_vote(top)) and measured < _expected(top):
        why = f"its measured gain is {signed(measured)} points"
    else:
        why = "that is not enough for its cost"
    return f" {top.title} is expected to gain more ({signed(_expected(top))} points), but {why}."


class CloseCall(NamedTuple):
    """How far a candidate is from the primary, and which decisions of the rules other questions could change.

    Attributes:
        gap_ci: Interval of the primary's accuracy minus the candidate's, in points; below 0 the candidate is better.
        text: Why other questions could change the decision, a clause; None if they hardly could.
    """

    gap_ci: Interval
    text: str | None


def advise(selection: Selection, together: StrategyResult | None = None, *, on_logs: bool = False) -> AdviceSection:
    """Say whether the set that decodes together, if it was run, is shown to be better than the best single model."""
    if together is None:
        if len(selection.selected) < 2:
            return AdviceSection(verdict="worse", text=_nothing_fits(selection))
        return AdviceSection(verdict="unclear", text=_not_verified(selection.selected, on_logs=on_logs))
    names, figures, single = join(together.strategy.members), _figures(together), together.figures.best_single_model
    if together.shown == "yes":
        text = f"Decoded together, {names} are better than one model alone: {figures}"
        return AdviceSection(verdict="better", text=text)
    if together.shown == "no":
        text = f"Decoded together, {names} are worse than {single} alone: {figures}"
        return AdviceSection(verdict="worse", text=text)
    text = f"Cannot tell whether {names}, decoded together, are better than {single} alone: {figures}"
    return AdviceSection(
        verdict="unclear",
        text=f"{text} With the predicted gain, they are {better_in_words(together.figures)} {real_sets()}",
    )


def undecodable(selection: Selection, remote: Collection[str]) -> AdviceSection:
    """The verdict if fewer than two candidates can be decoded together; the rules then choose among all candidates."""
    best, *others = selection.selected
    on_server = [name for name in selection.selected if name in remote]
    them = "them" if len(on_server) > 1 else "it"
    if others:
        text = (
            f"No set can decode together: by the rules {join(selection.selected)} fit, but {join(on_server)} "
            f"{_are(on_server)} behind a server, which gives whole texts only, so no ensemble with {them} can be "
            "decoded token by token. With tokenizer= on its line, a model behind vLLM, SGLang or llama.cpp can."
        )
    elif len(selection.decisions) > 1:
        text = f"By the rules no set can decode together: no other candidate fits {best}."
    else:
        text = f"Use {best} alone: it is the only candidate that could be run."
    return AdviceSection(verdict="worse", text=text)


def behind_server(selection: Selection, remote: Collection[str], voters: Sequence[str]) -> str | None:
    """Sentences on candidates behind a server that vote without being in the set; None if no candidate does."""
    apart = [name for name in voters if name in remote]
    if not apart or remote_in(selection, remote):
        return None
    return (
        f"As {join(apart)} {_are(apart)} behind a server and cannot be decoded token by token, the set was chosen "
        f"among the others. It is also compared with {join(apart)} alone. Votes and routers use {join(voters)}."
    )


def remote_in(selection: Selection, remote: Collection[str]) -> bool:
    """Whether a candidate that gives whole texts only is in the set."""
    return any(name in remote for name in selection.selected)


def moved_warning(moved: float | None) -> str | None:
    """A warning if the models do better or worse on the held-out questions than on dev, by more than chance."""
    if moved is None:
        return None
    return (
        f"The models are {abs(moved):.1f} points {'better' if moved > 0 else 'worse'} on the held-out "
        "questions than on dev, by more than chance. So the gains come from the held-out questions alone."
    )


def close_calls(profiles: Sequence[Profile], primary: str, rules: Limits) -> dict[str, CloseCall]:
    """How close each candidate but the primary is to the limit of the gap, so that other questions could turn it."""
    check_same_questions(*profiles)
    first = next(profile for profile in profiles if profile.model == primary)
    others = [profile for profile in profiles if profile.model != primary]
    ends = {other.model: paired_interval(scores(first) - scores(other))[0] for other in others}
    return {other.model: _close_call(first, other, ends[other.model], rules) for other in others}


def _close_call(primary: Profile, candidate: Profile, ends: Interval, rules: Limits) -> CloseCall:
    low, high = ends
    is_close = within(gap(primary.accuracy, candidate.accuracy), rules.max_gap)
    ratio = length_ratio(*compared_lengths(primary, candidate, rules)[:2])
    # What the length rule rejects, no gap lets in. An unknown length rejects nothing.
    is_alike = ratio is None or within(ratio, rules.max_length_ratio)
    flips = is_alike and (within(high, rules.max_gap) != is_close or within(low, rules.max_gap) != is_close)
    doubts = [
        *(["it may be the more accurate of the two"] if low < 0 else []),
        *(["the gap may be on the other side of its limit"] if flips else []),
    ]
    if not doubts:
        return CloseCall(ends, None)
    text = (
        f"with {percent(FIGURE_CONFIDENCE)} confidence the gap is {low:.1f} to {high:.1f} points "
        f"(limit {rules.max_gap:g}): {join(doubts)}"
    )
    return CloseCall(ends, text)


def _figures(together: StrategyResult) -> str:
    row, gain, accuracy = together.figures, together.gain, together.figures.accuracy or 0.0
    p_text = "" if row.p_adjusted is None else f"; one-sided p {p_value(row.p_adjusted)}"
    corrected = "" if row.p_adjusted in (None, gain.p_no_gain) else " after correction for all tests"
    n, alone = row.n, row.best_single_accuracy or 0.0
    ends = gain.interval()
    # The test has a correction, and this interval has none.
    seems_shown = together.shown == "not_yet" and not ends[0] <= 0 <= ends[1]
    notes = " The interval has no correction, so it leaves out 0." if seems_shown else ""
    # Zero of n is hardly ever the models' skill: mostly the prompt or the metric does not fit the task.
    if accuracy == alone == 0:
        notes += " No answer at all was right: look at the prompt and at the extracted answers first."
    if alone == 100:
        notes += " The best single model was always right, so an ensemble had nothing to gain on these questions."
    return (
        f"the gain is {describe_gain(gain.points, ends)}{p_text}{corrected}. On "
        f"{counted(n, 'held-out question')} alone, {together.strategy.name} scores {accuracy:.1f} points, and "
        f"{row.best_single_model}, the best single model, {alone:.1f}.{notes}"
    )


def _nothing_fits(selection: Selection) -> str:
    primary = selection.selected[0]
    # Candidates that failed are not named: they may have been the better choice.
    rejected = [decision for decision in selection.decisions if decision.status == "rejected"]
    if not rejected:
        ran = " that could be run" if len(selection.decisions) > 1 else ""
        return f"Use {primary} alone: it is the only candidate{ran}."
    if rejected[0].reason_code in ("full", "other_set"):
        return f"{rejected[0].model} fits {primary} by the rules, but --max-models 1 leaves no set that could decode."
    others = "the other candidate does not fit" if len(rejected) == 1 else f"none of the other {len(rejected)} fits"
    return (
        f"By the rules no set can decode together: {others} {primary}. The next best, {rejected[0].model}: "
        f"{rejected[0].reason}. No set was run, so this is not tested."
    )


def _not_verified(selected: Sequence[str], *, on_logs: bool) -> str:
    why = (
        "the set was not run, because no model runs with --logs. To test it, give `advisor select` a pool of these "
        "models: --pool and --task"
        if on_logs
        else "the set was not run on held-out questions. To run it, use `advisor select` with a pool of these models, "
        "without --no-verify and --scores"
    )
    return (
        f"Cannot tell whether {join(selected)}, decoded together, are better than {selected[0]} alone: by the rules "
        f"they fit, but {why}. {real_sets()}"
    )


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
