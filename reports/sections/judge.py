"""The judge: win rates or grades with their intervals, and how far the judge can be trusted."""

from __future__ import annotations

from typing import Any

from advisor.runs.judge_sentences import on_split, on_strategy
from advisor.runs.schema.judge import JudgedModel, JudgedSplit
from advisor.runs.schema.measured import Accuracy
from advisor.runs.schema.result import MEASURES
from reports.charts.canvas import Canvas
from reports.charts.rows import COLUMN, NARROW, WIDE, axis, both_widths, interval_mark, row_name
from reports.charts.scales import points_scale
from reports.report_data import ReportData

_MOST_DRAWN = 20
_MOST_MODELS = 200
_MOST_SPLITS = 2
_MOST_MEMBERS = 100


def values(report: ReportData) -> dict[str, Any] | None:
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
    main = parts[0][2]
    candidates = {candidate.name for candidate in result.candidates}
    return {
        "judged": judged,
        "parts": [(title, on_split(judge, split), _rows(split)) for title, judge, split in parts],
        "met": [on_strategy(each) for each in judged.head_to_head[:_MOST_MEMBERS]],
        "measure": MEASURES[judged.mode],
        "figure": both_widths(lambda width: _draw(main, candidates, MEASURES[judged.mode], result.short_names, width)),
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
    start, step, foot = (COLUMN, 30, 44) if width == WIDE else (8, 46, 44)
    canvas = Canvas(width, step * len(rows) + foot)
    ends = [end for _, points in rows for end in (points.accuracy or 0.0, *(points.accuracy_ci or ()))]
    x = points_scale(ends, start, width - 12, pad=1.5)
    axis(canvas, x, foot, f"{measure}, points", 5 if width == NARROW else 10)
    # An average candidate wins half of its comparisons; grades have no middle of this kind.
    if measure == MEASURES["pairwise"]:
        canvas.line((x(50), foot), (x(50), canvas.height), "muted", dash=(3, 3))
    for index, (name, points) in enumerate(rows):
        y = canvas.height - step * index - (step / 2 if width == WIDE else 31)
        is_set = name not in candidates
        row_name(canvas, short_names.get(name, name), x, y, 17, bold=is_set)
        interval_mark(canvas, name, points, "ensemble" if is_set else "selected", x, y)
    return canvas.markup(f"The {measure} of {len(rows)} models with intervals; the table has the numbers.")
