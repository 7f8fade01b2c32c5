"""Methods side by side: the accuracy of each and its cost per token, from ``evaluation.json``."""

from __future__ import annotations

from typing import Any

from advisor.runs.read.evaluation import MethodTable
from advisor.runs.read.result import Result
from ensemble.common import text
from reports.charts.axes import both_widths
from reports.charts.differences import shape_of
from reports.charts.rows import accuracy_and_cost

_SHAPES = {"member": "selected", "control": "selected"}


def values(result: Result) -> dict[str, Any] | None:
    """Return the template's values; None without an evaluation."""
    table = result.evaluation
    if table is None:
        return None
    # The run may have chosen another set since its methods were evaluated.
    current = table.members == [candidate.name for candidate in result.selected]
    return {
        "evaluation": table,
        "current": current,
        "known_corpus": any(row.corpus_score is not None for row in table.rows),
        "known_memory": any(row.peak_memory is not None for row in table.rows),
        "figure": both_widths(lambda width: _draw(table, result.measure, width)) if current else None,
    }


def _draw(table: MethodTable, measure: str, width: int) -> str | None:
    """Draw all rows with a known accuracy, best first: the accuracy on the left, the cost per token on the right."""
    # A method that was left out has no accuracy, and only a row in the table.
    known = sorted((row for row in table.rows if row.accuracy is not None), key=lambda row: -(row.accuracy or 0.0))
    best = (row.accuracy for row in known if (row.kind, row.name) == ("member", table.best_single))
    rows = [
        (row.name, row, _SHAPES.get(row.kind) or shape_of(row.delta or 0.0), row.kind == "method", row.ms_per_token)
        for row in known
    ]
    return accuracy_and_cost(rows, width, next(best, None), "ms a token", _milliseconds, log=True, measure=measure)


def _milliseconds(value: float) -> str:
    return f"{text.milliseconds(value)} ms"
