"""What the responses took: a row for each candidate, and for the ensemble beside its members."""

from __future__ import annotations

from dataclasses import dataclass

from reports.model import Cost, EnsembleRun, Result


@dataclass(frozen=True, slots=True)
class CostRow:
    """Whose responses, on which split, to how many questions, and what they took."""

    who: str
    together: bool
    split: str
    n: int
    cost: Cost


def cost_rows(result: Result) -> tuple[CostRow, ...]:
    """Return the rows that have at least one number: the ensemble and its members first, then the candidates."""
    run = result.ensemble
    rows = []
    if run is not None:
        rows.append(CostRow(f"{run.method} ensemble", True, run.split, run.n, run.cost))
        rows += [CostRow(member.model, False, run.split, run.n, member.cost) for member in run.members]
    split, n = result.task.split, result.task.n
    rows += [
        CostRow(each.model, False, split, n if each.n is None else each.n, each.cost) for each in result.candidates
    ]
    return tuple(row for row in rows if row.cost != Cost(None, None, None))


def slowdown(run: EnsembleRun | None) -> tuple[float, str] | None:
    """Return how many times as long a token of the ensemble takes as one of the best single model, and its name."""
    if run is None or not run.cost.tokens_per_second:
        return None
    best = next((member for member in run.members if member.model == run.best_single_model), None)
    if best is None or not best.cost.tokens_per_second:
        return None
    return best.cost.tokens_per_second / run.cost.tokens_per_second, best.model
