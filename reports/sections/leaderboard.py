"""The leaderboard: every candidate with the decision of the rules, its accuracy as a bar, and its other numbers."""

from __future__ import annotations

from typing import Any

from advisor.runs.schema.result import Result
from reports.report_data import ReportData

STATUS_WORDS = {"primary": "Primary", "selected": "Chosen", "rejected": "Not chosen", "failed": "Failed"}


def values(report: ReportData) -> dict[str, Any]:
    """Return the template's values."""
    result = report.result
    has = {
        "corpus_score": any(candidate.corpus_score is not None for candidate in result.candidates),
        "mean_length": any(candidate.mean_length is not None for candidate in result.candidates),
        "mean_tokens": any(candidate.mean_tokens is not None for candidate in result.candidates),
        "answered": any(candidate.answered is not None for candidate in result.candidates),
        "truncated": any(candidate.truncated for candidate in result.candidates),
        "errors": any(candidate.errors for candidate in result.candidates),
        "tokens_per_second": any(candidate.tokens_per_second is not None for candidate in result.candidates),
    }
    return {
        "bars": _bars(result),
        # A column that is empty for every candidate is left out.
        "columns": {name for name, known in has.items() if known},
        "status_words": STATUS_WORDS,
        "roles": result.roles,
        "held_out": {each.model: each.accuracy for each in result.single_models if each.n == result.held_out},
    }


def _bars(result: Result) -> dict[int, dict[str, float]]:
    """Return each candidate's accuracy, its interval and the lowest allowed accuracy, in percent of the bar's width."""
    known = [
        (index, each.accuracy, each.accuracy_ci or (each.accuracy,) * 2)
        for index, each in enumerate(result.candidates)
        if each.accuracy is not None
    ]
    if not known:
        return {}
    low, high = min(ends[0] for _, _, ends in known), max(ends[1] for _, _, ends in known)
    # At least one point, so that equal accuracies do not divide by zero.
    width = max(high - low, 1.0)
    primary = result.primary
    # Without a primary there is no limit to draw, and the mark falls on the left end.
    limit = primary.accuracy - result.rules.max_gap if primary and primary.accuracy is not None else low

    def percent(value: float) -> float:
        return round(100 * min(max((value - low) / width, 0.0), 1.0), 2)

    return {
        index: {"at": percent(at), "low": percent(ends[0]), "high": percent(ends[1]), "floor": percent(limit)}
        for index, at, ends in known
    }
