"""Axes in the page's look: their place in a figure, their scales and ticks, and the marks of the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from reports.charts.svg import COLOURS, named

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
