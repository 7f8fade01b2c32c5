"""Pairs: how far apart or how similar two candidates are, as a matrix for each measure and as one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from advisor.runs.schema.result import CandidateFigures, Result
from ensemble.common import text
from reports.charts.canvas import Canvas, part
from reports.charts.labels import Box, text_width
from reports.report_data import ReportData

MOST_CANDIDATES = 12  # with more, the cells have no room for their values, so the page has only the table
MOST_PAIRS = 1000  # in the table: a hundred candidates have 4,950; those with the best candidates come first
_LEVELS = 9
_NAME_SIZE = 12.0
_ROW = 28


@dataclass(frozen=True, slots=True)
class PairMeasure:
    """A measure of pairs: its key in ``result.json``, its texts, its format, and the fixed ends of its colours."""

    key: str
    title: str
    note: str
    written: Callable[[float | None], str]
    low: float | None = None
    high: float | None = None


def _percent(share: float | None) -> str:
    return text.UNKNOWN if share is None else f"{100 * share:.1f}"


# The measures of the page, in this order; others in ``result.json`` are ignored.
MEASURES = (
    PairMeasure("gap", "Gap", "Points of accuracy between the two. Lower fits better.", text.points, low=0.0),
    PairMeasure(
        "length_ratio", "Length ratio", "Longer over shorter mean response. Lower fits better.", text.decimals, low=1.0
    ),
    PairMeasure(
        "bleu", "BLEU", "Shared wording, up to 100. Low means different styles.", text.points, low=0.0, high=100.0
    ),
    PairMeasure(
        "style", "Style", "Distance of their habits of writing, up to 1. Lower fits better.", text.decimals, low=0.0
    ),
    PairMeasure(
        "both_wrong_same",
        "Same wrong answer",
        "Percent of questions. An ensemble seldom corrects these.",
        _percent,
        low=0.0,
    ),
    PairMeasure(
        "kappa",
        "Agreement",
        "Cohen’s kappa of being right. Lower leaves more to gain.",
        text.decimals,
        low=0.0,
        high=1.0,
    ),
    PairMeasure("oracle", "Oracle", "Points if the better answer were always taken.", text.points, high=100.0),
    PairMeasure(
        "next_token",
        "Next token",
        "Percent of one model’s tokens that the other would have written too.",
        _percent,
        high=1.0,
    ),
    PairMeasure(
        "words_alike",
        "Words cut alike",
        "Percent of the questions’ words. Higher is easier to combine.",
        _percent,
        low=0.0,
        high=1.0,
    ),
    PairMeasure(
        "vocabulary_overlap",
        "Vocabulary shared",
        "Percent of all tokens of the two. The paper found that it matters little.",
        _percent,
        low=0.0,
        high=1.0,
    ),
)


def values(report: ReportData) -> dict[str, Any] | None:
    """Return the template's values; None without pairs."""
    result = report.result
    by_index = _by_index(result)
    if not by_index:
        return None
    measures = [measure for measure in MEASURES if any(measure.key in known for known in by_index.values())]
    paired = {index for pair in by_index for index in pair}
    candidates = [(index, candidate) for index, candidate in enumerate(result.candidates) if index in paired]
    drawn = measures if len(candidates) <= MOST_CANDIDATES else []
    return {
        "measures": measures,
        "matrices": [(measure, draw_matrix(measure, candidates, by_index, result.short_names)) for measure in drawn],
        "total": len(by_index),
        # The best candidates come first in the file, and so do their pairs.
        "pairs": [
            (result.candidates[a], result.candidates[b], known) for (a, b), known in list(by_index.items())[:MOST_PAIRS]
        ],
    }


def _by_index(result: Result) -> dict[tuple[int, int], dict[str, float]]:
    """The known measures of each pair, by the places of its candidates."""
    places = {candidate.model: index for index, candidate in enumerate(result.candidates)}
    return {
        (places[pair.a], places[pair.b]): pair.known()
        for pair in result.pairs
        if pair.a in places and pair.b in places and pair.a != pair.b
    }


def draw_matrix(
    measure: PairMeasure,
    candidates: list[tuple[int, CandidateFigures]],
    pairs: Mapping[tuple[int, int], Mapping[str, float]],
    short_names: Mapping[str, str],
) -> str:
    """Draw a measure as a staircase of cells. The name at the end of a row is also the head of a column."""
    cell_width = 42 if len(candidates) <= 6 else 36
    names = [text.shortened(short_names[candidate.name], 22) for _, candidate in candidates]
    width = max(column * cell_width + 10 + text_width(name, _NAME_SIZE) for column, name in enumerate(names))
    canvas = Canvas(round(width), _ROW * len(candidates))
    known = [pair[measure.key] for pair in pairs.values() if measure.key in pair]
    low = min(known, default=0.0) if measure.low is None else measure.low
    # Equal values would make a scale of no width.
    high = max(max(known, default=1.0) if measure.high is None else measure.high, low + 1e-9 * max(1.0, abs(low)))
    for row, (a, candidate) in enumerate(candidates):
        top = canvas.height - _ROW * row
        canvas.text(row * cell_width + 7, top - _ROW / 2, names[row], size=_NAME_SIZE)
        for column, (b, other) in enumerate(candidates[:row]):
            # The file may have a pair in either order.
            value = (pairs.get((b, a)) or pairs.get((a, b)) or {}).get(measure.key)
            share = None if value is None else (value - low) / (high - low)
            box = Box(column * cell_width, top - _ROW, (column + 1) * cell_width - 2, top - 2)
            title = f"{candidate.name} and {other.name}: {measure.written(value)}"
            _draw_cell(canvas, box, share, measure.written(value), part(row=row, column=column), title)
    return canvas.markup(
        f"{measure.title} of each pair of {len(candidates)} candidates; the table of pairs has the same numbers."
    )


def _draw_cell(canvas: Canvas, box: Box, share: float | None, value: str, name: str, title: str) -> None:
    fill, colour = "paper", "muted"
    if share is not None:
        level = min(max(int(share * _LEVELS), 0), _LEVELS - 1)
        # From the fifth level on the fill is too dark for dark text.
        fill, colour = f"heat-{level}", "heat-low" if level < 5 else "heat-high"
    canvas.box(box.left, box.bottom, box.right, box.top, fill, name=name, title=title)
    middle = (box.left + box.right) / 2, (box.bottom + box.top) / 2
    canvas.text(*middle, value, size=11.5, colour=colour, align="center")
