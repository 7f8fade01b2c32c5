"""Provenance: what is needed to reproduce the result."""

from __future__ import annotations

from typing import Any

from advisor.runs.provenance_facts import facts_of
from ensemble.common.text import visible
from reports.report_data import ReportData


def values(report: ReportData) -> dict[str, Any]:
    """Return the template's values."""
    provenance = report.result.provenance
    return {
        "facts": facts_of(provenance),
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
