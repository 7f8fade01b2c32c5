"""The contents of ``evaluation.json``, which ``advisor evaluate`` writes. Accuracies are in points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from advisor.config import RunConfig
from advisor.runs.result_json import corpus_figures
from advisor.records import Profile
from advisor.statistics import accuracy_interval
from advisor.tasks.task import Task
from advisor.jobs.methods import MethodResult

SCHEMA_VERSION = 1


def evaluation_of(
    members: Sequence[Profile],
    methods: Sequence[MethodResult],
    config: RunConfig,
    task: Task,
    provenance: Mapping[str, Any],
) -> dict[str, Any]:
    """The contents of ``evaluation.json``."""
    best = max(members, key=lambda member: round(member.accuracy, 9))
    return {
        "schema_version": SCHEMA_VERSION,
        "task": task.name,
        "metric": task.metric,
        "split": task.split,
        "n": len(task.examples),
        "signature": str(task.signature),
        "k": config.k,
        "weights": config.weights,
        "best_single": best.model,
        "members": [_member(member, task, config.seed) for member in members],
        "methods": [_method(result, task, config.seed) for result in methods],
        "provenance": dict(provenance),
    }


def _member(member: Profile, task: Task, seed: int) -> dict[str, Any]:
    cost, n = member.cost, len(member.answers)
    return {
        "model": member.model,
        "accuracy": member.accuracy,
        "accuracy_ci": list(accuracy_interval(member, seed=seed)),
        **corpus_figures(member, task),
        "mean_length": member.mean_length,
        # All questions may have failed, and then there is no token to divide by.
        "ms_per_token": 1000 * cost.seconds / cost.tokens if cost.tokens else None,
        "seconds": cost.seconds / n,
        "peak_memory": cost.peak_memory,
    }


def _method(result: MethodResult, task: Task, seed: int) -> dict[str, Any]:
    difference, profile = result.difference, result.profile
    return {
        "method": result.method,
        "level": result.level,
        "left_out": result.left_out,
        "note": result.note,
        "accuracy": profile.accuracy if profile else None,
        "accuracy_ci": list(accuracy_interval(profile, seed=seed)) if profile else None,
        **corpus_figures(result.profile, task),
        "delta": difference.estimate if difference else None,
        "delta_ci": list(difference.interval) if difference else None,
        "p_value": difference.p_two_sided if difference else None,
        "p_adjusted": result.p_adjusted,
        "gained": difference.gained if difference else None,
        "lost": difference.lost if difference else None,
        "tokens": result.profile.cost.tokens / len(task.examples) if result.profile else None,
        "ms_per_token": result.ms_per_token,
        "seconds": result.seconds,
        "share_ensembled": result.ensembled,
        "handled_per_step": result.handled,
        "peak_memory": result.peak_memory,
    }
