"""What to run as a headline, its gain and how certain that is; and what is proven about decoding together."""

from __future__ import annotations

from typing import Any

from reports import text
from reports.charts.canvas import Canvas
from reports.charts.rows import NARROW
from reports.charts.scales import Scale
from reports.read.fields import Interval
from reports.read.result import Result
from reports.read.strategies import Recommended, StrategyRow

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def values(result: Result) -> dict[str, Any]:
    """Return the template's values."""
    recommended, run = result.strategies.recommended, result.ensemble
    delta, ends = (None, None) if run is None else (run.delta, run.delta_ci)
    if recommended is not None:
        # A single model has no gain: it is what the others are compared with.
        is_single = recommended.row.is_single
        delta, ends = (None, None) if is_single else (recommended.gain, recommended.gain_ci)
    return {
        "headline": headline(result),
        "recommended": recommended,
        "evidence": strategy_certainty(result, recommended) if recommended else "",
        "certainty": certainty(result),
        "delta": delta,
        "figure": draw_delta(delta, ends),
    }


def headline(result: Result) -> str:
    """Return what to run in a few words; without a recommendation the verdict."""
    recommended = result.strategies.recommended
    return verdict_headline(result) if recommended is None else _strategy_headline(recommended.row)


def verdict_headline(result: Result) -> str:
    """Return the verdict on the set that decodes together in a few words."""
    if result.verdict == "ensemble":
        size = len(result.selected)
        return f"Ensemble these {_number(size)} models." if size > 1 else "Ensemble the chosen models."
    if result.verdict == "cannot_tell":
        return "Too close to call."
    # The best member on held-out questions may be another one than the primary on dev.
    if result.ensemble and result.ensemble.best_single_model:
        return f"Use {result.ensemble.best_single_model} alone."
    return f"Use {result.primary.name if result.primary else 'the best model'} alone."


def certainty(result: Result) -> str:
    """Return how certain the verdict on the set that decodes together is, as sentences."""
    run = result.ensemble
    recommended = result.strategies.recommended is not None
    if run is None:
        # With a recommendation the verdict's text says so, and why.
        was_chosen = len(result.selected) > 1 and not recommended
        return "The chosen set was not run together, so no gain was measured." if was_chosen else ""
    sentences = (
        _changes("The ensemble", run.gained, run.lost),
        _interval(run.delta_ci),
        _chance(run.p_value),
        # A recommendation says it beside its own figures.
        "" if recommended else _other_best(result),
        _close_calls(result),
    )
    return _joined(sentences)


def strategy_certainty(result: Result, recommended: Recommended) -> str:
    """Return how certain the gain of the recommended strategy is, as sentences."""
    row = recommended.row
    if row.is_single:
        return _joined(("The test compares the other strategies with this model.", _other_best(result)))
    tests = sum(not each.is_single for each in result.strategies.rows)
    corrected = f" after Holm’s correction for {tests} strategies" if tests > 1 else ""
    ends = recommended.gain_ci
    # The interval has no correction, so it and the test may seem to contradict each other.
    seems_shown = ends is not None and recommended.shown == "not_yet" and not ends[0] <= 0 <= ends[1]
    alone = "The interval is that of this strategy alone, without the correction." if seems_shown and tests > 1 else ""
    sentences = (
        _changes("The strategy", row.gained, row.lost),
        _interval(recommended.gain_ci),
        "" if row.p_value is None else f"The test gives p {text.p_value(row.p_value)}{corrected}.",
        alone,
        _other_best(result),
    )
    return _joined(sentences)


def draw_delta(delta: float | None, ends: Interval | None) -> str | None:
    """Draw a difference to the best single model with its interval, beside zero; None if either is unknown."""
    if delta is None or ends is None:
        return None
    low, high = ends
    # The scale always shows zero, so that the reader sees whether the interval includes it.
    reach = max(high, 0.0) - min(low, 0.0) or 1.0
    canvas = Canvas(NARROW, 64)
    x = Scale(min(low, 0.0) - 0.12 * reach, max(high, 0.0) + 0.12 * reach, 6, NARROW - 6)
    y, zero = 42.0, x(0.0)
    # Green is the colour of a gain.
    colour = "rejected" if delta < 0 else "ensemble"
    canvas.line((x.start, y), (x.end, y), "rule")
    canvas.line((zero, y - 16), (zero, y + 16), "muted", dash=(3, 3))
    canvas.line((x(low), y), (x(high), y), colour, width=4)
    canvas.mark(x(delta), y, "ensemble", colour=colour)
    # The labels of the ends are below the line and that of zero above it, because they may be close together.
    aside = 6 if zero < NARROW / 2 else -6
    canvas.text(zero + aside, y + 14, "no difference", size=12, colour="muted", align="left" if aside > 0 else "right")
    for end, align in ((low, "left"), (high, "right")):
        canvas.text(x(end), y - 20, text.difference(end), size=12, colour="muted", align=align)
    return canvas.markup(f"The difference is {text.difference(delta)}, interval {text.difference_interval(ends)}.")


def _strategy_headline(row: StrategyRow) -> str:
    count, first = _number(len(row.members)), row.members[0]
    headlines = {
        "single": f"Use {first} alone.",
        "vote": f"Take a vote of {count} models.",
        "weighted_vote": f"Take a weighted vote of {count} models.",
        "cascade": f"Run a cascade of {count} models.",
        "router": f"Send each question to one of {count} models.",
        "group_router": f"Send each group of questions to one of {count} models.",
        "self_consistency": f"Take the majority of {_number(row.draws)} responses of {first}.",
    }
    return headlines.get(row.name, f"Decode these {count} models together.")


def _changes(subject: str, gained: int | None, lost: int | None) -> str:
    if gained is None or lost is None:
        return ""
    corrected, wrong = f"{gained:,}" if gained else "no", f"{lost:,}" if lost else "none"
    noun = "answer" if gained == 1 else "answers"
    return f"{subject} corrected {corrected} {noun} of the best single model, and made {wrong} wrong."


def _interval(ends: Interval | None) -> str:
    if ends is None:
        return ""
    low, high = ends
    about = "includes zero, no difference at all" if low <= 0 <= high else "does not include zero"
    return f"The 95% interval of the difference, {text.difference_interval(ends)} points, {about}."


def _chance(p_value: float | None) -> str:
    if p_value is None:
        return ""
    # Readers understand a frequency better than a probability.
    if p_value < 0.001:
        often = "in fewer than 1 of 1,000 tries"
    elif p_value < 0.1:
        often = f"in about 1 of {round(1 / p_value):,} tries"
    else:
        often = f"in about {round(100 * p_value)} of 100 tries"
    return f"If the two were equally good, chance alone would give a difference this large {often}."


def _other_best(result: Result) -> str:
    """Say it if the most accurate model on dev is not the one that gains are measured against."""
    primary, best = result.primary, result.best_single
    if primary is None or best is None or best is primary:
        return ""
    return (
        f"{primary.name} was the most accurate model on the dev questions, {best.name} on the held-out ones; gains are "
        f"measured against {best.name}."
    )


def _close_calls(result: Result) -> str:
    fragile = sum(bool(candidate.fragile) for candidate in result.candidates)
    if not fragile:
        return ""
    noun = "decision of the rules was a close call" if fragile == 1 else "decisions of the rules were close calls"
    return f"{_number(fragile).capitalize()} {noun}; see the leaderboard."


def _joined(sentences: tuple[str, ...]) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


def _number(count: int) -> str:
    return _NUMBERS[count] if 0 <= count < len(_NUMBERS) else f"{count:,}"
