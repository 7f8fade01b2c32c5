"""The set that decodes together, its members alone, other methods, and the looks at held-out questions."""

from __future__ import annotations

from typing import Any

from advisor.run.evaluation import EvaluatedMethod, EvaluatedModel, Evaluation
from advisor.run.figures import Accuracy
from advisor.run.result import EnsembleResult, InterimAnalysis, Result
from advisor.strategies import tested
from ensemble.common import text
from reports.charts.axes import NARROW, both_widths, reference
from reports.charts.rows import (
    accuracy_and_cost,
    accuracy_mark,
    add_points_scale,
    row_axes,
    shape_of,
    write_value,
)
from reports.charts.svg import markup
from reports.report_data import SURE, ReportData
from reports.tables import Cell, Column, figures, held_out, make_table, words
from reports.tables import methods as methods_table

_MOST_LOOKS = 100


def decoded_set(report: ReportData) -> dict[str, Any] | None:
    """Return the template's values; None if the models cannot decode together, and no methods were compared."""
    result = report.result
    found = {"together": _together(result), "looks": _looks(result), "methods": _methods(report)}
    if not result.can_decode and not any(found.values()):
        return None
    return {
        **found,
        "finding": _finding(result),
        "certainty": certainty(result),
    }


def _finding(result: Result) -> str:
    names, size = f"{text.in_words(len(result.chosen))} models", len(result.chosen)
    if size < 2:
        return "By the rules, no two models can decode together"
    if result.ensemble is None and result.held_out:
        return "No set of models could decode together"
    if result.ensemble is None:
        return f"By the rules, {names} can decode together; they were not run"
    run = result.ensemble
    row = next(
        (each for each in result.strategies if (each.strategy, each.members) == (run.method, result.selected)), None
    )
    # The probability of the table: the paired test of these questions alone may say less.
    if row is None or row.probability is None:
        verdict = result.advice.verdict
    elif row.probability >= SURE:
        verdict = "better"
    else:
        verdict = "worse" if row.probability <= 1 - SURE else "unclear"
    if verdict == "unclear":
        return f"Cannot tell whether {names} that decode together are better than one"
    return f"{names.capitalize()} that decode together are {verdict} than one"


def certainty(result: Result, details: str = "the models") -> str:
    """Return how certain the verdict on the set that decodes together is; `details` is what to look at for more."""
    run = result.ensemble
    if run is None:
        return ""
    changes = ""
    if run.gained is not None and run.lost is not None:
        recovered, broken = f"{run.gained:,}" if run.gained else "no", f"{run.lost:,}" if run.lost else "none"
        noun = "question" if run.gained == 1 else "questions"
        changes = (
            f"The ensemble recovered {recovered} {noun} that the best single model gets wrong, and broke {broken}."
        )
    close = sum(bool(candidate.close_call) for candidate in result.candidates)
    if not close:
        return changes
    noun = "decision of the rules was a close call" if close == 1 else "decisions of the rules were close calls"
    return f"{changes} {text.in_words(close).capitalize()} {noun}; see {details}.".strip()


def _together(result: Result) -> dict[str, Any] | None:
    """The set and its members; None if the set has no accuracy."""
    run = result.ensemble
    figure = both_widths(lambda width: _draw(run, result, width)) if run else None
    return {"run": run, "table": held_out(run, result.measure), "figure": figure} if run and figure else None


def _looks(result: Result) -> dict[str, Any] | None:
    """The looks at the held-out questions; None if there was only one."""
    if len(result.looks) < 2:
        return None
    columns = [
        words("Test", lambda look: str(look.test)),
        Column("Strategy", lambda look: Cell(str(tested(look.method, look.members))), "name"),
        figures("n", "Questions", text.thousands),
        figures("p_no_gain", "p", text.chance),
        figures("limit", "Limit", text.chance),
        words("Shows", _shows),
    ]
    return {"table": make_table("Looks at the held-out questions", result.looks[-_MOST_LOOKS:], columns)}


def _draw(run: EnsembleResult, result: Result, width: int) -> str | None:
    if run.accuracy is None:
        return None
    # Full hub ids would not fit beside the rows.
    short_names, measure = result.short_names, result.measure
    rows: list[tuple[str, Accuracy]] = [(f"{run.method} ensemble", run)]
    rows += [(short_names.get(each.model, each.model), each) for each in run.members if each.accuracy is not None]
    bold = [True, *(False for _ in rows[1:])]
    axes = row_axes([name for name, _ in rows], width, row=38, right=52, bold=bold)
    add_points_scale(axes, [row for _, row in rows], measure, 5 if width == NARROW else 10)
    if run.best_single_accuracy is not None:
        # The line is what the ensemble has to pass.
        reference(axes, run.best_single_accuracy)
    for y, (name, row) in enumerate(rows):
        gain = run.difference if run.measured_gain is None else run.measured_gain
        accuracy_mark(axes, name, row, "selected" if y else shape_of(gain or 0.0), y)
        write_value(axes, y, text.points(row.accuracy), 48, bold=bold[y])
    return markup(
        axes,
        f"{measure.capitalize()} of the ensemble and of its {len(rows) - 1} members, with intervals; the table has the "
        "numbers.",
    )


def _shows(look: InterimAnalysis) -> str:
    """What the test shows at a look; it ends with the first look that shows something."""
    if look.p_no_gain <= look.limit:
        return "a gain"
    return "a loss" if look.p_no_loss <= look.limit else "nothing yet"


def _methods(report: ReportData) -> dict[str, Any] | None:
    """The methods side by side; None without an evaluation."""
    result, evaluation = report.result, report.evaluation
    if evaluation is None:
        return None
    # The run may have chosen another set since its methods were evaluated.
    current = [each.model for each in evaluation.members] == [candidate.model for candidate in result.chosen]
    return {
        "evaluation": evaluation,
        "current": current,
        "table": methods_table(evaluation, result.measure),
        "figure": both_widths(lambda width: _draw_methods(evaluation, result.measure, width)) if current else None,
    }


def _draw_methods(evaluation: Evaluation, measure: str, width: int) -> str | None:
    """Draw all rows with a known accuracy, best first: the accuracy on the left, the cost per token on the right."""
    # A method that was left out has no accuracy, and only a row in the table.
    every: list[EvaluatedModel | EvaluatedMethod] = [*evaluation.members, *evaluation.methods]
    known = sorted((row for row in every if row.accuracy is not None), key=lambda row: -(row.accuracy or 0.0))
    best = (row.accuracy for row in evaluation.members if row.model == evaluation.best_single_model)
    rows = [
        (row.name, row, _shape(row), isinstance(row, EvaluatedMethod) and row.level != "control", row.ms_per_token)
        for row in known
    ]
    return accuracy_and_cost(rows, width, next(best, None), "ms a token", text.milliseconds, log=True, measure=measure)


def _shape(row: EvaluatedModel | EvaluatedMethod) -> str:
    # The control is one model, asked several times.
    if isinstance(row, EvaluatedModel) or row.level == "control":
        return "selected"
    return shape_of(row.difference)
