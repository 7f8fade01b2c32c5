"""Questions and models, and examples with every response. The script shows all, the page without script some."""

from __future__ import annotations

from typing import Any

from reports.question_rows import (
    KINDS,
    MOST_MODELS,
    NOT_ASKED,
    OF_STRATEGY,
    RIGHT,
    WRONG,
    QuestionRow,
    model_columns,
    page_bytes,
)
from reports.report_data import TAGS, ReportData, Shown, ShownSamples, joint_name

_QUESTIONS_WITHOUT_SCRIPT = 20
_WORDS = {RIGHT: "right", WRONG: "wrong", NOT_ASKED: "not asked"}
EXAMPLES_WITHOUT_SCRIPT = 12  # for readers without JavaScript
MOST_BYTES_WITHOUT_SCRIPT = 150_000  # of these examples, because they are in the page a second time
BYTES_OF_A_STEP = 300  # about as many as a step of a trace has in the page's markup


def questions(report: ReportData) -> dict[str, Any] | None:
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
        "rows": _telling_questions(rows),
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


def _telling_questions(rows: tuple[QuestionRow, ...]) -> list[QuestionRow]:
    """Return the first questions that the strategy changed, then those on which the models disagree, then others."""
    order = {kind: place for place, kind in enumerate(KINDS)}

    def rank(row: QuestionRow) -> int:
        return min((order[kind] for kind in row.kinds), default=len(order))

    return sorted(rows, key=rank)[:_QUESTIONS_WITHOUT_SCRIPT]


def examples(report: ReportData) -> dict[str, Any]:
    """Return the template's values. The section is always shown, because it says when examples are missing."""
    result = report.result
    samples = report.samples
    return {
        "samples": samples,
        "telling": _telling_examples(samples) if samples else [],
        "tags": TAGS,
        "joint": joint_name(result),
        "changes": compared_strategy(report) if result.best_single else "",
        "traced": sum("trace" in example for example in samples.examples) if samples else 0,
    }


def _telling_examples(samples: ShownSamples) -> list[Shown]:
    """Return the most instructive examples: those with a trace first, then in the order of the tags."""
    order = {tag: place for place, tag in enumerate(TAGS)}

    def rank(example: Shown) -> tuple[bool, int]:
        return "trace" not in example, min((order[tag] for tag in example["tags"]), default=len(order))

    room, telling = MOST_BYTES_WITHOUT_SCRIPT, []
    for example in sorted(samples.examples, key=rank)[:EXAMPLES_WITHOUT_SCRIPT]:
        weight = page_bytes({**example, "trace": None})
        weight += BYTES_OF_A_STEP * len(example["trace"]["steps"]) if "trace" in example else 0
        # A long example is passed over, not the end: the others may be short.
        if weight <= room:
            telling.append(example)
            room -= weight
    return telling
