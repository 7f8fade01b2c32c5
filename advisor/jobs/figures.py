"""The figures of models' answers in ``result.json`` and ``evaluation.json``. Accuracies are in points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from advisor.advice.doubts import answer_shares, doubts_of, enough_tokens, finished_accuracy
from advisor.advice.verdict import CloseCall
from advisor.records import Profile, Selection
from advisor.run.figures import GroupAccuracy
from advisor.run.result import CandidateFigures, SingleModel, TaskInfo
from advisor.statistics import Interval, accuracy_interval
from advisor.strategies.replay import Spent
from advisor.tasks.task import Task
from ensemble.models.spec import Price

_MOST_INTERVALS = 100


def task_info(task: Task, max_new_tokens: int | None) -> TaskInfo:
    """``task`` of ``result.json``; without a limit of tokens for responses of logs."""
    return TaskInfo(
        name=task.name,
        metric=task.metric,
        split=task.split,
        n=len(task.examples),
        fingerprint=task.fingerprint,
        signature=str(task.signature),
        shots=task.signature.shots,
        seed=task.signature.seed,
        prompt=task.signature.prompt,
        stop=task.stop,
        max_new_tokens=max_new_tokens,
        extract=task.extract,
        template=task.template,
        notes=task.notes,
    )


def candidate_figures(
    selection: Selection,
    task: Task,
    profiles: Sequence[Profile],
    failures: Mapping[str, str],
    *,
    intervals: Mapping[str, Interval] = MappingProxyType({}),
    calls: Mapping[str, CloseCall] = MappingProxyType({}),
    lost: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> tuple[CandidateFigures, ...]:
    """``candidates`` of ``result.json``, those that failed last.

    The profiles include those of copies. All mappings are by name; `lost` counts for models of logs the scores that are
    ``unread``, and the responses that are ``missing`` or ``failed``.
    """
    answers = {profile.model: profile for profile in profiles}
    shares = answer_shares(profiles, task)
    any_thinks = any(profile.thinks for profile in profiles)
    candidates = []
    for decision in selection.decisions:
        profile, call = answers[decision.model], calls.get(decision.model)
        figures = measured(profile, task)
        if profile.truncated:
            figures |= {"finished_accuracy": finished_accuracy(profile), "enough_tokens": enough_tokens(profile)}
        if call is not None:
            figures |= {"close_call": call.text, "gap_ci": call.gap_ci, "length_ratio_ci": call.length_ratio_ci}
        candidates.append(
            CandidateFigures(
                **asdict(decision),
                accuracy_ci=intervals.get(decision.model),
                n=len(profile.answers),
                thinks=profile.thinks,
                mean_tokens=profile.mean_tokens if any_thinks else None,
                answered=shares.get(decision.model),
                doubts=doubts_of(profile),
                **figures,
                **lost.get(decision.model, {}),
            )
        )
    failed = [
        CandidateFigures(model=model, status="failed", reason_code="failed", reason=reason)
        for model, reason in failures.items()
    ]
    return *candidates, *failed


def measured(profile: Profile, task: Task) -> dict[str, Any]:
    """The figures of the responses of a model or a set, as :class:`advisor.run.figures.Measured` has them."""
    groups = group_accuracies(profile) or {}
    figures: dict[str, Any] = {
        "accuracy": profile.accuracy,
        "mean_length": profile.mean_length,
        "truncated": profile.truncated,
        "errors": profile.errors,
        **profile.no_answer,
        "accuracy_bytes": accuracy_by_bytes(profile, task),
        # ``accuracy`` is the mean over the questions (micro average); this is the mean over the groups (macro average).
        "accuracy_macro": sum(part.accuracy or 0.0 for part in groups.values()) / len(groups) if groups else None,
        **corpus_figures(profile, task),
        "groups": groups or None,
    }
    cost, (typical, slow) = profile.cost, profile.request_seconds or (None, None)
    # Without a response, because all questions failed, no speed follows.
    if cost.seconds == 0:
        return figures
    return {
        **figures,
        "seconds_median": typical,
        "seconds_p95": slow,
        "seconds_total": cost.seconds,
        "tokens_per_second": cost.tokens / cost.seconds,
        "peak_memory": cost.peak_memory,
    }


def corpus_figures(profile: Profile | None, task: Task) -> dict[str, Any]:
    """The score of all responses together and its interval, in points; nulls for tasks without one."""
    texts = {answer.id: answer.text for answer in profile.answers} if profile else {}
    score, interval = (task.corpus_score(texts) if texts else None) or (None, None)
    return {"corpus_score": score, "corpus_score_ci": interval}


def group_accuracies(profile: Profile) -> dict[str, GroupAccuracy] | None:
    """The accuracy in each group of the questions; None for one group, which is the whole task."""
    parts = profile.groups
    if len(parts) < 2:
        return None
    # With thousands of groups, intervals would take longer than the rest of the file, and each has a few questions.
    known = len(parts) <= _MOST_INTERVALS
    return {
        name: GroupAccuracy(
            n=len(part.answers), accuracy=part.accuracy, accuracy_ci=accuracy_interval(part) if known else None
        )
        for name, part in parts.items()
    }


def single_model(profile: Profile, dev: Profile | None, price: Price | None) -> SingleModel:
    """A single model on the held-out questions; seconds and price are null if they are not known."""
    every = profile if dev is None else replace(profile, answers=(*dev.answers, *profile.answers))
    n = len(profile.answers)
    spent = Spent.of([(profile, None)])
    dollars = spent.price(price)
    return SingleModel(
        model=profile.model,
        n=n,
        accuracy=profile.accuracy,
        groups=group_accuracies(every),
        seconds_per_question=None if spent.seconds is None else spent.seconds / n,
        price_per_1000=None if dollars is None else 1000 * dollars / n,
    )


def chance_of(task: Task) -> float | None:
    """The expected accuracy of guessing on a choice task, in points; None for other tasks."""
    if task.metric != "choice":
        return None
    return 100 * float(np.mean([1 / len(example.choices) for example in task.examples]))


def accuracy_by_bytes(profile: Profile, task: Task) -> float | None:
    """Accuracy in points by log-probabilities divided by bytes, ``acc_bytes`` of lm-eval; None without likelihoods."""
    # Letters all have one byte.
    if task.scoring == "letters" or not any(answer.options for answer in profile.answers):
        return None
    examples = {example.id: example for example in task.examples}
    values = []
    for answer in profile.answers:
        if answer.options:
            example = examples[answer.id]
            lengths = [len(choice.encode()) for choice in example.choices]
            # The lowest index wins a tie, as in lm-eval.
            # JSON has no infinity, so the cache stores an impossible option as null.
            likelihoods = [-math.inf if value is None else value for value in answer.options]
            best = int(np.argmax(np.array(likelihoods) / lengths))
            values.append(task.score(example, example.choices[best]).value)
    # By all answers: a question without likelihoods counts as wrong, as it does in the accuracy beside this figure.
    return 100 * sum(values) / len(profile.answers)
