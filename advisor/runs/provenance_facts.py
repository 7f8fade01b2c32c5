"""What ``provenance`` says in single values, as text: the device, the seed and the like."""

from __future__ import annotations

import json

from advisor.runs.schema.result import Provenance
from ensemble.common.text import visible


def facts_of(provenance: Provenance) -> list[tuple[str, str]]:
    """Names and values; without the command and the date, which stand elsewhere, and without objects and lists."""
    return [
        (visible(name), visible(value if isinstance(value, str) else json.dumps(value)))
        for name, value in provenance
        if name in provenance.model_fields_set
        and name not in ("command", "date")
        and value is not None
        and isinstance(value, str | int | float)
    ]
