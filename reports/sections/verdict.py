"""The verdict as a headline, and how certain it is, in words and as the interval of the difference."""

from __future__ import annotations

from typing import Any

from reports import text
from reports.charts.canvas import Canvas
from reports.charts.rows import NARROW
from reports.charts.scales import Scale
from reports.read.result import EnsembleRun, Result

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def values(result: Result) -> dict[str, Any]:
    """Return the template's values."""
    return {
        "headline": headline(result),
        "certainty": certainty(result),
        "figure": draw_delta(result.ensemble) if result.ensemble else None,
    }


def headline(result: Result) -> str:
    """Return the verdict in a few words."""
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
    """Return how certain the verdict is, as sentences."""
    run = result.ensemble
    if run is None:
        return "The chosen set was not run together, so no gain was measured." if len(result.selected) > 1 else ""
    sentences = (_changes(run), _interval(run), _chance(run), _close_calls(result))
    return " ".join(sentence for sentence in sentences if sentence)


def draw_delta(run: EnsembleRun) -> str | None:
    """Draw the difference to the best single model with its interval, beside zero; None if either is unknown."""
    if run.delta is None or run.delta_ci is None:
        return None
    low, high = run.delta_ci
    # The scale always shows zero, so that the reader sees whether the interval includes it.
    reach = max(high, 0.0) - min(low, 0.0) or 1.0
    canvas = Canvas(NARROW, 64)
    x = Scale(min(low, 0.0) - 0.12 * reach, max(high, 0.0) + 0.12 * reach, 6, NARROW - 6)
    y, zero = 42.0, x(0.0)
    # Green is the colour of a gain.
    colour = "rejected" if run.delta < 0 else "ensemble"
    canvas.line((x.start, y), (x.end, y), "rule")
    canvas.line((zero, y - 16), (zero, y + 16), "muted", dash=(3, 3))
    canvas.line((x(low), y), (x(high), y), colour, width=4)
    canvas.mark(x(run.delta), y, "ensemble", colour=colour)
    # The labels of the ends are below the line and that of zero above it, because they may be close together.
    aside = 6 if zero < NARROW / 2 else -6
    canvas.text(zero + aside, y + 14, "no difference", size=12, colour="muted", align="left" if aside > 0 else "right")
    for end, align in ((low, "left"), (high, "right")):
        canvas.text(x(end), y - 20, text.difference(end), size=12, colour="muted", align=align)
    return canvas.markup(
        f"The difference is {text.difference(run.delta)}, interval {text.difference_interval(run.delta_ci)}."
    )


def _changes(run: EnsembleRun) -> str:
    if run.gained is None or run.lost is None:
        return ""
    mended, broke = f"{run.gained:,}" if run.gained else "no", f"{run.lost:,}" if run.lost else "none"
    noun = "answer" if run.gained == 1 else "answers"
    return f"The ensemble mended {mended} {noun} of the best single model, and broke {broke}."


def _interval(run: EnsembleRun) -> str:
    if run.delta_ci is None:
        return ""
    low, high = run.delta_ci
    about = "includes zero, no difference at all" if low <= 0 <= high else "leaves out zero"
    return f"The 95% interval of the difference, {text.difference_interval(run.delta_ci)} points, {about}."


def _chance(run: EnsembleRun) -> str:
    if run.p_value is None:
        return ""
    # Readers understand a frequency better than a probability.
    if run.p_value < 0.001:
        often = "in fewer than 1 of 1,000 tries"
    elif run.p_value < 0.1:
        often = f"in about 1 of {round(1 / run.p_value):,} tries"
    else:
        often = f"in about {round(100 * run.p_value)} of 100 tries"
    return f"If the two were equally good, chance alone would give a difference this large {often}."


def _close_calls(result: Result) -> str:
    fragile = sum(bool(candidate.fragile) for candidate in result.candidates)
    if not fragile:
        return ""
    noun = "decision of the rules was a close call" if fragile == 1 else "decisions of the rules were close calls"
    return f"{_number(fragile).capitalize()} {noun}; see the leaderboard."


def _number(count: int) -> str:
    return _NUMBERS[count] if count < len(_NUMBERS) else f"{count:,}"
