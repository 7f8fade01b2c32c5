"""Points by two measures, with names beside them that cover no other name and no mark."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from matplotlib.axes import Axes
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from reports.charts.axes import NAME_SIZE, NARROW, add_axes, set_ticks
from reports.charts.svg import COLOURS, new_figure

LEFT, RIGHT, TOP, BOTTOM = 34, 12, 30, 46  # pixels between the axes and the edges of the drawing

_MARK, _GAP = 8.0, 4.5  # half the width of a mark, and the room between it and its name, in pixels
# Where a name stands beside its point, the best place first; oblique places look accidental.
_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
_ALIGN = {1: "left", 0: "center", -1: "right"}
# How far from its point a name may stand, in multiples of the nearest place; a line leads to those that are not beside.
_RINGS = (1.0, 2.2, 3.4, 4.6, 5.8, 7.0, 8.2)


def point_axes(
    width: int, height: int, xlim: tuple[float, float], ylim: tuple[float, float], *, log: bool = False
) -> Axes:
    """Return axes with these limits, whose x is logarithmic if ``log``; :func:`add_scales` gives them their ticks."""
    axes = add_axes(new_figure(width, height), LEFT, BOTTOM, width - RIGHT, height - TOP)
    if log:
        axes.set_xscale("log")
    axes.set(xlim=xlim, ylim=ylim)
    return axes


def add_scales(axes: Axes, x_label: str, y_label: str, width: int) -> None:
    """Give the axes their ticks and labels."""
    set_ticks(axes.xaxis, 5 if width == NARROW else 9)
    set_ticks(axes.yaxis, 7)
    axes.grid(axis="y")
    axes.tick_params(axis="x", length=4, pad=4)
    axes.set_title(f"↑ {y_label}", pad=14)
    axes.set_xlabel(f"{x_label} →", loc="right")


def write_names(
    axes: Axes,
    names: Sequence[tuple[float, float, str, bool]],
    marks: Sequence[tuple[float, float]],
    avoid: Sequence[Bbox] = (),
) -> None:
    """Write names beside their points, the most important first, as far as there is room; ticks would make it slow."""
    taken = [Bbox.from_bounds(x - _MARK, y - _MARK, 2 * _MARK, 2 * _MARK) for x, y in axes.transData.transform(marks)]
    lines = [box.transformed(axes.transData).padded(2) for box in avoid]
    for x, y, name, bold in names:
        colour = COLOURS["ink" if bold else "muted"]
        text = axes.text(
            x, y, name, fontsize=NAME_SIZE, color=colour, weight="bold" if bold else "normal", va="center_baseline"
        )
        # A name across a line is better than none.
        if not (_stands(text, axes, taken, lines) or _stands(text, axes, taken, ())):
            text.remove()


def _stands(text: Text, axes: Axes, taken: list[Bbox], lines: Sequence[Bbox]) -> bool:
    """Move a text to the nearest free place, and add its box to ``taken``; return whether there is one."""
    point = axes.transData.transform(text.get_position())
    # There is room for half a line above the axes.
    size, room = text.get_window_extent(), Bbox.union([axes.bbox, axes.bbox.translated(2, 12)])
    for ring, (across, up) in product(_RINGS, _SIDES):
        # An oblique name begins above or below its mark, beside a line that runs upwards from it.
        right = across * ring * (4 if up else _MARK + _GAP)
        above = up * ring * (_MARK + 1 + size.height / 2)
        left, bottom = point[0] + right - size.width * (1 - across) / 2, point[1] + above - size.height / 2
        box = Bbox.from_bounds(left, bottom, size.width, size.height)
        # A text may be drawn a part of a pixel from the place that it is given.
        if room.contains(*box.min) and room.contains(*box.max) and not box.padded(0.5).count_overlaps([*taken, *lines]):
            break
    else:
        return False
    taken.append(box)
    # Held at the end that faces the point, because the browser's font is narrower than matplotlib's.
    edge = {1: box.x0, 0: (box.x0 + box.x1) / 2, -1: box.x1}[across]
    to_data = axes.transData.inverted()
    text.set(position=to_data.transform((edge, (box.y0 + box.y1) / 2)), ha=_ALIGN[across])
    if ring > 1:
        axes.plot(*to_data.transform([point, point.clip(box.min, box.max)]).T, color=COLOURS["muted"], linewidth=0.8)
    return True
