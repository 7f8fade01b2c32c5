"""Questions and models, and examples with every response. The script of the page draws both."""

from __future__ import annotations

from typing import Any

from reports.report_data import (
    KINDS,
    MOST_MODELS,
    NOT_ASKED,
    OF_STRATEGY,
    ReportData,
    joint_name,
    model_columns,
)


def questions(report: ReportData) -> dict[str, Any] | None:
    """Return the template's values; None without samples, and where answers have grades and are not right or wrong."""
    result = report.result
    samples = report.samples
    if samples is None or not samples.questions or result.is_graded:
        return None
    rows, models, counts = samples.questions, model_columns(samples.questions), []
    for kind, name in KINDS.items():
        count = sum(kind in each.kinds for each in rows)
        # Only questions that the strategy answered can be recovered or broken.
        asked = sum(kind not in OF_STRATEGY or each.strategy != NOT_ASKED for each in rows)
        counts.append((name, count, count / max(asked, 1)))
    return {
        "questions": rows,
        "total": samples.total,
        "models": [(number, result.candidates[number].name) for number in models],
        "left_out": max(len(result.candidates) - MOST_MODELS, 0),
        "strategy": compared_strategy(report) if any(each.strategy != NOT_ASKED for each in rows) else "",
        "best_single": result.best_single.name if result.best_single else "the best single model",
        "counts": counts,
    }


def compared_strategy(report: ReportData) -> str:
    """Return what is compared with the best single model; empty if nothing is."""
    result, samples = report.result, report.samples
    recommended = result.recommended
    if recommended and samples and samples.by_strategy:
        return recommended.title
    return f"{result.ensemble.name} ensemble" if result.ensemble else ""


def examples(report: ReportData) -> dict[str, Any]:
    """Return the template's values. The section is always shown, because it says when examples are missing."""
    result = report.result
    samples = report.samples
    return {
        "samples": samples,
        "joint": joint_name(result),
        "changes": compared_strategy(report) if result.best_single else "",
        "traced": sum("trace" in example for example in samples.examples) if samples else 0,
    }
