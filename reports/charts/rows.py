"""Drawings with a name and a mark on each line, for a wide and for a narrow page."""

from __future__ import annotations

from collections.abc import Callable

from reports import text
from reports.charts.canvas import Canvas
from reports.charts.scales import Scale
from reports.read.measurements import Measurements

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


def interval_mark(canvas: Canvas, row: Measurements, shape: str, x: Scale, y: float) -> None:
    """Draw a row's accuracy and its interval, as far as they are known."""
    if row.accuracy is None:
        return
    if row.accuracy_ci is not None:
        low, high = row.accuracy_ci
        canvas.line((x(low), y), (x(high), y), shape, width=3 if shape == "ensemble" else 2)
    # The drawing has no room for numbers beside the marks, so they are shown on hover.
    title = f"{row.name}: {text.points(row.accuracy)} points, interval {text.interval(row.accuracy_ci)}"
    canvas.mark(x(row.accuracy), y, shape, title=title)


def row_name(canvas: Canvas, name: str, x: Scale, y: float, above: float, *, bold: bool) -> None:
    """Write a row's name: beside the row on a wide drawing, ``above`` pixels above it on a narrow one."""
    if canvas.width == WIDE:
        canvas.text(0, y, text.shortened(name, 24), size=_NAME_SIZE, bold=bold)
    else:
        canvas.text(x.start, y + above, text.shortened(name, 40), size=_NAME_SIZE, bold=bold)
