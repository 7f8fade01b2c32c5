"""Methods side by side: the accuracy of each and its cost per token, from ``evaluation.json``."""

from __future__ import annotations

from typing import Any

from reports import text
from reports.charts.canvas import Canvas
from reports.charts.rows import COLUMN, WIDE, axis, both_widths, interval_mark, row_name
from reports.charts.scales import Scale, points_scale
from reports.read.evaluation import MethodRow, MethodTable
from reports.read.result import Result

_SHAPES = {"member": "selected", "method": "ensemble", "control": "rejected"}


def values(result: Result) -> dict[str, Any] | None:
    """Return the template's values; None without an evaluation."""
    table = result.evaluation
    if table is None:
        return None
    # The run may have chosen another set since its methods were evaluated.
    current = table.members == [candidate.name for candidate in result.selected]
    return {
        "evaluation": table,
        "current": current,
        "known_memory": any(row.peak_memory is not None for row in table.rows),
        "figure": both_widths(lambda width: _draw(table, width)) if current else None,
    }


def _draw(table: MethodTable, width: int) -> str | None:
    """Draw all rows with a known accuracy, best first: the accuracy on the left, the cost per token on the right."""
    # A method that was left out has no accuracy, and only a row in the table.
    known = sorted(
        ((row.accuracy, row) for row in table.rows if row.accuracy is not None), key=lambda pair: pair[0], reverse=True
    )
    if not known:
        return None
    wide = width == WIDE
    start, step, foot = (COLUMN, 29, 44) if wide else (8, 44, 44)
    # The scale of costs has about a third of the width, with a gap between the two.
    middle = 0.66 * width
    canvas = Canvas(width, step * len(known) + foot)
    ends = [end for accuracy, row in known for end in (accuracy, *(row.accuracy_ci or ()))]
    x = points_scale(ends, start, middle - 24, pad=1.5)
    axis(canvas, x, foot, "accuracy, points", 8 if wide else 4)
    best_single = [accuracy for accuracy, row in known if (row.kind, row.name) == ("member", table.best_single)]
    if best_single:
        at = x(best_single[0])
        canvas.line((at, foot), (at, canvas.height), "muted", dash=(3, 3))
    cost = _cost_scale([row for _, row in known], middle, width - 12)
    if cost is not None:
        axis(canvas, cost, foot, "ms a token (log scale)" if wide else "ms a token, log", 6 if wide else 3)
    for index, (_, row) in enumerate(known):
        y, shape = canvas.height - step * index - (step / 2 if wide else 29), _SHAPES[row.kind]
        row_name(canvas, row.name, x, y, 16, bold=row.kind == "method")
        interval_mark(canvas, row, shape, x, y)
        if cost is not None and row.ms_per_token is not None and row.ms_per_token > 0:
            title = f"{row.name}: {text.milliseconds(row.ms_per_token)} ms"
            canvas.mark(cost(row.ms_per_token), y, shape, title=title)
    what = f"{len(known)} methods and models"
    return canvas.markup(f"Accuracy with intervals and milliseconds a token of {what}; the table has the numbers.")


def _cost_scale(rows: list[MethodRow], start: float, end: float) -> Scale | None:
    # A logarithm has no place for a cost of zero.
    costs = [row.ms_per_token for row in rows if row.ms_per_token is not None and row.ms_per_token > 0]
    return Scale(min(costs) / 1.3, max(costs) * 1.3, start, end, log=True) if costs else None
