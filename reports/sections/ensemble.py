"""Together and alone: the ensemble and its members on held-out questions, the prediction, and the looks at them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from advisor.runs.schema.figures import Accuracy
from advisor.runs.schema.result import EnsembleResult, LookRecord, PredictedFigures, Result
from advisor.statistics import Interval
from advisor.strategies import tested
from ensemble.common import text
from reports.charts.axes import NARROW, both_widths, reference
from reports.charts.rows import Mark, accuracy_mark, add_points_scale, draw_differences, row_axes, shape_of, write_value
from reports.charts.svg import markup
from reports.report_data import ReportData

_MOST_PREDICTED = 20
_MOST_NAMES = 6
_MOST_SETS = 1000
_MOST_LOOKS = 100


@dataclass(frozen=True, slots=True)
class _Promise:
    """A set or a strategy with its predicted gain and, if it answered the held-out questions, the measured one."""

    name: str
    members: tuple[str, ...]
    note: str
    predicted: float
    predicted_ci: Interval | None
    measured: float | None
    measured_ci: Interval | None


def values(report: ReportData) -> dict[str, Any] | None:
    """Return the template's values; None if the ensemble has no accuracy."""
    result = report.result
    run = result.ensemble
    figure = both_widths(lambda width: _draw(run, result, width)) if run else None
    return figure and {"run": run, "weights": _weights(run), "figure": figure}


def prediction(report: ReportData) -> dict[str, Any] | None:
    """Return the values of the prediction's template; None without a prediction."""
    result = report.result
    rows = [*(_sets(result) if result.can_decode else ()), *_strategies(result)]
    measured = [row for row in rows if row.measured is not None]
    # A set that promises more than the measured ones is worth a row, even if it did not answer.
    promising = [row for row in rows[:1] if row.measured is None]
    shown = [*promising, *measured][:_MOST_PREDICTED]
    if not shown:
        return None
    return {
        "rows": [(row, _names(row.members)) for row in shown],
        "figure": both_widths(
            lambda width: _draw_predictions([row for row in shown if row.measured is not None], width)
        ),
    }


def looks(report: ReportData) -> dict[str, Any] | None:
    """Return the values of the looks' template; None if the held-out questions were looked at only once."""
    result = report.result
    if len(result.looks) < 2:
        return None
    last = result.looks[-_MOST_LOOKS:]
    return {"rows": [(look, str(tested(look.method, look.members)), _shows(look)) for look in last]}


def _weights(run: EnsembleResult | None) -> str:
    """The members' weights as text; empty for equal ones."""
    if run is None or run.weights is None:
        return ""
    return run.weights if isinstance(run.weights, str) else " : ".join(f"{each:.3g}" for each in run.weights)


def _draw(run: EnsembleResult, result: Result, width: int) -> str | None:
    """Draw the ensemble and its members, each with its interval."""
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
        accuracy_mark(axes, name, row, "selected" if y else shape_of(_gain(run)), y)
        write_value(axes, y, text.points(row.accuracy), 48, bold=bold[y])
    return markup(
        axes,
        f"{measure.capitalize()} of the ensemble and of its {len(rows) - 1} members, with intervals; the table has the "
        "numbers.",
    )


def _gain(run: EnsembleResult) -> float:
    return run.measured_gain if run.measured_gain is not None else run.difference or 0.0


def _predicted(result: Result) -> tuple[PredictedFigures, ...]:
    return result.prediction.sets[:_MOST_SETS] if result.prediction else ()


def _sets(result: Result) -> list[_Promise]:
    # The strategies have the interval of what was measured; the sets have the points only.
    together = {row.members: row for row in result.strategies if row.is_decoded}
    found = []
    for number, each in enumerate(_predicted(result), start=1):
        row = together.get(each.models)
        # That of a set which was run uses all questions, and the expected gain lies between it and the measured one.
        of = each if row is None or row.predicted_gain is None else row
        if of.predicted_gain is None or not each.models:
            continue
        measured, ends = (row.measured_gain, row.measured_gain_ci) if row else (each.measured_gain, None)
        # A drawing has no room for all names.
        name = f"Set {number}, {text.counted(len(each.models), 'model')}"
        found.append(
            _Promise(
                name,
                each.models,
                _note(each, result, of is row),
                of.predicted_gain,
                of.predicted_gain_ci,
                measured,
                ends,
            )
        )
    return found


def _note(each: PredictedFigures, result: Result, with_all: bool) -> str:
    chosen = each.models == tuple(candidate.model for candidate in result.chosen)
    source = "predicted with all questions" if with_all else "predicted from the dev questions alone"
    words = ("chosen by the rules" if each.rules else "", "used" if chosen else "", source)
    return ", ".join(filter(None, words))


def _strategies(result: Result) -> list[_Promise]:
    sets = {each.models for each in _predicted(result)}
    return [
        _Promise(
            row.title,
            row.members,
            "",
            row.predicted_gain,
            row.predicted_gain_ci,
            row.measured_gain,
            row.measured_gain_ci,
        )
        for row in result.strategies
        # A set that decodes together is among the sets.
        if row.predicted_gain is not None and not (row.is_decoded and row.members in sets)
    ]


def _names(names: tuple[str, ...]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def _draw_predictions(rows: list[_Promise], width: int) -> str | None:
    drawn = [
        (
            row.name,
            [
                Mark(row.predicted, row.predicted_ci, "selected", "predicted"),
                Mark(row.measured, row.measured_ci, shape_of(row.measured), "measured"),
            ],
            False,
        )
        for row in rows
        if row.measured is not None
    ]
    label = f"Predicted and measured gains of {len(drawn)} sets and strategies; the table has the numbers."
    return draw_differences(drawn, width, "gain, points", label)


def _shows(look: LookRecord) -> str:
    """What the test shows at a look; it ends with the first look that shows something."""
    if look.p_no_gain <= look.limit:
        return "a gain"
    return "a loss" if look.p_no_loss <= look.limit else "nothing yet"
