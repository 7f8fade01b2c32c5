"""Together and alone: the ensemble and its members on the held-out questions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reports import text
from reports.charts.canvas import Canvas
from reports.charts.rows import COLUMN, NARROW, WIDE, axis, both_widths, interval_mark, row_name
from reports.charts.scales import points_scale
from reports.read.result import EnsembleRun, Result


def values(result: Result) -> dict[str, Any] | None:
    """Return the template's values; None if the ensemble has no accuracy."""
    run = result.ensemble
    figure = both_widths(lambda width: _draw(run, result.short_names, width)) if run else None
    return figure and {"run": run, "figure": figure}


def _draw(run: EnsembleRun, short_names: dict[str, str], width: int) -> str | None:
    """Draw the ensemble and its members, each with its interval."""
    if run.accuracy is None:
        return None
    # Full hub ids would not fit beside the rows.
    members = [replace(each, name=short_names.get(each.name, each.name)) for each in run.members]
    rows = [replace(run, name=f"{run.name} ensemble"), *(each for each in members if each.accuracy is not None)]
    start, step, foot = (COLUMN, 38, 44) if width == WIDE else (8, 46, 44)
    canvas = Canvas(width, step * len(rows) + foot)
    # The scale has room for the intervals and not for the accuracies only.
    ends = [end for row in rows for end in (row.accuracy or 0.0, *(row.accuracy_ci or ()))]
    x = points_scale(ends, start, width - 52, pad=1.5)
    axis(canvas, x, foot, "accuracy, points", 5 if width == NARROW else 10)
    if run.best_single is not None:
        # The line is what the ensemble has to pass.
        at = x(run.best_single)
        canvas.line((at, foot), (at, canvas.height), "muted", dash=(3, 3))
    for index, row in enumerate(rows):
        y = canvas.height - step * index - (step / 2 if width == WIDE else 31)
        row_name(canvas, row.name, x, y, 17, bold=index == 0)
        interval_mark(canvas, row, "selected" if index else "ensemble", x, y)
        canvas.text(canvas.width - 4, y, text.points(row.accuracy), size=13, bold=index == 0, align="right")
    label = f"Accuracy of the ensemble and of its {len(rows) - 1} members, with intervals; the table has the numbers."
    return canvas.markup(label)
