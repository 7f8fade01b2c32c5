"""Scores of lm-eval: its filters and its ``process_results`` score a response, so the numbers are equal to its own."""

from __future__ import annotations

import logging
import math
import string
from collections.abc import Mapping
from typing import Any

from advisor.tasks.lm_eval_tasks.questions import Doc
from advisor.tasks.task import Example, Score
from ensemble.errors import InputError

_LOG = logging.getLogger(__name__)
_NO_MATCH = "[invalid]"  # the result of lm-eval's regular expressions if they match nothing


def choose_metric(name: str, task: Any, wanted: str) -> tuple[str, str]:
    """Choose the metric and the filter; lm-eval writes them as ``metric,filter``.

    Args:
        name: The task's name, for messages.
        task: lm-eval's task.
        wanted: A metric, a filter, or both with a comma between; if it is empty, the first that can be used.

    Raises:
        InputError: The task has no such metric, or its metrics do not give each question a score between 0 and 1.
    """
    metrics, filters = list(task.aggregation()), [pipeline.name for pipeline in task._filters]
    parts = [part.strip() for part in wanted.split(",") if part.strip()]
    for part in parts:
        if part not in (*metrics, *filters):
            raise InputError(
                f"lm_eval:{name} has neither a metric nor a filter '{part}'; metrics: {', '.join(metrics)}; filters: "
                f"{', '.join(filters)}"
            )
    chosen = next((part for part in parts if part in filters), filters[0])
    problems = {metric: _problem(task, metric, chosen) for metric in metrics}
    for metric in [part for part in parts if part in metrics] or metrics:
        if problems[metric] is None:
            return metric, chosen
        if metric in parts:
            raise InputError(f"lm_eval:{name}: its metric {metric} {problems[metric]}; choose another")
    reasons = "; ".join(f"{metric} {problem}" for metric, problem in problems.items())
    raise InputError(f"lm_eval:{name} has no metric that can be used: {reasons}")


def score_text(
    task: Any, docs: Mapping[str, Doc], metric: str, filter_name: str, example: Example, response: str
) -> Score:
    """Score a written response. A response on which the code of lm-eval or of the task fails is wrong.

    Args:
        task: lm-eval's task.
        docs: Its records by the ids of the examples.
        metric: lm-eval's metric.
        filter_name: lm-eval's filter.
        example: The question.
        response: The text that the model wrote.
    """
    try:
        value, filtered = _value(task, docs[example.id], response, metric, filter_name)
    except Exception as error:  # noqa: BLE001  # metrics of a task may be any code
        _LOG.debug("%s cannot be scored", example.id, exc_info=error)
        return Score(0.0, None)
    if isinstance(filtered, list):
        filtered = filtered[0] if filtered else None
    extracted = None if filtered is None or filtered == _NO_MATCH else str(filtered)
    # lm-eval's mean of a NaN would be NaN for the whole task.
    return Score(0.0 if math.isnan(value) else min(1.0, max(0.0, value)), extracted)


def score_choice(task: Any, docs: Mapping[str, Doc], example: Example, response: str) -> Score:
    """Score the option that is the likeliest: 1 if lm-eval counts it as right, else 0; the answer is its letter.

    Args:
        task: lm-eval's task.
        docs: Its records by the ids of the examples.
        example: The question.
        response: The text of one of its options.
    """
    if response not in example.choices:
        return Score(0.0, None)
    best = example.choices.index(response)
    # lm-eval's code wants all likelihoods. Any numbers that make the same option the likeliest give the same `acc`.
    likelihoods = [(0.0 if place == best else -1.0, False) for place in range(len(example.choices))]
    if "acc_mutual_info" in task.aggregation():
        likelihoods += [(0.0, False)] * len(example.choices)
    import numpy as np

    try:
        # It also divides by the options' lengths, which may be 0.
        with np.errstate(all="ignore"):
            value = task.process_results(docs[example.id], likelihoods)["acc"]
    except Exception as error:  # noqa: BLE001  # as in score_text
        _LOG.debug("%s cannot be scored", example.id, exc_info=error)
        return Score(0.0, None)
    letters = string.ascii_uppercase
    return Score(float(value), letters[best] if best < len(letters) else str(best + 1))


def _problem(task: Any, metric: str, filter_name: str) -> str | None:
    """Why a metric cannot be used, as the end of a sentence; None if it can."""
    from lm_eval.api.metrics import mean

    if task.aggregation()[metric] is not mean:
        return "is a score of all questions together, but a score for each question is needed"
    if not task.higher_is_better().get(metric, True):
        return "is better if it is lower"
    if task.OUTPUT_TYPE == "multiple_choice":
        return None if metric == "acc" else "needs more than the likeliest option"
    doc = task.eval_docs[0]
    # Two responses show whether the metric works at all: one without an answer, and the right one.
    for response in ("", _gold(task, doc)):
        try:
            value = _value(task, doc, response, metric, filter_name)[0]
        except Exception as error:  # noqa: BLE001  # of lm-eval's and of a task's own code
            return f"cannot score a response ({' '.join(str(error).split())})"
        if not 0 <= value <= 1:
            return "is not between 0 and 1"
    return None


def _gold(task: Any, doc: Doc) -> str:
    target = task.doc_to_target(doc)
    if task.config.doc_to_choice is not None and isinstance(target, int):
        target = task.doc_to_choice(doc)[target]
    return str(target[0] if isinstance(target, list) and target else target)


def _value(task: Any, doc: Doc, response: str, metric: str, filter_name: str) -> tuple[float, Any]:
    """The score, and the text that the filters leave of the response."""
    from lm_eval.api.instance import Instance

    instance = Instance("generate_until", doc, ("", {}), 0, (task.task_name, 0, 1), [response])
    next(pipeline for pipeline in task._filters if pipeline.name == filter_name).apply([instance])
    filtered = instance.filtered_resps[filter_name]
    return float(task.process_results(doc, [filtered])[metric]), filtered
