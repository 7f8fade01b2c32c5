"""Pair matrices: how far apart or alike each two candidates are, a staircase of cells for each measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reports import words
from reports.labels import text_width
from reports.model import Candidate, Result
from reports.svg import Canvas, part

MOST_CANDIDATES = 12
"""With more candidates the cells have no room for their values, and the table of pairs serves better."""

LEVELS = 9
NAME = 12.0


@dataclass(frozen=True, slots=True)
class Measure:
    """Something known of pairs: how it is called, explained and written, and its colours' ends where they are fixed."""

    name: str
    title: str
    note: str
    written: Callable[[float], str]
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Matrix:
    """A drawn matrix."""

    title: str
    note: str
    svg: str


def _decimals(value: float) -> str:
    return f"{value:.2f}".replace("-", words.MINUS)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


MEASURES = (
    Measure("gap", "Gap", "Points of accuracy between the two. Lower fits better.", words.points, low=0.0),
    Measure(
        "length_ratio", "Length ratio", "Longer over shorter mean response. Lower fits better.", _decimals, low=1.0
    ),
    Measure(
        "bleu", "BLEU", "Wording they share, up to 100. Low means different styles.", words.points, low=0.0, high=100.0
    ),
    Measure("style", "Style", "Distance of their habits of writing, up to 1. Lower fits better.", _decimals, low=0.0),
    Measure(
        "both_wrong_same",
        "Same wrong answer",
        "Percent of questions. An ensemble seldom mends these.",
        _percent,
        low=0.0,
    ),
    Measure(
        "kappa", "Agreement", "Cohen’s kappa of being right. Lower leaves more to gain.", _decimals, low=0.0, high=1.0
    ),
    Measure("oracle", "Oracle", "Points if the better answer were always taken.", words.points, high=100.0),
    Measure(
        "next_token", "Next token", "Percent of the other’s tokens that one would have written too.", _percent, high=1.0
    ),
    Measure(
        "words_alike",
        "Words cut alike",
        "Percent of the questions’ words. Higher is easier to combine.",
        _percent,
        low=0.0,
        high=1.0,
    ),
    Measure(
        "vocabulary_overlap",
        "Vocabulary shared",
        "Percent of all tokens of the two. The paper found that it matters little.",
        _percent,
        low=0.0,
        high=1.0,
    ),
)
"""The measures that are drawn and tabled, in this order; unknown ones in ``result.json`` are passed over."""


def known_measures(result: Result) -> list[Measure]:
    """Return the measures that at least one pair has."""
    return [measure for measure in MEASURES if any(measure.name in pair.values for pair in result.pairs)]


def draw_matrices(result: Result) -> tuple[Matrix, ...]:
    """Draw a matrix for each known measure; none where there are too many candidates, or no pair."""
    paired = {index for pair in result.pairs for index in (pair.a, pair.b)}
    candidates = [candidate for candidate in result.candidates if candidate.index in paired]
    if len(candidates) > MOST_CANDIDATES:
        return ()
    return tuple(
        Matrix(measure.title, measure.note, _draw(measure, candidates, result)) for measure in known_measures(result)
    )


def _draw(measure: Measure, candidates: list[Candidate], result: Result) -> str:
    short_names = result.short_names
    places = {candidate.index: place for place, candidate in enumerate(candidates)}
    values: dict[tuple[int, int], float | None] = {}
    for pair in result.pairs:
        row, column = sorted((places[pair.a], places[pair.b]), reverse=True)
        values[row, column] = pair.values.get(measure.name)
    names = [words.shortened(short_names[candidate.model], 22) for candidate in candidates]
    cell = 42 if len(candidates) <= 6 else 36
    tall = 28
    width = max(column * cell + 10 + text_width(name, NAME) for column, name in enumerate(names))
    canvas = Canvas(round(width), tall * len(candidates))
    ends = _ends(measure, [value for value in values.values() if value is not None])
    for row, name in enumerate(names):
        top = canvas.height - tall * row
        canvas.text(row * cell + 7, top - tall / 2, name, size=NAME)
        for column in range(row):
            value = values.get((row, column))
            title = f"{candidates[row].model} and {candidates[column].model}: {_written(measure, value)}"
            sides = (column * cell, top - tall, (column + 1) * cell, top)
            level = None if value is None else _level(value, ends)
            _cell(canvas, sides, level, _written(measure, value), part(row=row, column=column), title)
    return canvas.markup(
        f"{measure.title} of each pair of {len(candidates)} candidates; the table of pairs has the same numbers."
    )


def _cell(
    canvas: Canvas, sides: tuple[float, float, float, float], level: int | None, text: str, name: str, title: str
) -> None:
    left, bottom, right, top = sides
    fill = "paper" if level is None else f"heat-{level}"
    canvas.box(left, bottom, right - 2, top - 2, fill, name=name, title=title)
    colour = "muted" if level is None else "heat-low" if level < 5 else "heat-high"
    canvas.text((left + right) / 2 - 1, (bottom + top) / 2 - 1, text, size=11.5, colour=colour, align="center")


def _ends(measure: Measure, values: list[float]) -> tuple[float, float]:
    low = min(values, default=0.0) if measure.low is None else measure.low
    high = max(values, default=1.0) if measure.high is None else measure.high
    return low, max(high, low + 1e-9)


def _level(value: float, ends: tuple[float, float]) -> int:
    share = (value - ends[0]) / (ends[1] - ends[0])
    return min(max(int(share * LEVELS), 0), LEVELS - 1)


def _written(measure: Measure, value: float | None) -> str:
    return words.UNKNOWN if value is None else measure.written(value)
