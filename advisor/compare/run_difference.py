"""Two runs against each other: what ``advisor report A B --diff`` shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from advisor.compare.paired import MARGIN, compare_pairs
from advisor.compare.score_table import ScoreTable
from advisor.records import FIGURE_CONFIDENCE, TOLERANCE
from advisor.runs.provenance_facts import facts_of
from advisor.runs.run import Run
from advisor.runs.schema.result import Result, StrategyFigures
from advisor.runs.schema.samples import RIGHT, RecommendedAnswer, Sample, SampleResponse
from advisor.strategies.strategy import Strategy
from ensemble.common import text
from ensemble.errors import InputError

MOST_EXAMPLES = 25
"""Of the questions that were fixed, and of those that were broken; the others are counted."""
_LONGEST_TEXT = 4000
_MOST_SETTINGS = 60
_Key = tuple[str, str, tuple[str, ...]]
"""What identifies a question: its id, its prompt and its references."""
_Answers = dict[_Key, dict[str, Any]]


def run_difference(a: Run, b: Run) -> dict[str, Any]:
    """Compare what two runs recommend, on the held-out questions that both have.

    Args:
        a: The run that is the baseline.
        b: The run that is compared with it.

    Returns:
        ``runs`` (what each recommends, and its figures), ``pair`` (the difference of the recommended strategies as in
        ``advisor compare --json``, ``b`` minus ``a``, in points), ``fixed`` and ``broken`` (questions that only ``b``,
        or only ``a``, scores more on), ``candidates``, ``strategies`` and ``settings`` (each with a value for each
        run), and ``notes``.

    Raises:
        InputError: A run cannot be read or recommends nothing, the scores are different ones, or no held-out question
            is in both.
    """
    runs = (a, b)
    results = [run.result for run in runs]
    chosen = [_recommended(run) for run in runs]
    answers = [_answers(run, each) for run, each in zip(runs, chosen, strict=True)]
    names = [text.visible(str(run.folder)) for run in runs]
    metrics = [result.task.metric for result in results]
    if metrics[0] != metrics[1]:
        raise InputError(
            f"{names[0]} is scored by {metrics[0]} and {names[1]} by {metrics[1]}; give two runs with the same score"
        )
    # As in `advisor compare`: an equal id alone can be another question.
    common = [key for key in answers[0] if key in answers[1]]
    if not common:
        raise InputError(_no_common(names, results, answers))
    scores = np.array([[answer[key]["score"] for answer in answers] for key in common])
    table = ScoreTable(
        task=results[1].task.name,
        metric=metrics[1],
        models=("A", "B"),
        scores=scores,
        groups=(None,) * len(common),
        clusters=_clusters(common, answers[1]),
        notes=(),
    )
    (pair,) = compare_pairs(table).pairs
    changes = scores[:, 1] - scores[:, 0]
    return {
        "task": results[1].task.name,
        "metric": metrics[1],
        "n": len(common),
        "confidence": FIGURE_CONFIDENCE,
        "runs": [
            {
                "path": names[n],
                "label": "AB"[n],
                **_run(results[n], chosen[n]),
                "points": 100 * float(scores[:, n].mean()),
            }
            for n in (0, 1)
        ],
        "same_decision": chosen[0].key == chosen[1].key,
        "pair": pair.as_dict(MARGIN),
        "fixed": _examples(common, answers, changes > TOLERANCE),
        "broken": _examples(common, answers, changes < -TOLERANCE),
        "candidates": _candidates(results),
        "strategies": _strategies(results, [each.key for each in chosen]),
        "settings": _settings(results),
        "notes": list(_notes(results, answers, len(common))),
    }


def _recommended(run: Run) -> StrategyFigures:
    recommended = run.result.recommended
    if recommended is None:
        raise InputError(
            f"{run.folder}: this run recommends nothing, because no strategy was compared on held-out questions; run "
            "`advisor select` without --no-verify"
        )
    return recommended


def _answers(run: Run, strategy: StrategyFigures) -> _Answers:
    """The response of the recommended strategy to each held-out question that it has a score for."""
    found = {}
    for sample in run.samples():
        if sample.split == "held_out" and (answer := _answer(sample, strategy)) is not None:
            found[sample.id, sample.prompt, sample.reference] = answer
    return found


def _clusters(common: list[_Key], answers: _Answers) -> tuple[str, ...] | None:
    """The cluster of each question, itself where it has none; None if no questions share anything."""
    named = [answers[key]["cluster"] for key in common]
    if not any(named):
        return None
    return tuple(name or f"question {number}" for number, name in enumerate(named))


def _answer(sample: Sample, strategy: StrategyFigures) -> dict[str, Any] | None:
    """The response of a strategy to a question; None without a score."""
    taken = sample.recommended
    response: SampleResponse | None
    scored: SampleResponse | RecommendedAnswer | None
    if strategy.is_decoded:
        response = scored = sample.ensemble
    elif strategy.is_single:
        response = scored = sample.responses.get(strategy.members[0])
    else:
        scored = taken
        # Of several responses of one model the file has only the first.
        response = None if taken is None or taken.draw else sample.responses.get(taken.model or "")
    if scored is None or scored.score is None:
        return None
    return {
        "score": scored.score,
        "right": scored.score >= RIGHT,
        "cluster": sample.cluster,
        "candidate": None,
        "text": text.shortened(response.text or "", _LONGEST_TEXT) if response is not None else None,
        "extracted": None if scored.extracted is None else scored.extracted[:200],
        "length": None if response is None else response.length,
        "thinking_tokens": response.tokens if response is not None and response.thought else None,
        "finish_reason": (response.finish_reason or "") if response is not None else "",
        "error": (response.error or "")[:400] if response is not None else "",
    }


def _no_common(names: list[str], results: list[Result], answers: list[_Answers]) -> str:
    tasks = [result.task.name for result in results]
    counts = ", ".join(f"{name} ({len(each):,})" for name, each in zip(names, answers, strict=True))
    shared = len(set.intersection(*({key[0] for key in each} for each in answers)))
    why = f"; the tasks are {tasks[0]} and {tasks[1]}" if tasks[0] != tasks[1] else ""
    if not why and shared:
        why = f"; {text.counted(shared, 'id')} are in both, with other prompts or references"
    return f"no held-out question is in both runs: {counts}{why}; give two runs on the same questions"


def _run(result: Result, strategy: StrategyFigures) -> dict[str, Any]:
    """What a run recommends, with the figures that its report has."""
    recommended = result.advice.recommendation
    # One model is what gains are measured against, so it has none.
    gain = None if recommended is None or strategy.is_single else recommended
    return {
        "strategy": strategy.title,
        "members": list(strategy.members),
        "text": recommended.text if recommended else "",
        "expected_gain": gain and gain.expected_gain,
        "expected_gain_ci": gain and gain.expected_gain_ci,
        "shown": gain and gain.shown,
        "calls_per_question": strategy.calls_per_question,
        "seconds_per_question": strategy.seconds_per_question,
        "price_per_1000": strategy.price_per_1000,
        "best_single_model": result.best_single.model if result.best_single else None,
    }


def _examples(common: list[_Key], answers: list[_Answers], changed: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    """The first questions among the changed ones, with both responses."""
    # A reader looks at few, and the page keeps a size that can be sent.
    rows = [row for row, is_changed in enumerate(changed) if is_changed][:MOST_EXAMPLES]
    return [
        {
            "id": common[row][0],
            # The question is at the end of a prompt with worked examples.
            "prompt": common[row][1][-_LONGEST_TEXT:],
            "question": text.shortened(" ".join(common[row][1].split("\n\n")[-1].split()), 160),
            "reference": [text.shortened(each, _LONGEST_TEXT) for each in common[row][2][:20]],
            "responses": [each[common[row]] for each in answers],
        }
        for row in rows
    ]


def _candidates(results: list[Result]) -> list[dict[str, Any]]:
    """Each model of either run with its accuracy on the dev questions and its status, in the order of the second."""
    # The newer run first: its order is the one that the reader knows.
    rows = [{candidate.model: candidate for candidate in result.candidates} for result in reversed(results)]
    found = []
    for name in dict.fromkeys(name for each in rows for name in each):
        b, a = (each.get(name) for each in rows)
        points = [each.accuracy if each else None for each in (a, b)]
        found.append(
            {
                "model": name,
                "points": points,
                "status": [each.status if each else "absent" for each in (a, b)],
                "difference": None if points[0] is None or points[1] is None else points[1] - points[0],
            }
        )
    return found


def _strategies(results: list[Result], chosen: list[Strategy]) -> list[dict[str, Any]]:
    """Each strategy of either run, in the order of the second."""
    rows = [{row.key: row for row in result.strategies} for result in reversed(results)]
    found = []
    for key in dict.fromkeys(key for each in rows for key in each):
        b, a = (each.get(key) for each in rows)
        found.append(
            {
                "strategy": str(key),
                "members": ", ".join(key.members),
                "points": [each.accuracy if each else None for each in (a, b)],
                "expected": [each.expected_gain if each else None for each in (a, b)],
                "recommended": [key == each for each in chosen],
            }
        )
    return found


def _settings(results: list[Result]) -> list[dict[str, Any]]:
    """The settings, versions and model files in which the runs differ."""
    a, b = (dict(_facts(result)) for result in results)
    names = [name for name in dict.fromkeys((*a, *b)) if a.get(name) != b.get(name)]
    return [{"name": name, "values": [a.get(name), b.get(name)]} for name in names[:_MOST_SETTINGS]]


def _facts(result: Result) -> Iterator[tuple[str, str]]:
    rules, provenance = result.rules, result.provenance
    yield "command", provenance.command or ""
    yield "dev questions", f"{result.task.n:,}"
    yield "held-out questions", f"{result.held_out:,}"
    yield (
        "limits of the rules",
        f"{rules.max_gap:g} points, ratio {rules.max_length_ratio:g}, {rules.max_models} models",
    )
    yield from facts_of(provenance)
    yield from ((f"version of {name}", value) for name, value in provenance.versions.items())
    for name, model in provenance.models.items():
        # The first digits tell two files apart, and a model has dozens of files.
        hashes = ", ".join(sorted(digest[:12] for digest in model.files.values()))
        source = (text.visible(each) for each in (model.path_or_id or "", model.revision or "", hashes) if each)
        yield f"files of {text.visible(name)}", " ".join(source)[:300]


def _notes(results: list[Result], answers: list[_Answers], common: int) -> Iterator[str]:
    for label, each in zip(("A", "B"), answers, strict=True):
        if left_out := len(each) - common:
            yield f"{text.counted(left_out, 'held-out question')} of run {label} are not in the other run; left out"
    first, second = (result.task.name for result in results)
    if first != second:
        yield f"the tasks have different names: {first} and {second}"
    yield "each run chose its strategy with the help of these questions, so both accuracies are a little too high"
