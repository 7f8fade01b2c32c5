"""Scores of lm-eval: a response goes through its filters and its ``process_results``, so that they are its own."""

from __future__ import annotations

import logging
import math
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from advisor.tasks.values import Example, Score
from ensemble.errors import InputError

_LOG = logging.getLogger(__name__)
_NONE_FOUND = "[invalid]"
"""What lm-eval's regular expressions give where they match nothing."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One of the numbers that lm-eval gives for a task; it writes it as ``metric,filter``."""

    metric: str
    filter: str

    def __str__(self) -> str:
        return f"{self.metric},{self.filter}"


def choose_measure(name: str, task: Any, wanted: str) -> Measure:
    """The number that is asked for, else the first that can be used.

    Args:
        name: The task's name, for messages.
        task: lm-eval's task.
        wanted: A metric, a filter, both with a comma between, or nothing.

    Raises:
        InputError: There is no such number, or none that is between 0 and 1 for each question.
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
    problems = {metric: _problem(task, Measure(metric, chosen)) for metric in metrics}
    for metric in [part for part in parts if part in metrics] or metrics:
        if problems[metric] is None:
            return Measure(metric, chosen)
        if metric in parts:
            raise InputError(f"lm_eval:{name}: its metric {metric} {problems[metric]}; choose another")
    reasons = "; ".join(f"{metric} {problem}" for metric, problem in problems.items())
    raise InputError(f"lm_eval:{name} has no metric that can be used: {reasons}")


def _problem(task: Any, measure: Measure) -> str | None:
    """Why a number cannot be used, as the end of a sentence; None where it can."""
    from lm_eval.api.metrics import mean

    if task.aggregation()[measure.metric] is not mean:
        return "is of all questions together, and a score for each is needed"
    if not task.higher_is_better().get(measure.metric, True):
        return "is better where it is lower"
    if task.OUTPUT_TYPE == "multiple_choice":
        return None if measure.metric == "acc" else "wants more than the likeliest option"
    doc = task.eval_docs[0]
    for response in ("", _gold(task, doc)):
        try:
            value = _value(task, doc, response, measure)[0]
        except Exception as error:  # noqa: BLE001  # of lm-eval's and of a task's own code
            return f"cannot score a response ({' '.join(str(error).split())})"
        if not 0 <= value <= 1:
            return "is not between 0 and 1"
    return None


def _gold(task: Any, doc: dict[str, Any]) -> str:
    target = task.doc_to_target(doc)
    if task.config.doc_to_choice is not None and isinstance(target, int):
        target = task.doc_to_choice(doc)[target]
    return str(target[0] if isinstance(target, list) and target else target)


def _value(task: Any, doc: dict[str, Any], response: str, measure: Measure) -> tuple[float, Any]:
    """The score, and what the filters left of the response."""
    from lm_eval.api.instance import Instance

    instance = Instance("generate_until", doc, ("", {}), 0, (task.task_name, 0, 1), [response])
    next(pipeline for pipeline in task._filters if pipeline.name == measure.filter).apply([instance])
    filtered = instance.filtered_resps[measure.filter]
    return float(task.process_results(doc, [filtered])[measure.metric]), filtered


class Written:
    """Scores of written responses.

    Args:
        task: lm-eval's task.
        docs: Its records by the ids of the examples.
        measure: The number that is wanted.
    """

    def __init__(self, task: Any, docs: Mapping[str, dict[str, Any]], measure: Measure) -> None:
        self._task, self._docs, self._measure = task, docs, measure

    def score(self, example: Example, response: str) -> Score:
        """Score a response. One on which lm-eval's or the task's code fails is wrong."""
        try:
            value, filtered = _value(self._task, self._docs[example.id], response, self._measure)
        except Exception as error:  # noqa: BLE001  # metrics of a task may be any code
            _LOG.debug("%s cannot be scored", example.id, exc_info=error)
            return Score(0.0, None)
        if isinstance(filtered, list):
            filtered = filtered[0] if filtered else None
        found = filtered is not None and filtered != _NONE_FOUND
        return Score(0.0 if math.isnan(value) else min(1.0, max(0.0, value)), str(filtered) if found else None)


class Likelihood:
    """Scores of options chosen by likelihood: a response is the text of one of them.

    Args:
        task: lm-eval's task.
        docs: Its records by the ids of the examples.
    """

    def __init__(self, task: Any, docs: Mapping[str, dict[str, Any]]) -> None:
        self._task, self._docs = task, docs

    def score(self, example: Example, response: str) -> Score:
        """1 where lm-eval counts the option as right, else 0; what was read is the option's letter."""
        if response not in example.choices:
            return Score(0.0, None)
        best = example.choices.index(response)
        likelihoods = [(0.0 if place == best else -1.0, False) for place in range(len(example.choices))]
        if "acc_mutual_info" in self._task.aggregation():
            likelihoods += [(0.0, False)] * len(example.choices)
        import numpy as np

        try:
            # It also divides by the options' lengths, which may be 0.
            with np.errstate(all="ignore"):
                value = self._task.process_results(self._docs[example.id], likelihoods)["acc"]
        except Exception as error:  # noqa: BLE001  # see Written
            _LOG.debug("%s cannot be scored", example.id, exc_info=error)
            return Score(0.0, None)
        letters = string.ascii_uppercase
        return Score(float(value), letters[best] if best < len(letters) else str(best + 1))
