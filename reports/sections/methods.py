"""Methods side by side: the accuracy of each and its cost per token, from ``evaluation.json``."""

from __future__ import annotations

from typing import Any

from advisor.runs.schema.evaluation import EvaluatedMethod, EvaluatedModel, Evaluation
from ensemble.common import text
from reports.charts.axes import both_widths
from reports.charts.rows import accuracy_and_cost, shape_of
from reports.report_data import ReportData

_JOINS = {
    "token": "tokens",
    "span": "spans",
    "response": "responses",
    "control": "control",
}


def values(report: ReportData) -> dict[str, Any] | None:
    """Return the template's values; None without an evaluation."""
    result = report.result
    evaluation = report.evaluation
    if evaluation is None:
        return None
    every: list[EvaluatedModel | EvaluatedMethod] = [*evaluation.members, *evaluation.methods]
    # The run may have chosen another set since its methods were evaluated.
    current = [each.model for each in evaluation.members] == [candidate.model for candidate in result.chosen]
    return {
        "evaluation": evaluation,
        "rows": [
            *((each, "alone", None, None) for each in evaluation.members),
            *((each, _JOINS[each.level], each, each.p) for each in evaluation.methods),
        ],
        "current": current,
        "known_corpus": any(row.corpus_score is not None for row in every),
        "known_memory": any(row.peak_memory is not None for row in every),
        "figure": both_widths(lambda width: _draw(evaluation, result.measure, width)) if current else None,
    }


def _draw(evaluation: Evaluation, measure: str, width: int) -> str | None:
    """Draw all rows with a known accuracy, best first: the accuracy on the left, the cost per token on the right."""
    # A method that was left out has no accuracy, and only a row in the table.
    every: list[EvaluatedModel | EvaluatedMethod] = [*evaluation.members, *evaluation.methods]
    known = sorted((row for row in every if row.accuracy is not None), key=lambda row: -(row.accuracy or 0.0))
    best = (row.accuracy for row in evaluation.members if row.model == evaluation.best_single_model)
    rows = [
        (row.name, row, _shape(row), isinstance(row, EvaluatedMethod) and row.level != "control", row.ms_per_token)
        for row in known
    ]
    return accuracy_and_cost(rows, width, next(best, None), "ms a token", _milliseconds, log=True, measure=measure)


def _shape(row: EvaluatedModel | EvaluatedMethod) -> str:
    # The control is one model, asked several times.
    if isinstance(row, EvaluatedModel) or row.level == "control":
        return "selected"
    return shape_of(row.difference)


def _milliseconds(value: float) -> str:
    return f"{text.milliseconds(value)} ms"
