"""The map: accuracy against response length, with the region that the rules accept around the primary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from advisor.runs.schema.result import CandidateFigures, Result
from ensemble.common import text
from reports.charts.canvas import Canvas, Point, part
from reports.charts.labels import Box, write_names
from reports.charts.rows import NARROW, WIDE, both_widths
from reports.charts.scales import Scale, length_scale, points_scale
from reports.report_data import ReportData

LEFT, RIGHT, TOP, BOTTOM = 34, 12, 30, 46
_NAME_SIZE = 12.5
MOST_NAMES = 24  # beside the chosen ones: more would cover the map, and a point shows its name on hover


def values(report: ReportData) -> dict[str, Any] | None:
    """Return the template's values; None if no candidate's length is known."""
    result = report.result
    figure = both_widths(lambda width: _draw(result, width))
    return figure and {"figure": figure}


def _draw(result: Result, width: int) -> str | None:
    known = [
        (candidate, candidate.mean_length, candidate.accuracy)
        for candidate in result.candidates
        if candidate.accuracy is not None and candidate.mean_length is not None and candidate.status != "failed"
    ]
    if not known:
        return None
    canvas = Canvas(width, 420 if width == WIDE else 380)
    ends = [end for candidate, _, accuracy in known for end in (accuracy, *(candidate.accuracy_ci or ()))]
    x, y = _scales(result, [length for _, length, _ in known], ends, canvas)
    edges = _draw_region(canvas, result, x, y)
    _draw_frame(canvas, x, y, result.measure)
    points = [(candidate, (x(length), y(accuracy))) for candidate, length, accuracy in known]
    places = {candidate.model: place for place, candidate in enumerate(result.candidates)}
    whiskers = [_draw_whisker(canvas, candidate, at[0], y) for candidate, at in points if candidate.accuracy_ci]
    bounds = Box(x.start + 2, y.start + 2, width - 2, y.end)
    _draw_names(canvas, result.short_names, places, points, [*edges, *whiskers], bounds)
    for candidate, at in reversed(points):
        _draw_marks(
            canvas, candidate, places[candidate.model], at
        )  # the best candidates last, so that their marks lie above the others
    label = f"Accuracy against mean response length of {len(points)} candidates; the leaderboard has the same numbers."
    return canvas.markup(label, _geometry(x, y, canvas.height))


def _scales(result: Result, lengths: list[float], accuracies: list[float], canvas: Canvas) -> tuple[Scale, Scale]:
    """Return scales that also have room for the region of the rules."""
    primary = result.primary
    if primary and primary.mean_length is not None:
        lengths = [
            *lengths,
            primary.mean_length * result.rules.max_length_ratio,
            primary.mean_length / result.rules.max_length_ratio,
        ]
    if primary and primary.accuracy is not None:
        accuracies = [*accuracies, max(primary.accuracy - result.rules.max_gap, 0.0)]
    x = length_scale(lengths, LEFT, canvas.width - RIGHT)
    return x, points_scale(accuracies, BOTTOM, canvas.height - TOP)


def _draw_region(canvas: Canvas, result: Result, x: Scale, y: Scale) -> list[Box]:
    """Draw the accepted region, and return its edges, which names should not cross."""
    primary = result.primary
    if primary is None or primary.accuracy is None:
        return []
    bottom, left, right = y(primary.accuracy - result.rules.max_gap), x.start, x.end
    if primary.mean_length:
        ratio = result.rules.max_length_ratio
        left, right = x(primary.mean_length / ratio), x(primary.mean_length * ratio)
    corners = [(left, bottom), (right, bottom), (right, y.end), (left, y.end)]
    canvas.area(corners, "band", edge="band-edge", width=1.2, name=part(region=1))
    sides = [Box(side - 2, bottom, side + 2, y.end) for side in (left, right)]
    return [*sides, Box(left, bottom - 2, right, bottom + 2)]


def _draw_frame(canvas: Canvas, x: Scale, y: Scale, measure: str) -> None:
    for value in y.ticks(7):
        canvas.line((x.start, y(value)), (x.end, y(value)), "rule", width=0.8)
        canvas.text(x.start - 7, y(value), f"{value:g}", size=11.5, colour="muted", align="right")
    canvas.line((x.start, y.start), (x.end, y.start), "muted")
    for value in x.ticks(5 if canvas.width == NARROW else 9):
        canvas.line((x(value), y.start), (x(value), y.start - 4), "muted")
        canvas.text(x(value), y.start - 14, f"{value:,g}", size=11.5, colour="muted", align="center")
    canvas.text(0, canvas.height - 9, f"↑ {measure}, points", size=11.5, colour="muted")
    canvas.text(x.end, 9, "mean response length, characters (log scale) →", size=11.5, colour="muted", align="right")


def _draw_whisker(canvas: Canvas, candidate: CandidateFigures, x: float, y: Scale) -> Box:
    low, high = candidate.accuracy_ci or (0.0, 0.0)
    canvas.line((x, y(low)), (x, y(high)), "muted", width=1.0)
    return Box(x - 2, y(low), x + 2, y(high))


def _draw_names(
    canvas: Canvas,
    short_names: Mapping[str, str],
    places: Mapping[str, int],
    points: Sequence[tuple[CandidateFigures, Point]],
    soft: Sequence[Box],
    bounds: Box,
) -> None:
    longest = 18 if canvas.width == NARROW else 28
    named = [point for place, point in enumerate(points) if place < MOST_NAMES or point[0].status == "selected"]
    labels = [
        (
            at,
            text.shortened(short_names[each.name], longest),
            f"no. {places[each.model] + 1}",
            each.status != "rejected",
        )
        for each, at in named
    ]
    write_names(canvas, labels, _NAME_SIZE, [at for _, at in points], soft, bounds)


def _draw_marks(canvas: Canvas, candidate: CandidateFigures, place: int, at: Point) -> None:
    """Draw the marks of all statuses on one another. The page shows the one that its limits give the candidate."""
    accuracy, length = text.points(candidate.accuracy), text.length(candidate.mean_length)
    title = f"{candidate.name}: {accuracy} points, {length} characters"
    for shape in ("primary", "selected", "rejected"):
        name = part(point=place, shape=shape, shown=int(shape == candidate.status))
        canvas.mark(*at, shape, name=name, title=title)


def _geometry(x: Scale, y: Scale, height: float) -> dict[str, str]:
    """Return the attributes by which the page's script moves the region. In the page y runs downwards."""
    pixels = {"left": x.start, "right": x.end, "top": height - y.end, "bottom": height - y.start}
    data = {"x-low": x.low, "x-high": x.high, "y-low": y.low, "y-high": y.high}
    return {"data-map": "1", **{f"data-{name}": repr(round(value, 6)) for name, value in {**pixels, **data}.items()}}
