"""Pairs: how far apart or how similar two candidates are, as a matrix for each measure and as one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from advisor.runs.schema.result import CandidateFigures, Result
from ensemble.common import text
from reports.report_data import ReportData

MOST_CANDIDATES = 12  # with more, the cells have no room for their values, so the page has only the table
MOST_PAIRS = 1000  # in the table: a hundred candidates have 4,950; those with the best candidates come first
_LEVELS = 9
Cell = tuple[int | None, str, str]  # the level of its colour, its value, and what it is


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
        "matrices": [(measure, _matrix(measure, candidates, by_index, result.short_names)) for measure in drawn],
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


def _matrix(
    measure: PairMeasure,
    candidates: list[tuple[int, CandidateFigures]],
    pairs: Mapping[tuple[int, int], Mapping[str, float]],
    short_names: Mapping[str, str],
) -> list[tuple[str, list[Cell]]]:
    """Return a measure as a staircase: for each candidate its name, and a cell for each candidate before it."""
    known = [pair[measure.key] for pair in pairs.values() if measure.key in pair]
    low = min(known, default=0.0) if measure.low is None else measure.low
    # Equal values would make a scale of no width.
    high = max(max(known, default=1.0) if measure.high is None else measure.high, low + 1e-9 * max(1.0, abs(low)))

    def cell(one: tuple[int, CandidateFigures], other: tuple[int, CandidateFigures]) -> Cell:
        (a, first), (b, second) = one, other
        # The file may have a pair in either order.
        value = (pairs.get((b, a)) or pairs.get((a, b)) or {}).get(measure.key)
        level = None if value is None else min(max(int(_LEVELS * (value - low) / (high - low)), 0), _LEVELS - 1)
        written = measure.written(value)
        return level, written, f"{first.name} and {second.name}: {written}"

    return [
        (text.shortened(short_names[one[1].name], 22), [cell(one, other) for other in candidates[:row]])
        for row, one in enumerate(candidates)
    ]
