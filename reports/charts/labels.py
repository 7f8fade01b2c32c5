"""Places for the names on a map of points, so that no name covers another name, a mark or the edge.

Geometry in pixels, x to the right and y upwards. Greedy: the first name takes the best free place, then the next.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reports.charts.canvas import Canvas

_DIRECTIONS = 16
_NEAREST, _FARTHEST, _STEP = 11, 132, 11
# A name that is farther than this from its point gets a line to it.
_LEADER_FROM = 16

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: Box) -> float:
        """Return the area that two boxes share."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(width, 0.0) * max(height, 0.0)

    def nearest(self, x: float, y: float) -> Point:
        """Return the box's point that is nearest to a point."""
        return min(max(x, self.left), self.right), min(max(y, self.bottom), self.top)

    def crossed(self, start: Point, end: Point) -> bool:
        """Return whether a straight line runs through the box, to about a pixel."""
        steps = math.ceil(math.dist(start, end)) or 1
        spots = (
            (start[0] + (end[0] - start[0]) * k / steps, start[1] + (end[1] - start[1]) * k / steps)
            for k in range(steps + 1)
        )
        return any(self.left < x < self.right and self.bottom < y < self.top for x, y in spots)

    def within(self, outer: Box) -> bool:
        """Return whether the box lies wholly inside another."""
        return (
            outer.left <= self.left
            and self.right <= outer.right
            and outer.bottom <= self.bottom
            and self.top <= outer.top
        )


def text_width(text: str, size: float) -> float:
    """Return about how wide a text is in a sans-serif font. The estimate is rather too wide than too narrow."""
    return size * sum(1.0 if unicodedata.east_asian_width(char) in "WF" else 0.6 for char in text)


def place(
    labels: Sequence[tuple[Point, str, str]], size: float, hard: Sequence[Box], soft: Sequence[Box], bounds: Box
) -> list[tuple[str, Box, Point | None] | None]:
    """Place the labels.

    Args:
        labels: Points with their texts and the short texts for points whose text has no free place, in order of
            importance.
        size: Of the font.
        hard: Boxes that no name may cover (marks).
        soft: Boxes that a name avoids if it can (intervals).
        bounds: The box that holds all names.

    Returns:
        For each label the text, its box, and the end of the line from the point to the box (None if the box is near).
        None for a label whose short text has no free place either.
    """
    taken, names = list(hard), list[Box]()
    placed: list[tuple[str, Box, Point | None] | None] = []
    for point, text, short in labels:
        places = ((each, _best(point, each, size, taken, names, soft, bounds)) for each in (text, short))
        # The short text is tried only if the full text has no free place.
        fits, box = next(((each, box) for each, box in places if box is not None), ("", None))
        if box is None:
            placed.append(None)
            continue
        # A name that is placed blocks its place for all that follow, which are less important.
        taken.append(box)
        names.append(box)
        end = box.nearest(*point)
        placed.append((fits, box, end if math.dist(end, point) > _LEADER_FROM else None))
    return placed


def write_names(
    canvas: Canvas,
    labels: Sequence[tuple[Point, str, str, bool]],
    size: float,
    marks: Sequence[Point],
    soft: Sequence[Box],
    bounds: Box,
) -> None:
    """Write names beside their points, with a line to a name that is far away; :func:`place` has the arguments.

    The last element of a label is whether it is bold. No name covers one of the ``marks``, with a name or without.
    """
    hard = [Box(x - 8, y - 8, x + 8, y + 8) for x, y in marks]
    places = place([label[:3] for label in labels], size, hard, soft, bounds)
    for (point, _, _, bold), placed in zip(labels, places, strict=True):
        if placed is None:
            continue
        name, box, leader = placed
        if leader:
            canvas.line(point, leader, "muted", width=0.8)
        # Align the text to the side that faces the point, because the browser's font is narrower than the box.
        x, align = (box.left, "left") if box.left >= point[0] else (box.right, "right")
        if box.left < point[0] < box.right:
            x, align = (box.left + box.right) / 2, "center"
        colour = "ink" if bold else "muted"
        canvas.text(x, (box.bottom + box.top) / 2, name, size=size, colour=colour, align=align, bold=bold)


def _best(
    point: Point,
    text: str,
    size: float,
    taken: Sequence[Box],
    names: Sequence[Box],
    soft: Sequence[Box],
    bounds: Box,
) -> Box | None:
    best: Box | None = None
    least = math.inf
    for cost, box in _places(point, text, size):
        # A place that costs more than the best one so far cannot win, whatever it would cover.
        if cost >= least or not box.within(bounds) or any(box.overlap(other) for other in taken):
            continue
        # A line through another name would strike it out.
        if any(name.crossed(point, box.nearest(*point)) for name in names):
            continue
        covered = sum(1 + box.overlap(other) / 20 for other in soft if box.overlap(other))
        if cost + covered < least:
            least, best = cost + covered, box
    return best


def _places(point: Point, text: str, size: float) -> Iterator[tuple[float, Box]]:
    width, height = text_width(text, size), 1.3 * size
    for ring in range(_NEAREST, _FARTHEST + 1, _STEP):
        for step in range(_DIRECTIONS):
            angle = 2 * math.pi * step / _DIRECTIONS
            # A name on the right is the easiest to read, then one on the left; oblique places look accidental.
            awkward = 0.0 if step == 0 else 0.6 if step == _DIRECTIONS // 2 else 1.0 if step % 4 == 0 else 1.4
            x, y = point[0] + ring * math.cos(angle), point[1] + ring * math.sin(angle)
            # The box touches the ring with the side that faces the point.
            left = x - width * (1 - math.cos(angle)) / 2
            bottom = y - height * (1 - math.sin(angle)) / 2
            yield awkward + (ring - _NEAREST) / _STEP, Box(left, bottom, left + width, bottom + height)
