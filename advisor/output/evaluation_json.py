"""The contents of ``evaluation.json``, which ``advisor evaluate`` writes. Accuracies are in points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.config import RunConfig
from advisor.profile.profiler import Profiled
from advisor.tasks.task import Task
from advisor.verify.methods import Entry, Evaluation

SCHEMA_VERSION = 1


def evaluation_of(
    evaluation: Evaluation, config: RunConfig, task: Task, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """The contents of ``evaluation.json``."""
    pairs = zip(evaluation.members, evaluation.intervals, strict=True)
    # Rounded, so that a last digit of the mean does not decide between equal accuracies.
    best = max(evaluation.members, key=lambda member: round(member.profile.accuracy, 9))
    return {
        "schema_version": SCHEMA_VERSION,
        "task": task.name,
        "metric": task.metric,
        "split": task.split,
        "n": len(task.examples),
        "signature": str(task.signature),
        "k": config.decoding.k,
        "best_single": best.profile.model,
        "members": [_member(member, interval) for member, interval in pairs],
        "methods": [_entry(entry) for entry in evaluation.entries],
        "provenance": dict(provenance),
    }


def _member(member: Profiled, interval: tuple[float, float]) -> dict[str, Any]:
    cost, n = member.cost, len(member.profile.answers)
    return {
        "model": member.profile.model,
        "accuracy": member.profile.accuracy,
        "accuracy_ci": list(interval),
        "mean_length": member.profile.mean_length,
        "ms_per_token": 1000 * cost.seconds / cost.tokens if cost.tokens else None,
        "seconds": cost.seconds / n,
        "peak_memory": cost.peak_memory,
    }


def _entry(entry: Entry) -> dict[str, Any]:
    comparison = entry.comparison
    return {
        "method": entry.method,
        "level": entry.level,
        "left_out": entry.left_out,
        "accuracy": comparison.accuracy if comparison else None,
        "accuracy_ci": list(comparison.accuracy_ci) if comparison else None,
        "delta": comparison.delta if comparison else None,
        "delta_ci": list(comparison.delta_ci) if comparison else None,
        "p_value": comparison.p_value if comparison else None,
        "p_adjusted": entry.p_adjusted,
        "gained": comparison.gained if comparison else None,
        "lost": comparison.lost if comparison else None,
        "ms_per_token": entry.ms_per_token,
        "seconds": entry.seconds,
        "share_ensembled": entry.ensembled,
        "handled_per_step": entry.handled,
        "peak_memory": entry.peak_memory,
    }
