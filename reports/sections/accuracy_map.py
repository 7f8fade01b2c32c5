"""The map: accuracy against response length, with the region that the rules accept around the primary."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.transforms import Bbox

from advisor.runs.schema.result import CandidateFigures, Result
from ensemble.common import text
from reports.charts.axes import WIDE, both_widths, clipped, log_limits, mark, points_limits
from reports.charts.scatter import BOTTOM, LEFT, RIGHT, TOP, add_scales, point_axes, write_names
from reports.charts.svg import COLOURS, markup, named
from reports.report_data import ReportData

_MOST_NAMES = {
    True: 24,
    False: 10,
}  # on a wide and on a narrow drawing: more would cover it, and a point has its name on hover


def values(report: ReportData) -> dict[str, Any] | None:
    """Return the template's values; None if no candidate's length is known."""
    result = report.result
    figure = both_widths(lambda width: _draw(result, width))
    return figure and {"figure": figure}


def _draw(result: Result, width: int) -> str | None:
    known = [
        (candidate, length, candidate.accuracy)
        for candidate in result.candidates
        if candidate.accuracy is not None
        and (length := result.length_of(candidate)) is not None
        and candidate.status != "failed"
    ]
    if not known:
        return None
    wide = width == WIDE
    height = 420 if wide else 380
    axes = point_axes(width, height, *_limits(result, known), log=True)
    # What the file has outside of the scale is drawn at its end.
    points = [
        (each, clipped(length, axes.get_xlim()), clipped(accuracy, axes.get_ylim())) for each, length, accuracy in known
    ]
    avoid = _draw_region(axes, result) if result.can_decode else []
    for candidate, x, _ in points:
        if candidate.accuracy_ci:
            low, high = (clipped(end, axes.get_ylim()) for end in candidate.accuracy_ci)
            axes.plot([x, x], [low, high], color=COLOURS["muted"], linewidth=1)
            avoid.append(Bbox([[x, low], [x, high]]))
    roles = result.roles
    shapes = {
        each.name: each.status if result.can_decode else "selected" if each.name in roles else "rejected"
        for each in result.candidates
    }
    names = [
        (x, y, text.shortened(result.short_names[each.name], 28 if wide else 18), shapes[each.name] != "rejected")
        for place, (each, x, y) in enumerate(points)
        if place < _MOST_NAMES[wide] or shapes[each.name] == "selected"
    ]
    names.sort(key=lambda name: not name[-1])  # the chosen ones first
    write_names(axes, names, [(x, y) for _, x, y in points], avoid)
    places = {candidate.model: place for place, candidate in enumerate(result.candidates)}
    for candidate, x, y in reversed(points):
        # The best candidates last, so that their marks lie above the others.
        title = f"{text.length(result.length_of(candidate))} {result.length_unit}"
        _draw_marks(axes, candidate, title, shapes[candidate.name], places[candidate.model], x, y)
    add_scales(axes, f"mean response length, {result.length_unit} (log scale)", f"{result.measure}, points", width)
    label = f"Accuracy against mean response length of {len(points)} candidates; the leaderboard has the same numbers."
    return markup(axes, label, _geometry(axes, width, height))


def _limits(
    result: Result, known: list[tuple[CandidateFigures, float, float]]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return limits for lengths and accuracies that also have room for the region of the rules."""
    lengths = [length for _, length, _ in known]
    accuracies = [end for candidate, _, accuracy in known for end in (accuracy, *(candidate.accuracy_ci or ()))]
    primary = result.primary
    if result.can_decode and primary and (length := result.length_of(primary)) is not None:
        ratio = result.rules.max_length_ratio
        lengths += [length * ratio, length / ratio]
    if result.can_decode and primary and primary.accuracy is not None:
        accuracies.append(max(primary.accuracy - result.rules.max_gap, 0.0))
    # An empty response counts as one character, because a logarithm has no place for 0.
    return log_limits([max(length, 1.0) for length in lengths], 1.15), points_limits(accuracies)


def _draw_region(axes: Axes, result: Result) -> list[Bbox]:
    """Draw the accepted region, and return its edges, which names should not cross."""
    primary = result.primary
    if primary is None or primary.accuracy is None:
        return []
    (left, right), (floor, top) = axes.get_xlim(), axes.get_ylim()
    bottom = clipped(primary.accuracy - result.rules.max_gap, (floor, top))
    if length := result.length_of(primary):
        ratio = result.rules.max_length_ratio
        ends = length / ratio, length * ratio
        left, right = (clipped(end, axes.get_xlim()) for end in ends)
    region = Rectangle((left, bottom), right - left, top - bottom, linewidth=1.2, zorder=0.4, gid=named(region=1))
    region.set(facecolor=COLOURS["band"], edgecolor=COLOURS["band-edge"])
    axes.add_artist(region)
    return [Bbox([[x, bottom], [x, top]]) for x in (left, right)] + [Bbox([[left, bottom], [right, bottom]])]


def _draw_marks(  # what to draw, and where
    axes: Axes, candidate: CandidateFigures, length: str, own: str, place: int, x: float, y: float
) -> None:
    """Draw the marks of all statuses on one another. The page shows the one that its limits give the candidate."""
    title = f"{candidate.name}: {text.points(candidate.accuracy)} points, {length}"
    for shape in ("primary", "selected", "rejected"):
        shown = int(shape == own)
        mark(axes, x, y, shape, title=title, data={"point": place, "shape": shape, "shown": shown})


def _geometry(axes: Axes, width: int, height: int) -> dict[str, str]:
    """Return the attributes by which the page's script moves the region. In the page y runs downwards."""
    pixels = {"left": LEFT, "right": width - RIGHT, "top": TOP, "bottom": height - BOTTOM}
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    data = {"x-low": left, "x-high": right, "y-low": bottom, "y-high": top}
    return {
        "data-map": "1",
        **{f"data-{name}": repr(round(float(value), 6)) for name, value in {**pixels, **data}.items()},
    }
