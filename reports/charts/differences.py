"""Drawings of differences from the best single model: a mark with its interval on each line, beside zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from ensemble.common import text
from reports.charts.axes import NARROW, WIDE, add_axes, interval, linear_limits, mark, reference
from reports.charts.rows import add_scale, row_axes
from reports.charts.svg import COLOURS, markup, new_figure

if TYPE_CHECKING:
    from advisor.statistics import Interval

_GAINS = ("ensemble", "rejected")


@dataclass(frozen=True, slots=True)
class Mark:
    """A difference on a line.

    Attributes:
        shape: A status, or ``ensemble``; see :func:`reports.charts.axes.mark`.
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
    axes = add_axes(new_figure(NARROW, 64), 6, 26, NARROW - 6, 58)
    axes.spines["bottom"].set_visible(False)
    # The scale always shows zero, so that the reader sees whether the interval includes it, and has room for the words.
    axes.set(xlim=linear_limits((*ends, 0.0), 0.24), ylim=(-1, 1))
    axes.axhline(0, color=COLOURS["rule"], linewidth=1)
    reference(axes, 0.0)
    _gain_interval(axes, ends, 0, 4)
    mark(axes, points, 0, shape_of(points))
    # The words are above the line and the labels of the ends below it, because they may be close together.
    words = [(0.0, (-6, 14), "right", "← worse"), (0.0, (6, 14), "left", "better →")]
    labels = [(ends[0], (0, -20), "left"), (ends[1], (0, -20), "right")]
    for x, offset, align, label in [*words, *((*each, text.difference(each[0])) for each in labels)]:
        axes.annotate(
            label, (x, 0), xytext=offset, textcoords="offset points", ha=align, va="center_baseline",
            color=COLOURS["muted"], annotation_clip=False,
        )  # fmt: skip
    return markup(axes, f"The difference is {text.difference(points)}, interval {text.difference_interval(ends)}.")


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
    # Two marks on a line need room below its name.
    tall = width != WIDE and any(len(marks) > 1 for _, marks, _ in rows)
    axes = row_axes([name for name, *_ in rows], width, row=56 if tall else 30, bold=[bold for *_, bold in rows])
    ends = [end for _, marks, _ in rows for each in marks for end in (each.points, *(each.ends or ()))]
    add_scale(axes, axis_label, linear_limits([0.0, *ends]), 8 if width == WIDE else 5)
    reference(axes, 0.0)
    for row, (name, marks, _) in enumerate(rows):
        for place, each in enumerate(marks):
            y = row + (place - (len(marks) - 1) / 2) * 0.3
            if each.ends is not None:
                _gain_interval(axes, each.ends, y, 2, colour="" if each.shape in _GAINS else each.shape)
            title = f"{name}, {each.what}: {text.difference(each.points)}, {text.difference_interval(each.ends)}"
            mark(axes, each.points, y, each.shape, title=title)
    return markup(axes, label)


def shape_of(points: float | None) -> str:
    """The mark and colour of a gain, or of one that is not known; no gain and a loss have others, never green."""
    return "rejected" if points is not None and points <= 0 else "ensemble"


def _gain_interval(axes: Axes, ends: Interval, y: float, width: float, colour: str = "") -> None:
    """Draw an interval. Without a colour, the part below zero has that of losses, and the part above that of gains."""
    low, high = ends
    for start, end, own in ((low, min(high, 0.0), "rejected"), (max(low, 0.0), high, "ensemble")):
        if start < end or (start == end and low == high):
            interval(axes, start, end, y, colour or own, width)
