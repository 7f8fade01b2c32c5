"""The judge: win rates or grades with their intervals, and how far the judge can be trusted."""

from __future__ import annotations

from typing import Any

from advisor.runs.read.judge import MEASURES, JudgedSplit
from advisor.runs.read.result import Result
from reports.charts.axes import NARROW, both_widths, reference
from reports.charts.rows import accuracy_mark, add_points_scale, row_axes
from reports.charts.svg import markup

_MOST_DRAWN = 20


def values(result: Result) -> dict[str, Any] | None:
    """Return the template's values; None for a task without a judge."""
    # A run that was evaluated with another judge has both, and each has its own table.
    own, evaluated = result.judged, result.evaluation.judged if result.evaluation else None
    judged = own or evaluated
    if judged is None or not judged.splits:
        return None
    parts = [(f"{each.split} questions", each) for each in own.splits] if own else []
    # What the verdict is from comes first.
    parts.reverse()
    if evaluated:
        parts += [(f"advisor evaluate, {each.split} questions", each) for each in evaluated.splits]
    main = parts[0][1]
    candidates = {candidate.name for candidate in result.candidates}
    return {
        "judged": judged,
        "parts": parts,
        "measure": MEASURES[judged.mode],
        "figure": both_widths(lambda width: _draw(main, candidates, MEASURES[judged.mode], result.short_names, width)),
    }


def _draw(
    split: JudgedSplit, candidates: set[str], measure: str, short_names: dict[str, str], width: int
) -> str | None:
    """Draw each model with its interval; sets have another mark than single models."""
    rows = [row for row in split.rows[:_MOST_DRAWN] if row.accuracy is not None]
    if not rows:
        return None
    is_set = [row.name not in candidates for row in rows]
    axes = row_axes([short_names.get(row.name, row.name) for row in rows], width, bold=is_set)
    add_points_scale(axes, rows, measure, 5 if width == NARROW else 10)
    # An average candidate wins half of its comparisons; grades have no middle of this kind.
    if measure == MEASURES["pairwise"]:
        reference(axes, 50)
    for y, row in enumerate(rows):
        accuracy_mark(axes, row, "ensemble" if is_set[y] else "selected", y)
    return markup(axes, f"The {measure} of {len(rows)} models with intervals; the table has the numbers.")
