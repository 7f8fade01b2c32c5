"""Drawings with a name and a mark on each line, for a wide and for a narrow page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from advisor.runs.schema.measured import Accuracy
from ensemble.common import text
from reports.charts.canvas import Canvas
from reports.charts.scales import Scale, points_scale

WIDE, NARROW = 904, 358  # CSS pixels that the page leaves for a drawing on a desk, and on a phone of 390 pixels
COLUMN = 190  # for the names beside a wide drawing; a narrow one has no room beside, so they are above the lines
_NAME_SIZE = 12.5


def both_widths(draw: Callable[[int], str | None]) -> dict[str, str] | None:
    """Draw once for a wide page and once for a narrow one, where the wide drawing would be too small to read."""
    wide, narrow = draw(WIDE), draw(NARROW)
    return None if wide is None or narrow is None else {"wide": wide, "narrow": narrow}


def axis(canvas: Canvas, x: Scale, bottom: float, label: str, most: int) -> None:
    """Draw a scale with its label along the bottom, and at most ``most`` lines upwards from its ticks."""
    for value in x.ticks(most):
        canvas.line((x(value), bottom), (x(value), canvas.height), "rule", width=0.8)
        canvas.text(x(value), bottom - 14, f"{value:,g}", size=11.5, colour="muted", align="center")
    canvas.line((x.start, bottom), (x.end, bottom), "muted")
    canvas.text(x.end, 8, f"{label} →", size=11.5, colour="muted", align="right")


def interval_mark(canvas: Canvas, name: str, row: Accuracy, shape: str, x: Scale, y: float) -> None:
    """Draw a row's accuracy and its interval, as far as they are known."""
    if row.accuracy is None:
        return
    if row.accuracy_ci is not None:
        low, high = row.accuracy_ci
        canvas.line((x(low), y), (x(high), y), shape, width=3 if shape == "ensemble" else 2)
    # The drawing has no room for numbers beside the marks, so they are shown on hover.
    title = f"{name}: {text.points(row.accuracy)} points, interval {text.interval(row.accuracy_ci)}"
    canvas.mark(x(row.accuracy), y, shape, title=title)


def row_name(canvas: Canvas, name: str, x: Scale, y: float, above: float, *, bold: bool) -> None:
    """Write a row's name: beside the row on a wide drawing, ``above`` pixels above it on a narrow one."""
    if canvas.width == WIDE:
        canvas.text(0, y, text.shortened(name, 24), size=_NAME_SIZE, bold=bold)
    else:
        canvas.text(x.start, y + above, text.shortened(name, 40), size=_NAME_SIZE, bold=bold)


def accuracy_and_cost(
    rows: Sequence[tuple[str, Accuracy, str, bool, float | None]],
    width: int,
    best_single: float | None,
    cost: str,
    written: Callable[[float], str],
    *,
    log: bool,
    measure: str,
) -> str | None:
    """Draw the accuracy of each row on the left and its cost on the right; None if no accuracy is known.

    Args:
        rows: For each row its name, its measurements, the shape of its mark, whether its name is bold, and its cost.
        width: Of the drawing, in CSS pixels.
        best_single: The accuracy of the best single model, which becomes a dashed line.
        cost: What the cost is, in words.
        written: A cost as text, with its unit.
        log: Whether the costs have a logarithmic scale; one that is not begins at 0.
        measure: What the points are; see :attr:`advisor.runs.schema.result.Result.measure`.
    """
    known = [row for row in rows if row[1].accuracy is not None]
    if not known:
        return None
    wide = width == WIDE
    start, step, foot = (COLUMN, 29, 44) if wide else (8, 44, 44)
    # The scale of costs has about a third of the width, with a gap between the two.
    middle = 0.66 * width
    canvas = Canvas(width, step * len(known) + foot)
    ends = [end for _, row, *_ in known for end in (row.accuracy or 0.0, *(row.accuracy_ci or ()))]
    x = points_scale(ends, start, middle - 24, pad=1.5)
    axis(canvas, x, foot, f"{measure}, points", 8 if wide else 4)
    if best_single is not None:
        canvas.line((x(best_single), foot), (x(best_single), canvas.height), "muted", dash=(3, 3))
    scale = _cost_scale([each for *_, each in known], middle, width - 12, log=log)
    if scale is not None:
        axis(canvas, scale, foot, cost + (" (log scale)" if log and wide else ", log" if log else ""), 6 if wide else 3)
    for index, (name, row, shape, bold, own) in enumerate(known):
        y = canvas.height - step * index - (step / 2 if wide else 29)
        row_name(canvas, name, x, y, 16, bold=bold)
        interval_mark(canvas, name, row, shape, x, y)
        if scale is not None and own is not None and own > 0:
            canvas.mark(scale(own), y, shape, title=f"{name}: {written(own)}")
    what = f"{measure.capitalize()} with intervals and {cost}"
    return canvas.markup(f"{what} of {len(known)} methods and models; the table has the numbers.")


def _cost_scale(costs: Sequence[float | None], start: float, end: float, *, log: bool) -> Scale | None:
    # A logarithm has no place for a cost of zero.
    known = [cost for cost in costs if cost is not None and cost > 0]
    if not known:
        return None
    return Scale(min(known) / 1.3 if log else 0.0, max(known) * (1.3 if log else 1.1), start, end, log=log)
