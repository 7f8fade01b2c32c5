"""Provenance: what is needed to reproduce the result."""

from __future__ import annotations

import json
from typing import Any

from advisor.runs.schema.result import Provenance
from ensemble.common.text import visible
from reports.report_data import ReportData

_PAPER = """@inproceedings{yao2025determine,
  title = {Determine-Then-Ensemble: Necessity of Top-k Union for Large Language Model Ensembling},
  author = {Yao, Yuxuan and Wu, Han and Liu, Mingyang and Luo, Sichun and Han, Xiongwei and Liu, Jie and Guo, Zhijiang
    and Song, Linqi},
  booktitle = {International Conference on Learning Representations},
  year = {2025}
}"""


def values(report: ReportData) -> dict[str, Any]:
    """Return the template's values."""
    provenance = report.result.provenance
    version = provenance.versions.get("unite-advisor", "unknown")
    software = f"@software{{unite_advisor,\n  title = {{unite-advisor}},\n  version = {{{version}}}\n}}"
    return {
        "citation": f"{_PAPER}\n\n{software}",
        "facts": _facts(provenance),
        "models": [
            (
                visible(name),
                visible(model.path_or_id or ""),
                visible(model.revision or ""),
                [(visible(file), visible(digest)) for file, digest in model.files.items()],
            )
            for name, model in provenance.models.items()
        ],
    }


def _facts(provenance: Provenance) -> list[tuple[str, str]]:
    """The single values with their names, without the command and the date, which stand elsewhere."""
    return [
        (visible(name), visible(value if isinstance(value, str) else json.dumps(value)))
        for name, value in provenance
        if name in provenance.model_fields_set
        and name not in ("command", "date")
        and value is not None
        and isinstance(value, str | int | float)
    ]
