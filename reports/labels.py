"""Where the names go on a map of points, so that none covers another name, a mark or the edge.

Pure geometry in pixels, x to the right and y upwards. Greedy: the first name takes the best free place, then the next.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_DIRECTIONS = 16
_NEAREST, _FARTHEST, _STEP = 11, 132, 11
_LEADER_FROM = 16
"""A name that is farther than this from its point gets a line to it."""


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

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        """Return the box's point that is nearest to a point."""
        return min(max(x, self.left), self.right), min(max(y, self.bottom), self.top)

    def within(self, outer: Box) -> bool:
        """Return whether the box lies wholly inside another."""
        return (
            outer.left <= self.left
            and self.right <= outer.right
            and outer.bottom <= self.bottom
            and self.top <= outer.top
        )


@dataclass(frozen=True, slots=True)
class Label:
    """A point and the text that belongs to it; ``short`` is tried where the text fits nowhere."""

    x: float
    y: float
    text: str
    short: str


@dataclass(frozen=True, slots=True)
class Placed:
    """A text with its box, and the end of the line that leads to it, None where it stands beside its point."""

    text: str
    box: Box
    leader: tuple[float, float] | None


def text_width(text: str, size: float) -> float:
    """Return about how wide a text is in a sans-serif font, rather too much than too little."""
    return size * sum(1.0 if unicodedata.east_asian_width(char) in "WF" else 0.6 for char in text)


def place(
    labels: Sequence[Label], size: float, hard: Sequence[Box], soft: Sequence[Box], bounds: Box
) -> list[Placed | None]:
    """Place the labels; None stands for one that has no free place, even shortened.

    Args:
        labels: In order of importance.
        size: Of the font.
        hard: What no name may cover (marks).
        soft: What a name had better not cover (intervals).
        bounds: What a name must stay in.
    """
    taken = list(hard)
    placed: list[Placed | None] = []
    for label in labels:
        choices = (_best(label, text, size, taken, soft, bounds) for text in (label.text, label.short))
        box_and_text = next((choice for choice in choices if choice is not None), None)
        if box_and_text is None:
            placed.append(None)
            continue
        _, text, box = box_and_text
        taken.append(box)
        end = box.nearest(label.x, label.y)
        far = math.dist(end, (label.x, label.y)) > _LEADER_FROM
        placed.append(Placed(text, box, end if far else None))
    return placed


def _best(
    label: Label, text: str, size: float, taken: Sequence[Box], soft: Sequence[Box], bounds: Box
) -> tuple[float, str, Box] | None:
    best: tuple[float, str, Box] | None = None
    for cost, box in _places(label, text, size):
        if (
            (best is not None and cost >= best[0])
            or not box.within(bounds)
            or any(box.overlap(other) for other in taken)
        ):
            continue
        covered = sum(1 + box.overlap(other) / 20 for other in soft if box.overlap(other))
        if best is None or cost + covered < best[0]:
            best = (cost + covered, text, box)
    return best


def _places(label: Label, text: str, size: float) -> Iterator[tuple[float, Box]]:
    for ring in range(_NEAREST, _FARTHEST + 1, _STEP):
        for step in range(_DIRECTIONS):
            angle = 2 * math.pi * step / _DIRECTIONS
            # To the right is read most easily, then to the left; oblique places look accidental.
            awkward = 0.0 if step == 0 else 0.6 if step == _DIRECTIONS // 2 else 1.0 if step % 4 == 0 else 1.4
            yield awkward + (ring - _NEAREST) / _STEP, _box(label, text, size, angle, ring)


def _box(label: Label, text: str, size: float, angle: float, ring: float) -> Box:
    width, height = text_width(text, size), 1.3 * size
    x, y = label.x + ring * math.cos(angle), label.y + ring * math.sin(angle)
    # The box touches the ring with the side that looks at the point.
    left = x - width * (1 - math.cos(angle)) / 2
    bottom = y - height * (1 - math.sin(angle)) / 2
    return Box(left, bottom, left + width, bottom + height)
