"""Two runs against each other: what ``advisor report A B --diff`` shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from advisor.compare.paired import MARGIN, compare_pairs
from advisor.compare.score_table import ScoreTable
from advisor.terminal.comparison import pair_json
from advisor.records import FIGURE_ALPHA, FIGURE_CONFIDENCE, TOLERANCE
from ensemble.errors import InputError
from ensemble.common import text
from advisor.runs.read import read_run
from advisor.runs.read.fields import Fields, read_lines
from advisor.runs.read.result import Result
from advisor.runs.read.samples import RIGHT
from advisor.runs.read.strategies import Recommended, StrategyRow

MOST_EXAMPLES = 25
"""Of the questions that were fixed, and of those that were broken; the others are counted."""
_LONGEST_TEXT = 4000
_MOST_SETTINGS = 60
_Key = tuple[str, str, tuple[str, ...]]
"""What identifies a question: its id, its prompt and its references."""
_Answers = dict[_Key, dict[str, Any]]


def run_difference(a: Path, b: Path) -> dict[str, Any]:
    """Compare what two runs recommend, on the held-out questions that both have.

    Args:
        a: The run folder that is the baseline.
        b: The run folder that is compared with it.

    Returns:
        ``runs`` (what each recommends, and its figures), ``pair`` (the difference of the recommended strategies as in
        ``advisor compare --json``, ``b`` minus ``a``, in points), ``fixed`` and ``broken`` (questions that only ``b``,
        or only ``a``, scores more on), ``candidates``, ``strategies`` and ``settings`` (each with a value for each
        run), and ``notes``.

    Raises:
        InputError: A run cannot be read or recommends nothing, the scores are different ones, or no held-out question
            is in both.
    """
    results = [read_run(a), read_run(b)]
    chosen = [_recommended(folder, result) for folder, result in zip((a, b), results, strict=True)]
    answers = [_answers(folder, each.row) for folder, each in zip((a, b), chosen, strict=True)]
    names = [text.visible(str(folder)) for folder in (a, b)]
    if results[0].metric != results[1].metric:
        raise InputError(
            f"{names[0]} is scored by {results[0].metric} and {names[1]} by {results[1].metric}; give two runs with "
            "the same score"
        )
    # As in `advisor compare`: an equal id alone can be another question.
    common = [key for key in answers[0] if key in answers[1]]
    if not common:
        raise InputError(_no_common(names, results, answers))
    scores = np.array([[answer[key]["score"] for answer in answers] for key in common])
    table = ScoreTable(
        task=results[1].task,
        metric=results[1].metric,
        models=("A", "B"),
        scores=scores,
        groups=(None,) * len(common),
        clusters=_clusters(common, answers[1]),
        notes=(),
    )
    (pair,) = compare_pairs(table)
    changes = scores[:, 1] - scores[:, 0]
    return {
        "task": results[1].task,
        "metric": results[1].metric,
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
        "same_decision": _key(chosen[0].row) == _key(chosen[1].row),
        "pair": pair_json(pair, FIGURE_ALPHA, MARGIN),
        "fixed": _examples(common, answers, changes > TOLERANCE),
        "broken": _examples(common, answers, changes < -TOLERANCE),
        "candidates": _candidates(results),
        "strategies": _strategies(results, [_key(each.row) for each in chosen]),
        "settings": _settings(results),
        "notes": list(_notes(results, answers, len(common))),
    }


def _recommended(folder: Path, result: Result) -> Recommended:
    if result.strategies.recommended is None:
        raise InputError(
            f"{folder}: this run recommends nothing, because no strategy was compared on held-out questions; run "
            "`advisor select` without --no-verify"
        )
    return result.strategies.recommended


def _answers(folder: Path, row: StrategyRow) -> _Answers:
    """The response of the recommended strategy to each held-out question that it has a score for."""
    found = {}
    for line in read_lines(folder / "samples.jsonl"):
        if line.line("split") == "held_out" and (answer := _answer(line, row)) is not None:
            key = line.line("id"), line.prose("prompt"), line.texts("reference", keep_lines=True)
            found[key] = answer
    return found


def _clusters(common: list[_Key], answers: _Answers) -> tuple[str, ...] | None:
    """The cluster of each question, itself where it has none; None if no questions share anything."""
    named = [answers[key]["cluster"] for key in common]
    if not any(named):
        return None
    return tuple(name or f"question {number}" for number, name in enumerate(named))


def _answer(line: Fields, row: StrategyRow) -> dict[str, Any] | None:
    """The response of a strategy to the question of a line; None without a score."""
    responses, taken = line.part("responses"), line.optional_part("recommended")
    # The names in result.json are cleaned, and those of the line are not.
    by_name = {text.visible(name): name for name in responses.values}
    if row.is_decoded:
        response = scored = line.optional_part("ensemble")
    elif row.is_single:
        response = scored = responses.part(by_name[row.members[0]]) if row.members[0] in by_name else None
    else:
        scored = taken
        # Of several responses of one model the file has only the first.
        known = taken is not None and not taken.count("draw") and taken.line("model") in by_name
        response = responses.part(by_name[taken.line("model")]) if taken is not None and known else None
    score = None if scored is None else scored.number("score")
    if scored is None or score is None:
        return None
    written = "" if response is None or response.values.get("text") is None else response.prose("text")
    return {
        "score": min(1.0, max(0.0, score)),
        "right": score >= RIGHT,
        "cluster": line.line("cluster"),
        "candidate": None,
        "text": text.shortened(written, _LONGEST_TEXT) if response is not None else None,
        "extracted": None if scored.values.get("extracted") is None else scored.line("extracted")[:200],
        "length": None if response is None else response.optional_count("length"),
        "finish_reason": "" if response is None else response.line("finish_reason"),
        "error": "" if response is None else response.line("error")[:400],
    }


def _no_common(names: list[str], results: list[Result], answers: list[_Answers]) -> str:
    tasks = [result.task for result in results]
    counts = ", ".join(f"{name} ({len(each):,})" for name, each in zip(names, answers, strict=True))
    shared = len(set.intersection(*({key[0] for key in each} for each in answers)))
    why = f"; the tasks are {tasks[0]} and {tasks[1]}" if tasks[0] != tasks[1] else ""
    if not why and shared:
        why = f"; {text.counted(shared, 'id')} are in both, with other prompts or references"
    return f"no held-out question is in both runs: {counts}{why}; give two runs on the same questions"


def _key(row: StrategyRow) -> tuple[str, tuple[str, ...], int]:
    return row.name, row.members, row.draws


def _run(result: Result, recommended: Recommended) -> dict[str, Any]:
    """What a run recommends, with the figures that its report has."""
    row = recommended.row
    # One model is what gains are measured against, so it has none.
    gain = (None, None, None) if row.is_single else (recommended.gain, recommended.gain_ci, recommended.shown)
    return {
        "strategy": text.strategy(*_key(row)),
        "members": list(row.members),
        "text": recommended.text,
        **dict(zip(("gain", "gain_ci", "shown"), gain, strict=True)),
        "calls": row.calls,
        "seconds_each": row.seconds_each,
        "price": row.price,
        "best_single": result.best_single.name if result.best_single else None,
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
    rows = [{candidate.name: candidate for candidate in result.candidates} for result in reversed(results)]
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


def _strategies(results: list[Result], chosen: list[tuple[str, tuple[str, ...], int]]) -> list[dict[str, Any]]:
    """Each strategy of either run, in the order of the second."""
    rows = [{_key(row): row for row in result.strategies.rows} for result in reversed(results)]
    found = []
    for key in dict.fromkeys(key for each in rows for key in each):
        b, a = (each.get(key) for each in rows)
        found.append(
            {
                "strategy": text.strategy(*key),
                "members": ", ".join(key[1]),
                "points": [each.accuracy if each else None for each in (a, b)],
                "expected": [each.expected if each else None for each in (a, b)],
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
    yield "command", result.command
    yield "dev questions", f"{result.n:,}"
    yield "held-out questions", f"{result.held_out:,}"
    yield (
        "limits of the rules",
        f"{result.max_gap:g} points, ratio {result.max_length_ratio:g}, {result.max_models} models",
    )
    # Times differ between any two runs.
    yield from ((name, value) for name, value in result.facts if not name.endswith(" took"))
    yield from ((f"version of {name}", value) for name, value in result.versions)
    for name, source, revision, files in result.model_files:
        # The first digits tell two files apart, and a model has dozens of files.
        hashes = ", ".join(sorted(digest[:12] for _, digest in files))
        yield f"files of {name}", " ".join(each for each in (source, revision, hashes) if each)[:300]


def _notes(results: list[Result], answers: list[_Answers], common: int) -> Iterator[str]:
    for label, each in zip(("A", "B"), answers, strict=True):
        if left_out := len(each) - common:
            yield f"{text.counted(left_out, 'held-out question')} of run {label} are not in the other run; left out"
    if results[0].task != results[1].task:
        yield f"the tasks have different names: {results[0].task} and {results[1].task}"
    yield "each run chose its strategy with the help of these questions, so both accuracies are a little too high"
