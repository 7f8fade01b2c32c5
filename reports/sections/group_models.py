"""Groups and models: the accuracy of each model in each group of questions."""

from __future__ import annotations

from typing import Any

from advisor.runs.schema.figures import GroupAccuracy
from advisor.runs.schema.result import CandidateFigures
from reports.report_data import ReportData

_MOST_GROUPS, _MOST_MODELS = 40, 40
_SHADES = 9
# With fewer questions an interval is at least 40 points wide for most accuracies.
FEW = 20


def values(report: ReportData) -> dict[str, Any] | None:
    """Return the template's values; None if the questions have no groups."""
    result = report.result
    models = [candidate for candidate in result.candidates if candidate.groups]
    # All questions where all models answered them: figures on other questions would not be comparable.
    every = {each.model: each.groups for each in result.single_models if each.groups}
    has_all = bool(models) and all(candidate.name in every for candidate in models)
    groups_of = {each.name: (every[each.name] if has_all else each.groups) or {} for each in models}
    sizes: dict[str, int] = {}
    for own in groups_of.values():
        for name, group in own.items():
            sizes[name] = max(sizes.get(name, 0), group.n)
    if not sizes:
        return None
    shown = models[:_MOST_MODELS]
    # Of many groups the largest tell the most.
    names = sorted(sorted(sizes, key=lambda group: -sizes[group])[:_MOST_GROUPS])
    by_model = [(candidate, groups_of[candidate.name]) for candidate in shown]
    accuracies = [each.accuracy for _, own in by_model for each in own.values() if each.accuracy is not None]
    low, high = min(accuracies, default=0.0), max(accuracies, default=0.0)

    def shade(accuracy: float) -> int:
        return min(int(_SHADES * (accuracy - low) / (high - low or 1.0)), _SHADES - 1)

    def cell(
        candidate: CandidateFigures, group: GroupAccuracy | None
    ) -> tuple[CandidateFigures, GroupAccuracy | None, int]:
        return candidate, group, 0 if group is None or group.accuracy is None else shade(group.accuracy)

    return {
        "models": shown,
        "rows": [
            (name, sizes[name], [cell(candidate, own.get(name)) for candidate, own in by_model]) for name in names
        ],
        "total": len(sizes),
        "left_out": len(models) - len(shown),
        "has_all": has_all,
        "few": FEW,
        "has_few": any(sizes[name] < FEW for name in names),
        "has_intervals": any(each.accuracy_ci for _, own in by_model for each in own.values()),
    }
