"""Together and alone: the ensemble and its members on held-out questions, the prediction, and the looks at them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from advisor.runs.read.fields import Interval
from advisor.runs.read.prediction import LookRow, PredictedRow
from advisor.runs.read.result import EnsembleRun, Result
from ensemble.common import text
from reports.charts.axes import NARROW, both_widths, reference
from reports.charts.differences import Mark, draw_differences, shape_of
from reports.charts.rows import accuracy_mark, add_points_scale, row_axes, write_value
from reports.charts.svg import markup

_MOST_PREDICTED = 20
_MOST_NAMES = 6


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


def values(result: Result) -> dict[str, Any] | None:
    """Return the template's values; None if the ensemble has no accuracy."""
    run = result.ensemble
    figure = both_widths(lambda width: _draw(run, result, width)) if run else None
    return figure and {"run": run, "figure": figure}


def prediction(result: Result) -> dict[str, Any] | None:
    """Return the values of the prediction's template; None without a prediction."""
    rows = [*_sets(result), *_strategies(result)]
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


def looks(result: Result) -> dict[str, Any] | None:
    """Return the values of the looks' template; None if the held-out questions were looked at only once."""
    if len(result.looks) < 2:
        return None
    return {"rows": [(look, text.strategy(look.method, look.members), _shows(look)) for look in result.looks]}


def _draw(run: EnsembleRun, result: Result, width: int) -> str | None:
    """Draw the ensemble and its members, each with its interval."""
    if run.accuracy is None:
        return None
    # Full hub ids would not fit beside the rows.
    short_names, measure = result.short_names, result.measure
    members = [replace(each, name=short_names.get(each.name, each.name)) for each in run.members]
    rows = [replace(run, name=f"{run.name} ensemble"), *(each for each in members if each.accuracy is not None)]
    bold = [True, *(False for _ in members)]
    axes = row_axes([row.name for row in rows], width, row=38, right=52, bold=bold)
    add_points_scale(axes, rows, measure, 5 if width == NARROW else 10)
    if run.best_single is not None:
        # The line is what the ensemble has to pass.
        reference(axes, run.best_single)
    for y, row in enumerate(rows):
        accuracy_mark(axes, row, "selected" if y else shape_of(_gain(run)), y)
        write_value(axes, y, text.points(row.accuracy), 48, bold=bold[y])
    return markup(
        axes,
        f"{measure.capitalize()} of the ensemble and of its {len(rows) - 1} members, with intervals; the table has the "
        "numbers.",
    )


def _gain(run: EnsembleRun) -> float:
    return run.gain if run.gain is not None else run.delta or 0.0


def _sets(result: Result) -> list[_Promise]:
    # The strategies have the interval of what was measured; the sets have the points only.
    together = {row.members: row for row in result.strategies.rows if row.is_decoded}
    found = []
    for number, each in enumerate(result.predictions, start=1):
        if each.predicted is None or not each.models:
            continue
        row = together.get(each.models)
        measured, ends = (row.delta, row.delta_ci) if row else (each.measured, None)
        # A drawing has no room for all names.
        name = f"Set {number}, {text.counted(len(each.models), 'model')}"
        found.append(
            _Promise(name, each.models, _note(each, result), each.predicted, each.predicted_ci, measured, ends)
        )
    return found


def _note(each: PredictedRow, result: Result) -> str:
    chosen = each.models == tuple(candidate.name for candidate in result.selected)
    return ", ".join(words for words, holds in (("chosen by the rules", each.by_rules), ("used", chosen)) if holds)


def _strategies(result: Result) -> list[_Promise]:
    sets = {each.models for each in result.predictions}
    return [
        _Promise(
            text.strategy(row.name, row.members, row.draws),
            row.members,
            "",
            row.predicted,
            row.predicted_ci,
            row.delta,
            row.delta_ci,
        )
        for row in result.strategies.rows
        # A set that decodes together is among the sets.
        if row.predicted is not None and not (row.is_decoded and row.members in sets)
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


def _shows(look: LookRow) -> str:
    """What the test shows at a look; it ends with the first look that shows something."""
    if look.limit is None:
        return ""
    if look.p_no_gain is not None and look.p_no_gain <= look.limit:
        return "a gain"
    return "a loss" if look.p_no_loss is not None and look.p_no_loss <= look.limit else "nothing yet"
