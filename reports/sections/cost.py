"""Cost: time, speed and memory for the responses of the ensemble, its members and the candidates."""

from __future__ import annotations

from typing import Any

from advisor.runs.read.result import EnsembleRun, Result


def values(result: Result) -> dict[str, Any] | None:
    """Return the template's values; None if no cost is known."""
    run = result.ensemble
    rows = [(run.split, each, each is run) for each in (run, *run.members)] if run else []
    rows += [(result.split, each, False) for each in result.candidates]
    # Responses of another tool have no cost.
    rows = [row for row in rows if row[1].has_cost]
    if not rows:
        return None
    return {
        "rows": rows,
        "known_memory": any(measured.peak_memory is not None for _, measured, _ in rows),
        "slowdown": _slowdown(run) if run else None,
    }


def _slowdown(run: EnsembleRun) -> tuple[float, str] | None:
    """Return the time of a token of the ensemble as a multiple of the best single model's, and that model's name."""
    best = next((member for member in run.members if member.name == run.best_single_model), None)
    # A multiple of a speed of zero would say nothing.
    if best is None or not best.tokens_per_second or not run.tokens_per_second:
        return None
    return best.tokens_per_second / run.tokens_per_second, best.name
