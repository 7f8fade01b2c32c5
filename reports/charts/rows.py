"""Drawings with a name and marks on each line, for a wide and for a narrow page; and of gains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from advisor.run.figures import Accuracy
from ensemble.common import text
from reports.charts.axes import (
    NAME_SIZE,
    NARROW,
    WIDE,
    add_axes,
    interval,
    linear_limits,
    log_limits,
    mark,
    points_limits,
    reference,
    set_ticks,
)
from reports.charts.svg import figure_of, markup, new_figure

if TYPE_CHECKING:
    from advisor.statistics import Interval

# The names beside a wide drawing have this width or more; a narrow one has no room beside, so they are above the lines.
_COLUMN, _CHARACTER, _LONGEST = 190, 7.9, 40
_LEFT, _FOOT = 8, 44
# The lines are in the middle of the rows, or below their names.
_TALL_ROW, _NAME_ABOVE = 45, 17


def row_axes(
    names: Sequence[str],
    width: int,
    *,
    row: int = 30,
    right: float = 20,
    bold: Sequence[bool] = (),
    above: bool = False,
) -> Axes:
    """Return axes with a line for each name, at y = 0, 1, 2 and so on from the top; sizes are in CSS pixels."""
    beside = width == WIDE and not above
    longest, row = (_LONGEST, row) if beside else (width // 9, max(row, _TALL_ROW))
    names = [text.shortened(name, longest) for name in names]
    column = max(_COLUMN, _CHARACTER * max(map(len, names), default=0))
    height = row * len(names) + _FOOT
    axes = add_axes(new_figure(width, height), column if beside else _LEFT, _FOOT, width - right, height)
    lowered = 0.0 if beside else 0.5 * _NAME_ABOVE / row
    axes.set_ylim(len(names) - 0.5 - lowered, -0.5 - lowered)
    for y, name in enumerate(names):
        axes.annotate(
            name,
            (0, y),
            xycoords=("axes fraction", "data"),
            xytext=(-column, 0) if beside else (0, _NAME_ABOVE),
            textcoords="offset points",
            fontsize=NAME_SIZE,
            weight="bold" if bold and bold[y] else "normal",
            va="center_baseline",
        )
    return axes


def write_value(axes: Axes, y: float, value: str, offset: float, *, bold: bool = False) -> None:
    """Write a value that ends ``offset`` pixels right of the axes."""
    axes.annotate(
        value,
        (1, y),
        xycoords=("axes fraction", "data"),
        xytext=(offset, 0),
        textcoords="offset points",
        fontsize=13,
        weight="bold" if bold else "normal",
        ha="right",
        va="center_baseline",
    )


def add_scale(axes: Axes, label: str, limits: tuple[float, float], most: int, *, log: bool = False) -> None:
    """Give axes their scale along the bottom, with its label and about ``most`` ticks."""
    if log:
        axes.set_xscale("log")
    axes.set_xlim(*limits)
    set_ticks(axes.xaxis, most)
    axes.grid(axis="x")
    axes.set_xlabel(f"{label} →", loc="right")


def add_points_scale(axes: Axes, rows: Sequence[Accuracy], measure: str, most: int) -> None:
    """Give axes a scale for the accuracies of the rows and their intervals."""
    # The scale has room for the intervals and not for the accuracies only.
    ends = [end for row in rows for end in (row.accuracy or 0.0, *(row.accuracy_ci or ()))]
    add_scale(axes, f"{measure}, points", points_limits(ends, pad=1.5), most)


def accuracy_mark(axes: Axes, name: str, row: Accuracy, shape: str, y: float) -> None:
    """Draw a row's accuracy and its interval, as far as they are known."""
    if row.accuracy is None:
        return
    if row.accuracy_ci is not None:
        interval(axes, *row.accuracy_ci, y, shape, width=3 if shape == "ensemble" else 2)
    # The drawing has no room for numbers beside the marks, so they are shown on hover.
    title = f"{name}: {text.points(row.accuracy)} points, interval {text.interval(row.accuracy_ci)}"
    mark(axes, row.accuracy, y, shape, title=title)


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

    A row is a name, measurements, the shape of its mark, whether the name is bold, and a cost, which `written`
    formats; the unit is the first word of `cost`.
    """
    known = [row for row in rows if row[1].accuracy is not None]
    if not known:
        return None
    wide = width == WIDE
    # The scale of costs has about a third of the width, with a gap between the two.
    middle = 0.66 * width
    axes = row_axes(
        [name for name, *_ in known], width, row=29, right=width - middle + 24, bold=[bold for *_, bold, _ in known]
    )
    add_points_scale(axes, [row for _, row, *_ in known], measure, 8 if wide else 4)
    if best_single is not None:
        reference(axes, best_single)
    # A logarithm has no place for a cost of zero.
    costs = [each for *_, each in known if each is not None and each > 0]
    right = _cost_axes(axes, middle, costs, cost, log=log) if costs else None
    for y, (name, row, shape, _, own) in enumerate(known):
        accuracy_mark(axes, name, row, shape, y)
        if right is not None and own is not None and own > 0:
            mark(right, own, y, shape, title=f"{name}: {written(own)} {cost.partition(' ')[0]}")
    what = f"{measure.capitalize()} with intervals and {cost}"
    return markup(axes, f"{what} of {len(known)} methods and models; the table has the numbers.")


def _cost_axes(beside: Axes, left: float, costs: Sequence[float], cost: str, *, log: bool) -> Axes:
    figure = figure_of(beside)
    width, height = 72 * figure.get_size_inches()
    axes = add_axes(figure, left, _FOOT, width - 20, height)
    axes.set_ylim(beside.get_ylim())
    wide = width > NARROW
    label = cost + (" (log scale)" if log and wide else ", log" if log else "")
    limits = log_limits(costs, 1.3) if log else (0.0, 1.1 * max(costs))
    add_scale(axes, label, limits, 6 if wide else 3, log=log)
    return axes


def draw_gains(rows: Sequence[tuple[str, float, Interval | None, bool]], width: int, label: str) -> str | None:
    """Draw the gain of each row (its name, the gain, an interval, whether the name is bold); None without rows."""
    if not rows:
        return None
    axes = row_axes([name for name, *_ in rows], width, bold=[bold for *_, bold in rows])
    points = [each for _, gain, ends, _ in rows for each in (gain, *(ends or ()))]
    add_scale(axes, "gain, points", linear_limits([0.0, *points]), 8 if width == WIDE else 5)
    reference(axes, 0.0)
    for y, (name, gain, ends, _) in enumerate(rows):
        if ends is not None:
            _gain_interval(axes, ends, y)
        title = f"{name}: {text.difference(gain)}, {text.difference_interval(ends)}"
        mark(axes, gain, y, shape_of(gain), title=title)
    return markup(axes, label)


def shape_of(points: float | None) -> str:
    """The mark and colour of a gain, or of one that is not known; no gain and a loss have others, never green."""
    return "rejected" if points is not None and points <= 0 else "ensemble"


def _gain_interval(axes: Axes, ends: Interval, y: float) -> None:
    """Draw an interval whose part below zero has the colour of losses, and the part above that of gains."""
    low, high = ends
    for start, end, colour in ((low, min(high, 0.0), "rejected"), (max(low, 0.0), high, "ensemble")):
        if start < end or (start == end and low == high):
            interval(axes, start, end, y, colour)
