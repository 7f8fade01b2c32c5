"""Drawings of differences to the best single model: a mark with its interval on each line, beside zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ensemble.common import text
from reports.charts.canvas import Canvas
from reports.charts.rows import COLUMN, NARROW, WIDE, axis, row_name
from reports.charts.scales import Scale

if TYPE_CHECKING:
    from advisor.statistics import Interval

_GAINS = ("ensemble", "rejected")


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
    # Room for the words on both sides of zero.
    x = Scale(min(low, 0.0) - 0.24 * reach, max(high, 0.0) + 0.24 * reach, 6, NARROW - 6)
    y, zero = 42.0, x(0.0)
    canvas.line((x.start, y), (x.end, y), "rule")
    canvas.line((zero, y - 16), (zero, y + 16), "muted", dash=(3, 3))
    _interval(canvas, x, ends, y, width=4)
    canvas.mark(x(points), y, shape_of(points))
    # The labels of the ends are below the line and the words above it, because they may be close together.
    canvas.text(zero - 6, y + 14, "← worse", size=12, colour="muted", align="right")
    canvas.text(zero + 6, y + 14, "better →", size=12, colour="muted")
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
                _interval(canvas, x, mark.ends, y, width=2, colour="" if mark.shape in _GAINS else mark.shape)
            title = f"{name}, {mark.what}: {text.difference(mark.points)}, {text.difference_interval(mark.ends)}"
            canvas.mark(x(mark.points), y, mark.shape, title=title)
    return canvas.markup(label)


def _interval(canvas: Canvas, x: Scale, ends: Interval, y: float, *, width: float, colour: str = "") -> None:
    """Draw an interval. Without a colour, the part below zero has that of losses, and the part above that of gains."""
    low, high = ends
    for start, end, own in ((low, min(high, 0.0), "rejected"), (max(low, 0.0), high, "ensemble")):
        if start < end or (start == end and low == high):
            canvas.line((x(start), y), (x(end), y), colour or own, width=width)


def shape_of(points: float) -> str:
    """The mark and colour of a gain, or of a loss: a loss is never green."""
    return "rejected" if points < 0 else "ensemble"
