"""What is needed to reproduce the result."""

from __future__ import annotations

import json
from typing import Any

from advisor.run.result import ModelSource, Provenance
from ensemble.common import text
from ensemble.models.spec import OWN_SETTINGS
from reports.report_data import ReportData
from reports.tables import Cell, Column, make_table, words

_MOST_LOGS = 100
_PAPER = """@inproceedings{yao2025determine,
  title = {Determine-Then-Ensemble: Necessity of Top-k Union for Large Language Model Ensembling},
  author = {Yao, Yuxuan and Wu, Han and Liu, Mingyang and Luo, Sichun and Han, Xiongwei and Liu, Jie and Guo, Zhijiang
    and Song, Linqi},
  booktitle = {International Conference on Learning Representations},
  year = {2025}
}"""


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

    def asked(row: tuple[str, ModelSource]) -> Cell:
        own = ((name, getattr(row[1], name)) for name in OWN_SETTINGS)
        return Cell("", notes=tuple(text.visible(f"{name}={value}") for name, value in own if value is not None))

    file_columns = [
        Column("Model", lambda row: Cell(text.visible(row[0])), "name"),
        words("Source", origin),
        Column("Its own prompt and settings", asked, "text"),
        Column("Files, SHA-256", files, "text"),
    ]
    return {
        "finding": "What is needed to get this result again",
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
