"""Strategies: everything that could run in production, and the recommended one in groups."""

from __future__ import annotations

from typing import Any

from advisor.runs.schema.result import Result, StrategyFigures
from ensemble.common import text
from reports.charts.axes import both_widths
from reports.charts.rows import Mark, accuracy_and_cost, draw_differences, shape_of
from reports.report_data import ReportData
from reports.sections.verdict import strategy_certainty

MOST_STRATEGIES = 100  # a run has about ten; a page of thousands would be of no use
_MOST_KNOWN_GROUPS = 1000  # a run gives no gains for more
_MOST_DRAWN = 20
_MOST_GROUPS = 40
_OPTIONAL = ("expected_gain", "tokens_per_question", "seconds_per_question", "price_per_1000")
_MOST_NAMES = 12


def values(report: ReportData) -> dict[str, Any] | None:
    """Return the template's values; None without strategies."""
    result = report.result
    rows, recommended = result.strategies[:MOST_STRATEGIES], result.recommended
    not_compared = result.advice.not_compared[:MOST_STRATEGIES]
    if not rows:
        return None
    return {
        "rows": [(row, row.title, _members(row)) for row in rows],
        "total": len(result.strategies),
        "recommended": recommended.key if recommended else None,
        "best_single": next((row.best_single_model for row in rows if row.best_single_model), ""),
        # A column that is empty for every strategy is left out.
        "columns": {name for name in _OPTIONAL if any(getattr(row, name) is not None for row in rows)},
        "interval": text.interval_name(result.advice.confidence),
        "notes": strategy_certainty(result, recommended) if recommended else "",
        "why": _why_not_the_top(result),
        "not_compared": [(each.strategy.replace("_", " "), each.same_as.replace("_", " ")) for each in not_compared],
        "figure": both_widths(lambda width: _draw(result, width)),
    }


def groups(report: ReportData) -> dict[str, Any] | None:
    """Return the values of the groups' template; None if the recommended strategy has no groups."""
    result = report.result
    recommended = result.recommended
    # A single model gains nothing over itself.
    is_gain = recommended is not None and not recommended.is_single
    every = (recommended.groups or ())[:_MOST_KNOWN_GROUPS] if recommended and is_gain else ()
    if not every:
        return None
    # What is hurt must not be among those that are left out.
    rows = sorted(every, key=lambda each: (each.shown != "no", each.gain or 0.0))[:_MOST_GROUPS]
    drawn = [
        (each.group, [Mark(each.gain, each.gain_ci, shape_of(each.gain), "gain")], each.shown == "no")
        for each in rows
        if each.gain is not None
    ]
    if recommended is not None and (gain := recommended.measured_gain) is not None:
        pooled = Mark(gain, recommended.measured_gain_ci, shape_of(gain), "gain")
        drawn.insert(0, ("all questions", [pooled], False))
    label = f"Gain in {len(rows)} groups of questions, with intervals; the table has the numbers."
    return {
        "rows": rows,
        "total": len(every),
        "hurt": any(each.shown == "no" for each in every),
        "interval": text.interval_name(result.advice.confidence),
        "figure": both_widths(lambda width: draw_differences(drawn, width, "gain, points", label)),
    }


def _why_not_the_top(result: Result) -> str:
    """The recommendation in full, where another strategy has more points: it says why that one is not recommended."""
    own, recommended = result.advice.recommendation, result.recommended
    # On the first screen a single model has this text.
    if own is None or recommended is None or recommended.is_single or recommended.accuracy is None:
        return ""
    most = max((row.accuracy for row in result.strategies if row.accuracy is not None), default=recommended.accuracy)
    return text.sentence(own.text) if text.points(most) != text.points(recommended.accuracy) else ""


def _members(row: StrategyFigures) -> str:
    """The members in the order in which they are asked, with the weights of their votes."""
    if len(row.members) == 1:
        return ""  # the strategy's name has it
    names = row.members[:_MOST_NAMES]
    more = len(row.members) - len(names)
    return row.key.list_members(names) + (f" and {more:,} more" if more else "")


def _draw(result: Result, width: int) -> str | None:
    """Draw the accuracy of each strategy on the left, and its calls a question on the right."""
    recommended = result.recommended
    drawn = [
        (row.key.title([result.short_names.get(name, name) for name in row.members]), row)
        for row in result.strategies[:_MOST_DRAWN]
    ]
    best = max((row.accuracy for _, row in drawn if row.is_single and row.accuracy is not None), default=None)
    key = recommended.key if recommended else None
    rows = [(name, row, _shape(row), row.key == key, row.calls_per_question) for name, row in drawn]
    return accuracy_and_cost(rows, width, best, "calls a question", _calls, log=False, measure=result.measure)


def _calls(value: float) -> str:
    return f"{text.decimals(value)} calls"


def _shape(row: StrategyFigures) -> str:
    # The colour of a gain is not that of a loss.
    if row.is_single:
        return "selected"
    return shape_of(row.measured_gain)
