"""Drawings with a name and a mark on each line, for a wide and for a narrow page."""

from __future__ import annotations

from dataclasses import dataclass

from reports import words
from reports.model import Interval
from reports.scales import Scale
from reports.svg import Canvas

WIDE, NARROW = 904, 358
"""Pixels across: what the page leaves for a drawing on a desk and on a phone of 390 pixels."""

COLUMN = 190
"""Pixels for the names beside a wide drawing; a narrow one has them above the lines."""
NAME = 12.5


@dataclass(frozen=True, slots=True)
class Drawing:
    """The same drawing for a wide and for a narrow page, as SVG markup."""

    wide: str
    narrow: str


@dataclass(frozen=True, slots=True)
class Row:
    """Whose accuracy it is, the mark for it, and the accuracy in points with its interval."""

    name: str
    shape: str
    accuracy: float
    interval: Interval | None


def both(wide: str | None, narrow: str | None) -> Drawing | None:
    """Return the two as one; None where there is nothing to draw."""
    return Drawing(wide, narrow) if wide is not None and narrow is not None else None


def axis(canvas: Canvas, x: Scale, bottom: float, label: str, most: int) -> None:
    """Draw a scale along the bottom with its lines upwards, ``most`` of them, and what it measures below."""
    for value in x.ticks(most):
        canvas.line((x(value), bottom), (x(value), canvas.height), "rule", width=0.8)
        canvas.text(x(value), bottom - 14, f"{value:,g}", size=11.5, colour="muted", align="center")
    canvas.line((x.start, bottom), (x.end, bottom), "muted")
    canvas.text(x.end, 8, f"{label} →", size=11.5, colour="muted", align="right")


def interval_mark(canvas: Canvas, row: Row, x: Scale, y: float) -> None:
    """Draw a row's accuracy and its interval."""
    if row.interval is not None:
        width = 3 if row.shape == "ensemble" else 2
        canvas.line((x(row.interval[0]), y), (x(row.interval[1]), y), row.shape, width=width)
    title = f"{row.name}: {words.points(row.accuracy)} points, interval {words.interval(row.interval)}"
    canvas.mark(x(row.accuracy), y, row.shape, title=title)


def row_name(canvas: Canvas, name: str, x: Scale, y: float, above: float, *, bold: bool) -> None:
    """Write a row's name: on a wide drawing beside it, on a narrow one so many pixels above it."""
    if canvas.width == WIDE:
        canvas.text(0, y, words.shortened(name, 24), size=NAME, bold=bold)
    else:
        canvas.text(x.start, y + above, words.shortened(name, 40), size=NAME, bold=bold)
