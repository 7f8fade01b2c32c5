"""Groups and models: the accuracy of each model in each group of questions."""

from __future__ import annotations

from typing import Any

from advisor.runs.read.measurements import Measurements
from advisor.runs.read.result import CandidateRow, Result

_MOST_GROUPS, _MOST_MODELS = 40, 40
_SHADES = 9
# With fewer questions an interval is at least 40 points wide for most accuracies.
FEW = 20


def values(result: Result) -> dict[str, Any] | None:
    """Return the template's values; None if the questions have no groups."""
    models = [candidate for candidate in result.candidates if candidate.groups]
    sizes: dict[str, int] = {}
    for candidate in models:
        for group in candidate.groups:
            # A candidate that left a race answered fewer questions than the others.
            sizes[group.name] = max(sizes.get(group.name, 0), group.n)
    if not sizes:
        return None
    shown = models[:_MOST_MODELS]
    # Of many groups the largest tell the most.
    names = sorted(sorted(sizes, key=lambda name: -sizes[name])[:_MOST_GROUPS])
    by_model = [(candidate, {group.name: group for group in candidate.groups}) for candidate in shown]
    accuracies = [each.accuracy for _, own in by_model for each in own.values() if each.accuracy is not None]
    low, high = min(accuracies, default=0.0), max(accuracies, default=0.0)

    def shade(accuracy: float) -> int:
        return min(int(_SHADES * (accuracy - low) / (high - low or 1.0)), _SHADES - 1)

    def cell(candidate: CandidateRow, group: Measurements | None) -> tuple[CandidateRow, Measurements | None, int]:
        return candidate, group, 0 if group is None or group.accuracy is None else shade(group.accuracy)

    return {
        "models": shown,
        "rows": [
            (name, sizes[name], [cell(candidate, own.get(name)) for candidate, own in by_model]) for name in names
        ],
        "total": len(sizes),
        "left_out": len(models) - len(shown),
        "few": FEW,
        "has_few": any(sizes[name] < FEW for name in names),
        "has_intervals": any(each.accuracy_ci for _, own in by_model for each in own.values()),
    }
