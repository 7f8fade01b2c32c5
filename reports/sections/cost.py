"""Cost: time, speed and memory for the responses of the ensemble, its members and the candidates."""

from __future__ import annotations

from typing import Any

from advisor.runs.schema.figures import Measured
from advisor.runs.schema.result import EnsembleResult, Provenance
from reports.report_data import ReportData


def values(report: ReportData) -> dict[str, Any] | None:
    """Return the template's values; None if no cost is known."""
    result = report.result
    run = result.ensemble
    rows: list[tuple[str, Measured, bool, int]] = []
    if run:
        rows += [(run.split, each, each is run, run.n) for each in (run, *run.members)]
    task = result.task
    rows += [(task.split, each, False, task.n if each.n is None else each.n) for each in result.candidates]
    # Responses of another tool have no cost.
    rows = [row for row in rows if row[1].has_cost]
    if not rows:
        return None
    return {
        "rows": rows,
        "known_requests": any(measured.seconds_median is not None for _, measured, *_ in rows),
        "known_memory": any(measured.peak_memory is not None for _, measured, *_ in rows),
        "slowdown": _slowdown(run) if run else None,
        "loads": _loads(result.provenance),
    }


def _loads(provenance: Provenance) -> tuple[int, int, float] | None:
    """Return how many models were loaded, how often in all, and the seconds of that; None if none was."""
    loads = [each for each in provenance.loads.values() if each.count and each.seconds_total is not None]
    if not loads:
        return None
    return len(loads), sum(each.count for each in loads), sum(each.seconds_total or 0.0 for each in loads)


def _slowdown(run: EnsembleResult) -> tuple[float, str] | None:
    """Return the time of a token of the ensemble as a multiple of the best single model's, and that model's name."""
    best = next((member for member in run.members if member.name == run.best_single_model), None)
    # A multiple of a speed of zero would say nothing.
    if best is None or not best.tokens_per_second or not run.tokens_per_second:
        return None
    return best.tokens_per_second / run.tokens_per_second, best.name
