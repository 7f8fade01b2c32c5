"""Axes in the page's look: their place in a figure, their scales and ticks, and the marks of the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox

from reports.charts.svg import COLOURS, named, new_figure

WIDE, NARROW = 904, 358  # CSS pixels that the page leaves for a drawing on a desk, and on a phone of 390 pixels
NAME_SIZE = 12.5
DASHES = (0, (3, 3))
_MARKERS = {"primary": ("*", 19.0), "selected": ("o", 10.4), "rejected": ("D", 8.8), "ensemble": ("s", 10.4)}
# The digits of the ticks in each power of ten, from many to few.
_DIGITS = ((1, 1.5, 2, 3, 4, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,))


def both_widths(draw: Callable[[int], str | None]) -> dict[str, str] | None:
    """Draw once for a wide page and once for a narrow one, where the wide drawing would be too small to read."""
    wide, narrow = draw(WIDE), draw(NARROW)
    return None if wide is None or narrow is None else {"wide": wide, "narrow": narrow}


def add_axes(figure: Figure, left: float, bottom: float, right: float, top: float) -> Axes:
    """Add axes whose edges are at these pixels of the figure, with a line along the bottom and no ticks."""
    width, height = 72 * figure.get_size_inches()
    axes = figure.add_axes((left / width, bottom / height, (right - left) / width, (top - bottom) / height))
    axes.patch.set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_visible(False)
    return axes


def set_ticks(axis: Axis, most: int) -> None:
    """Give an axis about ``most`` round ticks; its limits and its scale must be final."""
    low, high = sorted(axis.get_view_interval())
    # A narrow logarithmic scale is nearly a linear one.
    if axis.get_scale() == "log" and high / low > 3:
        decades = math.log10(high / low)
        digits = next((digits for digits in _DIGITS if len(digits) * decades <= most), _DIGITS[-1])
        axis.set_major_locator(LogLocator(subs=digits, numticks=most))
    else:
        axis.set_major_locator(MaxNLocator(most, steps=(1, 2, 5, 10)))
    axis.set_minor_locator(NullLocator())
    axis.set_visible(True)
    axis.set_major_formatter(lambda value, _: f"{value:,g}".replace("-", "−"))


def points_limits(values: Sequence[float], pad: float = 3.0) -> tuple[float, float]:
    """Return limits for accuracies, a little wider than the values, within 0 to 100."""
    low, high = min(max(min(values) - pad, 0.0), 99.0), min(max(values) + pad, 100.0)
    return low, max(high, low + 1.0)


def log_limits(values: Sequence[float], pad: float) -> tuple[float, float]:
    """Return limits for a logarithmic scale; the values are above 0."""
    low, high = min(values), max(values)
    return low / pad, max(high * pad, low * (1 + 1e-9))


def linear_limits(values: Sequence[float], pad: float = 0.05) -> tuple[float, float]:
    """Return limits that are wider than the values by a share of their range at each end."""
    low, high = min(values), max(values)
    room = pad * (high - low) or max(1.0, 1e-6 * abs(low))
    return low - room, high + room


def mark(
    axes: Axes,
    x: float,
    y: float,
    shape: str,
    *,
    title: str = "",
    data: Mapping[str, str | int] | None = None,
) -> None:
    """Draw the mark of a status or of the ensemble; a value outside the scale is drawn at the nearer end."""
    marker, size = _MARKERS[shape]
    edge = COLOURS[shape]
    fill, edge = (COLOURS["paper"], edge) if shape == "rejected" else (edge, COLOURS["paper"])
    x, y = clipped(x, axes.get_xlim()), clipped(y, axes.get_ylim())
    name = named(title=title, **(data or {})) if title or data else None
    axes.add_artist(Line2D([x], [y], linestyle="", marker=marker, ms=size, mfc=fill, mec=edge, gid=name, zorder=4))


def clipped(value: float, ends: tuple[float, float]) -> float:
    """Return the value, or the end of the scale that it is beyond."""
    return min(max(value, min(ends)), max(ends))


def interval(axes: Axes, low: float, high: float, y: float, colour: str, width: float = 2.0) -> None:
    """Draw an interval as a line along x, as far as it is on the scale."""
    low, high = (clipped(end, axes.get_xlim()) for end in (low, high))
    axes.add_artist(Line2D([low, high], [y, y], color=COLOURS[colour], linewidth=width, zorder=3))


def reference(axes: Axes, x: float) -> None:
    """Draw a dashed line upwards at ``x``, with which the rows are compared."""
    axes.axvline(x, color=COLOURS["muted"], linestyle=DASHES, linewidth=1)


LEFT, RIGHT, TOP, BOTTOM = 34, 20, 30, 46  # pixels between the axes and the edges of the drawing

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
) -> list[Bbox]:
    """Write names beside their points, the most important first, as far as there is room, and return their boxes.

    Ticks would make it slow.
    """
    taken = [Bbox.from_bounds(x - _MARK, y - _MARK, 2 * _MARK, 2 * _MARK) for x, y in axes.transData.transform(marks)]
    lines = [box.transformed(axes.transData).padded(2) for box in avoid]
    written: list[Bbox] = []
    leaders: list[Path] = []
    for x, y, name, bold in names:
        colour = COLOURS["ink" if bold else "muted"]
        text = axes.text(
            x, y, name, fontsize=NAME_SIZE, color=colour, weight="bold" if bold else "normal", va="center_baseline"
        )
        # An important name across a line is better than none.
        found = _place(text, axes, [*taken, *written], lines, written, leaders)
        if found is None and bold:
            found = _place(text, axes, [*taken, *written], (), written, leaders)
        if found is None:
            text.remove()
            continue
        box, leader = found
        written.append(box)
        if leader is not None:
            leaders.append(leader)
            axes.plot(*axes.transData.inverted().transform(leader.vertices).T, color=COLOURS["muted"], linewidth=0.8)
    # A browser's box is higher than the letters.
    return [box.padded(1, 4).transformed(axes.transData.inverted()) for box in written]


def draw_lines(axes: Axes, lines: Sequence[Bbox], names: Sequence[Bbox], colour: str, width: float) -> None:
    """Draw level and upright lines; upright ones are left out where a name stands on them."""
    for each in lines:
        on_it = [name for name in names if name.x0 <= each.x0 == each.x1 <= name.x1]
        cuts = sorted(clipped(end, each.intervaly) for name in on_it for end in name.intervaly)
        for low, high in zip([each.y0, *cuts[1::2]], [*cuts[::2], each.y1], strict=True):
            if low < high or each.x0 < each.x1:
                axes.plot([each.x0, each.x1], [low, high], color=COLOURS[colour], linewidth=width)


def _place(
    text: Text, axes: Axes, taken: list[Bbox], lines: Sequence[Bbox], written: list[Bbox], leaders: list[Path]
) -> tuple[Bbox, Path | None] | None:
    """Move a text to the nearest free place; return its box and the line that leads to it, None without a place."""
    point = axes.transData.transform(text.get_position())
    # There is room for half a line above the axes.
    size, room = text.get_window_extent(), Bbox.union([axes.bbox, axes.bbox.translated(2, 12)])
    for ring, (across, up) in product(_RINGS, _SIDES):
        # An oblique name begins above or below its mark, beside a line that runs upwards from it.
        right = across * ring * (4 if up else _MARK + _GAP)
        above = up * ring * (_MARK + 1 + size.height / 2)
        left, bottom = point[0] + right - size.width * (1 - across) / 2, point[1] + above - size.height / 2
        box = Bbox.from_bounds(left, bottom, size.width, size.height)
        leader = Path([point, point.clip(box.min, box.max)]) if ring > 1 else None
        # A text may be drawn a part of a pixel from the place that it is given.
        if (
            room.contains(*box.min)
            and room.contains(*box.max)
            and not box.padded(0.5).count_overlaps([*taken, *lines])
            and not any(other.intersects_bbox(box.padded(1), filled=False) for other in leaders)
            and not (leader and any(leader.intersects_bbox(other.padded(1), filled=False) for other in written))
        ):
            # Held at the end that faces the point, because the browser's font is narrower than matplotlib's.
            edge = {1: box.x0, 0: (box.x0 + box.x1) / 2, -1: box.x1}[across]
            text.set(position=axes.transData.inverted().transform((edge, (box.y0 + box.y1) / 2)), ha=_ALIGN[across])
            return box, leader
    return None
