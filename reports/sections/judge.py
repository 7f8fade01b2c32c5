"""The judge: win rates or grades with their intervals, and how far the judge can be trusted."""

from __future__ import annotations

from typing import Any

from advisor.run.figures import Accuracy, JudgedSplit, JudgeSection
from advisor.run.result import MEASURES
from advisor.run.sentences import on_split, on_strategy
from ensemble.common import text
from reports.charts.axes import NARROW, both_widths, reference
from reports.charts.rows import accuracy_mark, add_points_scale, row_axes
from reports.charts.svg import markup
from reports.report_data import ReportData
from reports.tables import INTERVAL, Cell, Column, Table, figures, make_table

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
    parts = [(_questions(each), own, each) for each in own.splits[:_MOST_SPLITS]] if own else []
    # What the verdict is from comes first.
    parts.reverse()
    if evaluated:
        splits = evaluated.splits[:_MOST_SPLITS]
        parts += [(f"advisor evaluate, {_questions(each)}", evaluated, each) for each in splits]
    _, section, main = parts[0]
    candidates = {candidate.name for candidate in result.candidates}
    # The name of a set has all its members, for which a title and a drawing have no room.
    names = {each.model: _set_name(each.model) for each in main.models} | result.short_names
    return {
        "finding": _finding(section, main, names),
        "judged": judged,
        "parts": [(title, on_split(section, split), _table(title, section, split)) for title, section, split in parts],
        "met": [on_strategy(each) for each in judged.head_to_head[:_MOST_MEMBERS]],
        "figure": both_widths(lambda width: _draw(main, section.mode, candidates, names, width)),
    }


def _questions(split: JudgedSplit) -> str:
    return f"{split.split.replace('_', '-')} questions"


def _set_name(name: str) -> str:
    how, _, members = name.partition(" of ")
    return f"{how}, {members.count(', ') + 2} models together" if members else name


def _finding(section: JudgeSection, split: JudgedSplit, names: dict[str, str]) -> str:
    """Which responses the judge finds best, and how often their order decides."""
    judge = section.judges[0] if section.judges else "The judge"
    if not split.models:
        return f"{judge} gave no verdict"
    best, changed = split.models[0], split.changed
    if section.mode != "pairwise":
        return f"{judge} gives the best grades to {names[best.model]}: {text.points(best.score)} points"
    order = f"; their order changes {text.points(changed.share)}% of its verdicts" if changed and changed.n else ""
    return f"{judge} prefers the responses of {names[best.model]}{order}"


def _table(title: str, section: JudgeSection, split: JudgedSplit) -> Table:
    measure = MEASURES[section.mode].capitalize()
    columns = [Column("Model", lambda each: Cell(each.model), "name")]
    if section.mode == "pairwise":
        columns += [
            figures("win_rate", measure, interval=INTERVAL),
            figures("log_odds", "Strength", text.decimals),
            figures("score", "Mean score"),
            figures("matches", "Matches", text.thousands),
        ]
    else:
        columns += [figures("score", measure, interval=INTERVAL), figures("grades", "Grades", text.thousands)]
    return make_table(title, split.models[:_MOST_MODELS], columns)


def _draw(split: JudgedSplit, mode: str, candidates: set[str], short_names: dict[str, str], width: int) -> str | None:
    """Draw each model with its interval; sets have another mark than single models."""
    key, measure = "win_rate" if mode == "pairwise" else "score", MEASURES[mode]
    known = [
        (each.model, Accuracy(accuracy=getattr(each, key), accuracy_ci=getattr(each, f"{key}_ci")))
        for each in split.models[:_MOST_DRAWN]
    ]
    rows = [(name, each) for name, each in known if each.accuracy is not None]
    if not rows:
        return None
    is_set = [name not in candidates for name, _ in rows]
    axes = row_axes([short_names.get(name, name) for name, _ in rows], width, bold=is_set)
    add_points_scale(axes, [points for _, points in rows], measure, 5 if width == NARROW else 10)
    # An average candidate wins half of its comparisons; grades have no middle of this kind.
    if mode == "pairwise":
        reference(axes, 50)
    for y, (name, points) in enumerate(rows):
        accuracy_mark(axes, name, points, "ensemble" if is_set[y] else "selected", y)
    return markup(axes, f"The {measure} of {len(rows)} models with intervals; the table has the numbers.")
