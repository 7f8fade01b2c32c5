"""What the responses took, and what is needed to reproduce the result."""

from __future__ import annotations

import json
from typing import Any

from advisor.run.figures import Measured
from advisor.run.result import EnsembleResult, ModelSource, Provenance
from ensemble.common import text
from reports.report_data import ReportData
from reports.tables import Cell, Column, figures, make_table, words

_MOST_LOGS = 100
_PAPER = """@inproceedings{yao2025determine,
  title = {Determine-Then-Ensemble: Necessity of Top-k Union for Large Language Model Ensembling},
  author = {Yao, Yuxuan and Wu, Han and Liu, Mingyang and Luo, Sichun and Han, Xiongwei and Liu, Jie and Guo, Zhijiang
    and Song, Linqi},
  booktitle = {International Conference on Learning Representations},
  year = {2025}
}"""


def cost(report: ReportData) -> dict[str, Any] | None:
    """Return the values of the template of times; None if no cost is known."""
    result = report.result
    run = result.ensemble
    together = (run, *run.members) if run else ()
    # Responses of another tool have no cost.
    rows: list[Measured] = [each for each in (*together, *result.candidates) if each.has_cost]
    if not rows:
        return None

    def questions(each: Any) -> Cell:
        if run and each in together:
            n, split = run.n, run.split
        else:
            n, split = result.task.n if each.n is None else each.n, result.task.split
        return Cell(f"{n:,} {split.replace('_', '-')}", split)

    def request(each: Measured) -> Cell:
        median, slow = each.seconds_median, each.seconds_p95
        return Cell(text.UNKNOWN if median is None else f"{text.duration(median)} ({text.duration(slow)})", median)

    columns = [
        Column("Model", lambda each: Cell(each.name + (" ensemble" if each is run else "")), "name"),
        Column("Questions", questions, "text"),
        figures("seconds_total", "Time", text.seconds),
        Column("Request, median (95%)", request),
        figures("tokens_per_second", "Tokens/s", text.amount),
        figures("peak_memory", "Memory", text.memory),
    ]
    return {
        "table": make_table("Time", rows, columns, lambda each: "together" if each is run else ""),
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


def provenance(report: ReportData) -> dict[str, Any]:
    """Return the values of the template of what repeats the result."""
    source = report.result.provenance
    version = source.versions.get("unite-advisor", "unknown")
    software = f"@software{{unite_advisor,\n  title = {{unite-advisor}},\n  version = {{{version}}}\n}}"
    log_columns = [Column("File", lambda log: Cell(log.path), "name"), words("Format", lambda log: log.format)]

    def origin(row: tuple[str, ModelSource]) -> str:
        revision = f" @{text.visible(row[1].revision)}" if row[1].revision else ""
        return text.visible(row[1].path_or_id or "") + revision

    def files(row: tuple[str, ModelSource]) -> Cell:
        return Cell("", notes=tuple(text.visible(f"{file} {digest}") for file, digest in row[1].files.items()))

    file_columns = [
        Column("Model", lambda row: Cell(text.visible(row[0])), "name"),
        words("Source", origin),
        Column("Files, SHA-256", files, "text"),
    ]
    return {
        "citation": f"{_PAPER}\n\n{software}",
        "facts": _facts(source),
        "logs": make_table("The logs", source.logs[:_MOST_LOGS], log_columns),
        "files": make_table("The models’ files", source.models.items(), file_columns),
    }


def _facts(provenance: Provenance) -> list[tuple[str, str]]:
    """The single values with their names, without the command and the date, which stand elsewhere."""
    return [
        (text.visible(name), text.visible(value if isinstance(value, str) else json.dumps(value)))
        for name, value in provenance
        if name in provenance.model_fields_set
        and name not in ("command", "date")
        and value is not None
        and isinstance(value, str | int | float)
    ]
