"""Methods side by side, drawn: a line each with its accuracy, and beside it what a token of it costs."""

from __future__ import annotations

from reports import words
from reports.evaluation import Evaluation, Kind, Line
from reports.rows import COLUMN, WIDE, Row, axis, interval_mark, row_name
from reports.scales import Scale, points_scale
from reports.svg import Canvas

SHAPES: dict[Kind, str] = {"member": "selected", "method": "ensemble", "control": "rejected"}


def draw_methods(evaluation: Evaluation | None, width: int) -> str | None:
    """Draw what was run, best first; None where nothing has a known accuracy."""
    known = [(line.accuracy, line) for line in evaluation.lines if line.accuracy is not None] if evaluation else []
    if evaluation is None or not known:
        return None
    wide = width == WIDE
    start, step, foot = (COLUMN, 29, 44) if wide else (8, 44, 44)
    # The scale of costs has about a third of the room, with a gap between the two.
    middle = 0.66 * width
    known.sort(key=lambda pair: -pair[0])
    canvas = Canvas(width, step * len(known) + foot)
    ends = [end for accuracy, line in known for end in (accuracy, *(line.accuracy_ci or ()))]
    x = points_scale(ends, start, middle - 24, pad=1.5)
    axis(canvas, x, foot, "accuracy, points", 8 if wide else 4)
    if evaluation.limit is not None:
        at = x(evaluation.limit)
        canvas.line((at, foot), (at, canvas.height), "muted", dash=(3, 3))
    cost = _cost_scale([line for _, line in known], middle, width - 12)
    if cost is not None:
        axis(canvas, cost, foot, "ms a token (log scale)" if wide else "ms a token, log", 6 if wide else 3)
    for index, (accuracy, line) in enumerate(known):
        y = canvas.height - step * index - (step / 2 if wide else 29)
        row = Row(line.name, SHAPES[line.kind], accuracy, line.accuracy_ci)
        row_name(canvas, line.name, x, y, 16, bold=line.kind == "method")
        interval_mark(canvas, row, x, y)
        if cost is not None and line.ms_per_token is not None and line.ms_per_token > 0:
            canvas.mark(cost(line.ms_per_token), y, row.shape, title=f"{line.name}: {words.cost(line.ms_per_token)} ms")
    what = f"{len(known)} methods and models"
    return canvas.markup(f"Accuracy with intervals and milliseconds a token of {what}; the table has the numbers.")


def _cost_scale(lines: list[Line], start: float, end: float) -> Scale | None:
    values = [line.ms_per_token for line in lines if line.ms_per_token is not None and line.ms_per_token > 0]
    return Scale(min(values) / 1.3, max(values) * 1.3, start, end, log=True) if values else None
