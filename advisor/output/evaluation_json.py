"""``evaluation.json``: the one definition of what ``advisor evaluate`` writes. Accuracies are in points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.config import RunConfig
from advisor.profile.profiler import Profiled
from advisor.tasks.task import Task
from advisor.verify.methods import Entry, Evaluation

SCHEMA_VERSION = 1


def evaluation_of(evaluation: Evaluation, plan: RunConfig, task: Task, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of ``evaluation.json``."""
    pairs = zip(evaluation.members, evaluation.intervals, strict=True)
    best = max(evaluation.members, key=lambda one: round(one.profile.accuracy, 9))
    return {
        "schema_version": SCHEMA_VERSION,
        "task": task.name,
        "metric": task.metric,
        "split": task.split,
        "n": len(task.examples),
        "signature": str(task.signature),
        "k": plan.decoding.k,
        "best_single": best.profile.model,
        "members": [_member(one, interval) for one, interval in pairs],
        "methods": [_entry(entry) for entry in evaluation.entries],
        "provenance": dict(provenance),
    }


def _member(one: Profiled, interval: tuple[float, float]) -> dict[str, Any]:
    cost, n = one.cost, len(one.profile.answers)
    return {
        "model": one.profile.model,
        "accuracy": one.profile.accuracy,
        "accuracy_ci": list(interval),
        "mean_length": one.profile.mean_length,
        "ms_per_token": 1000 * cost.seconds / cost.tokens if cost.tokens else None,
        "seconds": cost.seconds / n,
        "peak_memory": cost.peak_memory,
    }


def _entry(entry: Entry) -> dict[str, Any]:
    found = entry.comparison
    return {
        "method": entry.method,
        "level": entry.level,
        "left_out": entry.left_out,
        "accuracy": found.accuracy if found else None,
        "accuracy_ci": list(found.accuracy_ci) if found else None,
        "delta": found.delta if found else None,
        "delta_ci": list(found.delta_ci) if found else None,
        "p_value": found.p_value if found else None,
        "p_adjusted": entry.p_adjusted,
        "gained": found.gained if found else None,
        "lost": found.lost if found else None,
        "ms_per_token": entry.ms_per_token,
        "seconds": entry.seconds,
        "share_ensembled": entry.ensembled,
        "handled_per_step": entry.handled,
        "peak_memory": entry.peak_memory,
    }
