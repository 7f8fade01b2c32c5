"""Questions and models: who is right on which question. The script shows all, the page without script some of them."""

from __future__ import annotations

from typing import Any

from reports.question_rows import KINDS, MOST_MODELS, NOT_ASKED, OF_STRATEGY, RIGHT, WRONG, QuestionRow, model_columns
from reports.report_data import ReportData

_SHOWN_WITHOUT_SCRIPT = 20
_WORDS = {RIGHT: "right", WRONG: "wrong", NOT_ASKED: "not asked"}


def values(report: ReportData) -> dict[str, Any] | None:
    """Return the template's values; None without samples, and where answers have grades and are not right or wrong."""
    result = report.result
    samples = report.samples
    if samples is None or not samples.questions or result.is_graded:
        return None
    rows, models = samples.questions, model_columns(samples.questions)
    return {
        "questions": rows,
        "total": samples.total,
        "models": [(number, result.candidates[number].name) for number in models],
        "left_out": max(len(result.candidates) - MOST_MODELS, 0),
        "strategy": compared_strategy(report) if any(each.strategy != NOT_ASKED for each in rows) else "",
        "best_single": result.best_single.name if result.best_single else "the best single model",
        "counts": [(name, *_counted(kind, rows)) for kind, name in KINDS.items()],
        "rows": _telling(rows),
        "kinds": KINDS,
        "words": _WORDS,
    }


def compared_strategy(report: ReportData) -> str:
    """Return what is compared with the best single model; empty if nothing is."""
    result, samples = report.result, report.samples
    recommended = result.recommended
    if recommended and samples and samples.by_strategy:
        return recommended.title
    return f"{result.ensemble.name} ensemble" if result.ensemble else ""


def _counted(kind: str, rows: tuple[QuestionRow, ...]) -> tuple[int, float]:
    """Return the number of questions of a kind, and its share of those that can be of this kind."""
    # Only questions that the strategy answered can be recovered or broken.
    asked = sum(kind not in OF_STRATEGY or each.strategy != NOT_ASKED for each in rows)
    count = sum(kind in each.kinds for each in rows)
    return count, count / max(asked, 1)


def _telling(rows: tuple[QuestionRow, ...]) -> list[QuestionRow]:
    """Return the first questions that the strategy changed, then those on which the models disagree, then others."""
    order = {kind: place for place, kind in enumerate(KINDS)}

    def rank(row: QuestionRow) -> int:
        return min((order[kind] for kind in row.kinds), default=len(order))

    return sorted(rows, key=rank)[:_SHOWN_WITHOUT_SCRIPT]
