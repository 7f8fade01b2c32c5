"""The judge: win rates or grades with their intervals, and how far the judge can be trusted."""

from __future__ import annotations

from typing import Any

from advisor.run.figures import Accuracy, JudgedModel, JudgedSplit
from advisor.run.result import MEASURES
from advisor.run.sentences import on_split, on_strategy
from ensemble.common import text
from reports.charts.axes import NARROW, both_widths, reference
from reports.charts.rows import accuracy_mark, add_points_scale, row_axes
from reports.charts.svg import markup
from reports.report_data import ReportData
from reports.tables import INTERVAL, Cell, Column, make_table

_MOST_DRAWN = 20
_MOST_MODELS = 200
_MOST_SPLITS = 2
_MOST_MEMBERS = 100


def judge(report: ReportData) -> dict[str, Any] | None:
    """Return the template's values; None for a task without a judge."""
    result = report.result
    # A run that was evaluated with another judge has both, and each has its own table.
    own, evaluated = result.judge, report.evaluation.judge if report.evaluation else None
    judged = own or evaluated
    if judged is None or not judged.splits:
        return None
    parts = [(f"{each.split} questions", own, each) for each in own.splits[:_MOST_SPLITS]] if own else []
    # What the verdict is from comes first.
    parts.reverse()
    if evaluated:
        splits = evaluated.splits[:_MOST_SPLITS]
        parts += [(f"advisor evaluate, {each.split} questions", evaluated, each) for each in splits]
    main, measure = parts[0][2], MEASURES[judged.mode]
    is_paired = judged.mode == "pairwise"
    columns = [
        Column("Model", lambda row: Cell(row[0].model), "name"),
        Column(
            measure.capitalize(),
            lambda row: Cell(text.points(row[1].accuracy), detail=text.interval(row[1].accuracy_ci)),
            details=INTERVAL,
        ),
    ]
    if is_paired:
        columns += [
            Column("Strength", lambda row: Cell(text.decimals(row[0].log_odds))),
            Column("Mean score", lambda row: Cell(text.points(row[0].score))),
        ]
    columns.append(Column("Matches" if is_paired else "Grades", lambda row: Cell(f"{row[2]:,}")))
    candidates = {candidate.name for candidate in result.candidates}
    return {
        "judged": judged,
        "parts": [
            (title, on_split(section, split), make_table(title, _rows(split), columns))
            for title, section, split in parts
        ],
        "met": [on_strategy(each) for each in judged.head_to_head[:_MOST_MEMBERS]],
        "figure": both_widths(lambda width: _draw(main, candidates, measure, result.short_names, width)),
    }


def _rows(split: JudgedSplit) -> list[tuple[JudgedModel, Accuracy, int]]:
    """Each model with its win rate, or its mean grade, and the number of matches or grades that it is from."""
    return [
        # Grades have a mean and no win rate.
        (each, Accuracy(accuracy=each.score, accuracy_ci=each.score_ci), each.grades or 0)
        if each.win_rate is None
        else (each, Accuracy(accuracy=each.win_rate, accuracy_ci=each.win_rate_ci), each.matches or 0)
        for each in split.models[:_MOST_MODELS]
    ]


def _draw(
    split: JudgedSplit, candidates: set[str], measure: str, short_names: dict[str, str], width: int
) -> str | None:
    """Draw each model with its interval; sets have another mark than single models."""
    rows = [(each.model, points) for each, points, _ in _rows(split)[:_MOST_DRAWN] if points.accuracy is not None]
    if not rows:
        return None
    is_set = [name not in candidates for name, _ in rows]
    axes = row_axes([short_names.get(name, name) for name, _ in rows], width, bold=is_set)
    add_points_scale(axes, [points for _, points in rows], measure, 5 if width == NARROW else 10)
    # An average candidate wins half of its comparisons; grades have no middle of this kind.
    if measure == MEASURES["pairwise"]:
        reference(axes, 50)
    for y, (name, points) in enumerate(rows):
        accuracy_mark(axes, name, points, "ensemble" if is_set[y] else "selected", y)
    return markup(axes, f"The {measure} of {len(rows)} models with intervals; the table has the numbers.")
