"""Drawings of differences to the best single model: a mark with its interval on each line, beside zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports import text
from reports.charts.canvas import Canvas
from reports.charts.rows import COLUMN, NARROW, WIDE, axis, row_name
from reports.charts.scales import Scale
from reports.read.fields import Interval


@dataclass(frozen=True, slots=True)
class Mark:
    """A difference on a line.

    Attributes:
        shape: A status, or ``ensemble``; see :meth:`reports.charts.canvas.Canvas.mark`.
        what: What it is, for the text that is shown on hover.
    """

    points: float
    ends: Interval | None
    shape: str
    what: str


def draw_difference(points: float | None, ends: Interval | None) -> str | None:
    """Draw one difference with its interval on a small scale; None if either is unknown."""
    if points is None or ends is None:
        return None
    low, high = ends
    # The scale always shows zero, so that the reader sees whether the interval includes it.
    reach = max(high, 0.0) - min(low, 0.0) or 1.0
    canvas = Canvas(NARROW, 64)
    x = Scale(min(low, 0.0) - 0.12 * reach, max(high, 0.0) + 0.12 * reach, 6, NARROW - 6)
    y, zero = 42.0, x(0.0)
    colour = shape_of(points)
    canvas.line((x.start, y), (x.end, y), "rule")
    canvas.line((zero, y - 16), (zero, y + 16), "muted", dash=(3, 3))
    canvas.line((x(low), y), (x(high), y), colour, width=4)
    canvas.mark(x(points), y, "ensemble", colour=colour)
    # The labels of the ends are below the line and that of zero above it, because they may be close together.
    aside = 6 if zero < NARROW / 2 else -6
    canvas.text(zero + aside, y + 14, "no difference", size=12, colour="muted", align="left" if aside > 0 else "right")
    for end, align in ((low, "left"), (high, "right")):
        canvas.text(x(end), y - 20, text.difference(end), size=12, colour="muted", align=align)
    return canvas.markup(f"The difference is {text.difference(points)}, interval {text.difference_interval(ends)}.")


def draw_differences(
    rows: Sequence[tuple[str, Sequence[Mark], bool]], width: int, axis_label: str, label: str
) -> str | None:
    """Draw the differences of each row on one scale; None without rows.

    Args:
        rows: For each row its name, its marks from top to bottom, and whether its name is bold.
        width: Of the drawing, in CSS pixels.
        axis_label: What the scale shows.
        label: What the drawing shows, for screen readers.
    """
    if not rows:
        return None
    wide = width == WIDE
    start, step, foot = (COLUMN, 30, 44) if wide else (8, 44, 44)
    canvas = Canvas(width, step * len(rows) + foot)
    ends = [0.0, *(end for _, marks, _ in rows for mark in marks for end in (mark.points, *(mark.ends or ())))]
    pad = 0.05 * (max(ends) - min(ends)) or 1.0
    x = Scale(min(ends) - pad, max(ends) + pad, start, width - 12)
    axis(canvas, x, foot, axis_label, 8 if wide else 5)
    canvas.line((x(0.0), foot), (x(0.0), canvas.height), "muted", dash=(3, 3))
    for index, (name, marks, bold) in enumerate(rows):
        middle = canvas.height - step * index - (step / 2 if wide else 29)
        row_name(canvas, name, x, middle, 16, bold=bold)
        for place, mark in enumerate(marks):
            y = middle + (4.5 if len(marks) > 1 else 0) * (1 - 2 * place)
            if mark.ends is not None:
                canvas.line((x(mark.ends[0]), y), (x(mark.ends[1]), y), mark.shape, width=2)
            title = f"{name}, {mark.what}: {text.difference(mark.points)}, {text.difference_interval(mark.ends)}"
            canvas.mark(x(mark.points), y, mark.shape, title=title)
    return canvas.markup(label)


def shape_of(points: float) -> str:
    """The mark and colour of a gain, or of a loss: a loss is never green."""
    return "rejected" if points < 0 else "ensemble"
