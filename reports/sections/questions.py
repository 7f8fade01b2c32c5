"""Questions and models, and examples with every response. The script of the page draws both."""

from __future__ import annotations

from typing import Any

from ensemble.common import text
from reports.report_data import KINDS, MOST_MODELS, NOT_ASKED, OF_STRATEGY, ReportData, joint_name, of_kind


def questions(report: ReportData) -> dict[str, Any] | None:
    """Who is right on which question; None without samples, and where answers have grades."""
    result = report.result
    samples = report.samples
    if samples is None or not samples.total or result.is_graded:
        return None
    columns, counts = samples.questions, []
    # Only questions that the strategy answered can be recovered or broken.
    compared, every = len(columns["strategy"].replace(NOT_ASKED, "")), len(columns["ids"])
    for kind, name in KINDS.items():
        count = of_kind(columns, kind)
        counts.append((name, count, count / max(compared if kind in OF_STRATEGY else every, 1)))
    return {
        "shown": every,
        "total": samples.total,
        "models": columns["models"],
        "left_out": max(len(result.candidates) - MOST_MODELS, 0),
        "strategy": compared_strategy(report) if compared else "",
        "counts": counts,
    }


def compared_strategy(report: ReportData) -> str:
    """Return what is compared with the best single model; empty if nothing is."""
    result, samples = report.result, report.samples
    recommended = result.advice.recommendation
    if recommended and samples and samples.by_strategy:
        return recommended.title
    return f"{result.ensemble.name} ensemble" if result.ensemble else ""


def examples(report: ReportData) -> dict[str, Any]:
    """Return the template's values. The section is always shown, because it says when examples are missing."""
    result, samples, asked = report.result, report.samples, questions(report)
    shown = samples.examples if samples else ()
    finding = "Every response to the questions"
    if asked and asked["strategy"]:
        won, lost = (of_kind(samples.questions, kind) for kind in OF_STRATEGY) if samples else (0, 0)
        finding = f"Wrong alone and right together: {text.counted(won, 'question')}; the other way: {lost:,}"
        if not won and not lost:
            finding = "Together and alone, the same questions are right"
    return {
        "finding": finding,
        "questions": asked,
        "samples": samples,
        "joint": joint_name(result),
        "changes": compared_strategy(report) if result.best_single else "",
        "places": any("place" in each for example in shown for each in example["responses"]),
        "traced": sum("trace" in example for example in shown),
    }
