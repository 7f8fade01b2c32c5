"""The contents of ``evaluation.json``, which ``advisor evaluate`` writes. Accuracies are in points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from advisor.config import RunConfig
from advisor.jobs.methods import MethodResult
from advisor.jobs.result_json import corpus_figures
from advisor.records import Profile
from advisor.runs.schema.evaluation import EvaluatedMethod, EvaluatedModel, Evaluation
from advisor.runs.schema.judge import JudgeSection
from advisor.runs.schema.measured import SCHEMA_VERSION
from advisor.runs.schema.result import Provenance
from advisor.statistics import accuracy_interval
from advisor.tasks.task import Task


def evaluation_of(
    members: Sequence[Profile],
    methods: Sequence[MethodResult],
    config: RunConfig,
    task: Task,
    provenance: Mapping[str, Any],
    judge: Mapping[str, Any] | None = None,
) -> Evaluation:
    """The contents of ``evaluation.json``."""
    best = max(members, key=lambda member: round(member.accuracy, 9))
    return Evaluation(
        schema_version=SCHEMA_VERSION,
        task=task.name,
        metric=task.metric,
        split=task.split,
        n=len(task.examples),
        signature=str(task.signature),
        k=config.k,
        weights=config.weights,
        think=config.think,
        best_single_model=best.model,
        members=tuple(_member(member, task, config.seed) for member in members),
        methods=tuple(_method(result, task, config.seed) for result in methods),
        judge=None if judge is None else JudgeSection.model_validate(judge),
        provenance=Provenance(**provenance),
    )


def _member(member: Profile, task: Task, seed: int) -> EvaluatedModel:
    cost, n = member.cost, len(member.answers)
    return EvaluatedModel(
        model=member.model,
        accuracy=member.accuracy,
        accuracy_ci=accuracy_interval(member, seed=seed),
        **corpus_figures(member, task),
        mean_length=member.mean_length,
        # All questions may have failed, and then there is no token to divide by.
        ms_per_token=1000 * cost.seconds / cost.tokens if cost.tokens else None,
        seconds_per_question=cost.seconds / n,
        peak_memory=cost.peak_memory,
    )


def _method(result: MethodResult, task: Task, seed: int) -> EvaluatedMethod:
    difference, profile = result.difference, result.profile
    return EvaluatedMethod(
        method=result.method,
        level=cast(Any, result.level),
        left_out=result.left_out,
        note=result.note,
        accuracy=profile.accuracy if profile else None,
        accuracy_ci=accuracy_interval(profile, seed=seed) if profile else None,
        **corpus_figures(profile, task),
        delta=difference.estimate if difference else None,
        delta_ci=difference.interval if difference else None,
        p_value=difference.p_two_sided if difference else None,
        p_adjusted=result.p_adjusted,
        gained=difference.gained if difference else None,
        lost=difference.lost if difference else None,
        tokens_per_question=None if result.tokens is None else result.tokens / len(task.examples),
        ms_per_token=result.ms_per_token,
        seconds_per_question=result.seconds,
        share_ensembled=result.ensembled,
        handled_per_step=result.handled,
        peak_memory=result.peak_memory,
    )
