"""The map: accuracy against response length, with the region that the rules accept around the primary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports import words
from reports.labels import Box, Label, Placed, place
from reports.model import Candidate, Result
from reports.scales import Scale, length_scale, points_scale
from reports.svg import Canvas, Point, part

LEFT, RIGHT, TOP, BOTTOM = 34, 12, 30, 46
NAME = 12.5
"""Font size of the candidates' names."""

MOST_NAMES = 24
"""Candidates named on the map beside the chosen ones; the others have their names on hover and on the leaderboard."""

PHONE = 500
"""Pixels below which a drawing is one for a phone."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A candidate on the map: everything is known that it takes to put it there."""

    candidate: Candidate
    accuracy: float
    length: float


def spots(result: Result) -> list[Spot]:
    """Return the candidates that can be put on a map."""
    return [
        Spot(candidate, candidate.accuracy, candidate.mean_length)
        for candidate in result.candidates
        if candidate.accuracy is not None and candidate.mean_length is not None and candidate.status != "failed"
    ]


def draw_map(result: Result, width: int, height: int) -> str | None:
    """Draw the map; None where no candidate's length is known."""
    points = spots(result)
    if not points:
        return None
    canvas = Canvas(width, height)
    x, y = _scales(result, points, width, height)
    edges = _region(canvas, result, x, y)
    _frame(canvas, x, y, width)
    where = [(x(point.length), y(point.accuracy)) for point in points]
    whiskers = [
        _whisker(canvas, point.candidate, at[0], y)
        for point, at in zip(points, where, strict=True)
        if point.candidate.accuracy_ci is not None
    ]
    _names(
        canvas,
        result.short_names,
        list(zip(points, where, strict=True)),
        [*edges, *whiskers],
        Box(x.start + 2, y.start + 2, width - 2, y.end),
    )
    for point, at in reversed(list(zip(points, where, strict=True))):
        _marks(canvas, point, at)  # the best candidates' last, so that no other lies above them
    label = f"Accuracy against mean response length of {len(points)} candidates; the leaderboard has the same numbers."
    return canvas.markup(label, _geometry(x, y, height))


def _scales(result: Result, points: Sequence[Spot], width: int, height: int) -> tuple[Scale, Scale]:
    lengths = [point.length for point in points]
    accuracies = [end for point in points for end in (point.accuracy, *(point.candidate.accuracy_ci or ()))]
    primary = result.primary
    if primary and primary.mean_length is not None:
        lengths += [
            primary.mean_length * result.rules.max_length_ratio,
            primary.mean_length / result.rules.max_length_ratio,
        ]
    if primary and primary.accuracy is not None:
        accuracies.append(max(primary.accuracy - result.rules.max_gap, 0.0))
    return length_scale(lengths, LEFT, width - RIGHT), points_scale(accuracies, BOTTOM, height - TOP)


def _region(canvas: Canvas, result: Result, x: Scale, y: Scale) -> list[Box]:
    """Draw the accepted region, and return its edges, which names had better not cross."""
    primary, rules = result.primary, result.rules
    if primary is None or primary.accuracy is None:
        return []
    bottom, left, right = y(primary.accuracy - rules.max_gap), x.start, x.end
    if primary.mean_length:
        left, right = x(primary.mean_length / rules.max_length_ratio), x(primary.mean_length * rules.max_length_ratio)
    corners = [(left, bottom), (right, bottom), (right, y.end), (left, y.end)]
    canvas.area(corners, "band", edge="band-edge", width=1.2, name=part(region=1))
    sides = [Box(side - 2, bottom, side + 2, y.end) for side in (left, right)]
    return [*sides, Box(left, bottom - 2, right, bottom + 2)]


def _frame(canvas: Canvas, x: Scale, y: Scale, width: int) -> None:
    for value in y.ticks(7):
        canvas.line((x.start, y(value)), (x.end, y(value)), "rule", width=0.8)
        canvas.text(x.start - 7, y(value), f"{value:g}", size=11.5, colour="muted", align="right")
    canvas.line((x.start, y.start), (x.end, y.start), "muted")
    for value in x.ticks(5 if width < PHONE else 9):
        canvas.line((x(value), y.start), (x(value), y.start - 4), "muted")
        canvas.text(x(value), y.start - 14, f"{value:,g}", size=11.5, colour="muted", align="center")
    canvas.text(0, canvas.height - 9, "↑ accuracy, points", size=11.5, colour="muted")
    canvas.text(x.end, 9, "mean response length, characters (log scale) →", size=11.5, colour="muted", align="right")


def _whisker(canvas: Canvas, candidate: Candidate, x: float, y: Scale) -> Box:
    low, high = candidate.accuracy_ci or (0.0, 0.0)
    canvas.line((x, y(low)), (x, y(high)), "muted", width=1.0)
    return Box(x - 2, y(low), x + 2, y(high))


def _names(
    canvas: Canvas,
    short_names: Mapping[str, str],
    spots: Sequence[tuple[Spot, Point]],
    soft: Sequence[Box],
    bounds: Box,
) -> None:
    longest = 28 if canvas.width > PHONE else 18
    named = [
        (point, at)
        for place, (point, at) in enumerate(spots)
        if place < MOST_NAMES or point.candidate.status == "selected"
    ]
    labels = [
        Label(*at, words.shortened(short_names[point.candidate.model], longest), f"no. {point.candidate.rank}")
        for point, at in named
    ]
    marks = [Box(x - 8, y - 8, x + 8, y + 8) for _, (x, y) in spots]
    for (point, at), placed in zip(named, place(labels, NAME, marks, soft, bounds), strict=True):
        if placed is not None:
            _write_name(canvas, placed, at, "muted" if point.candidate.status == "rejected" else "ink")


def _write_name(canvas: Canvas, placed: Placed, at: Point, colour: str) -> None:
    box = placed.box
    if placed.leader:
        canvas.line(at, placed.leader, "muted", width=0.8)
    # The end that looks at the point is held, as the browser's font is narrower than the box.
    x, align = (box.left, "left") if box.left >= at[0] else (box.right, "right")
    if box.left < at[0] < box.right:
        x, align = (box.left + box.right) / 2, "center"
    canvas.text(x, (box.bottom + box.top) / 2, placed.text, size=NAME, colour=colour, align=align, bold=colour == "ink")


def _marks(canvas: Canvas, point: Spot, at: Point) -> None:
    """Draw the marks of every status on one another; the page shows the one that the limits give the candidate."""
    candidate = point.candidate
    title = f"{candidate.model}: {words.points(point.accuracy)} points, {words.length(point.length)} characters"
    for shape in ("primary", "selected", "rejected"):
        name = part(point=candidate.index, shape=shape, shown=int(shape == candidate.status))
        canvas.mark(*at, shape, name=name, title=title)


def _geometry(x: Scale, y: Scale, height: int) -> dict[str, str]:
    """Return what the page's script has to know to move the region; its y runs downwards."""
    pixels = {"left": x.start, "right": x.end, "top": height - y.end, "bottom": height - y.start}
    data = {"x-low": x.low, "x-high": x.high, "y-low": y.low, "y-high": y.high}
    return {"data-map": "1", **{f"data-{name}": repr(round(value, 6)) for name, value in {**pixels, **data}.items()}}
