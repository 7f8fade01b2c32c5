"""``advisor judge``: labels of people correct a judge's scores; :mod:`advisor.judge.summary` has the maths.

A run folder has the scores and the texts, whether its judge is a model of the run or the scores came with logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from advisor.commands.command_line import print_json
from advisor.judge.summary import (
    FEWEST_LABELS,
    agreement,
    corrected_mean,
    speaks_to_judge,
)
from advisor.options.finished_run import JudgeRunOptions
from advisor.progress import Progress
from advisor.records import signed
from advisor.run.figures import SampleResponse
from advisor.run.folder import Run
from advisor.statistics import Floats
from advisor.tasks.metrics import metric_names, plugins
from advisor.tasks.tables.rows import checked_rows, columns_of
from ensemble.common.text import counted, visible
from ensemble.errors import InputError

RECOMMENDED = "recommended"
"""The name of the recommended strategy in tables and figures."""
_COLUMNS = ("id", "model", "label")
_WORDS = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0, "right": 1.0, "wrong": 0.0}

Scores = Mapping[str, Mapping[str, float]]
"""By the name of the model and the id of the question, from 0 to 1."""


def judge(options: JudgeRunOptions) -> None:
    """Print the corrected scores of a judge, and what misleads it."""
    found = judge_run(options, Progress(quiet=options.quiet))
    if options.as_json:
        print_json(found)
    else:
        print(visible("\n".join(found["text"]), keep_lines=True))


def judge_run(options: JudgeRunOptions, progress: Progress) -> dict[str, Any]:
    """The figures, in points, and the lines of a text; InputError if the run has no scores of a judge."""
    run = Run.open(options.run)
    result = run.result
    metric = result.task.metric
    # The scores of logs, and those of a metric of another package, may be a judge's; a reference gave all others.
    if result.judge is None and metric in set(metric_names()) - {"judge", *plugins().names}:
        raise InputError(
            f"{run.place}: no judge gave its scores, the metric {metric} did; give a run with a judge, or one on logs "
            "with the scores of a judge"
        )
    shown, scores = _read_run(run)
    labels = {} if options.labels is None else _read_labels(options.labels, scores, progress)
    means = {name: float(np.mean([*own.values()])) for name, own in scores.items()}
    # A model that writes one text, whatever the question is, is no model to compare with.
    same = {each.model for each in result.candidates if "same_text" in each.doubts}
    best = max(scores, key=lambda name: (name not in same and name != RECOMMENDED, means[name]))
    models = [
        {
            **_figures(name, scores, labels, best),
            "same_text": name in same,
            "speaks_to_judge": sum(speaks_to_judge(each.text) for each in shown[name].values() if each.text),
        }
        for name in scores
    ]
    judges = [] if result.judge is None else list(result.judge.judges)
    first_wins = None if result.judge is None or not result.judge.splits else result.judge.splits[-1].first_wins
    candidates = {candidate.model for candidate in result.candidates}
    found = {
        "judges": judges,
        "best_single_model": best,
        "models": sorted(models, key=lambda each: -each["judged"]),
        # The writer of a fusion is a candidate, too.
        "in_its_panel": [name for name in judges if name in candidates],
        "first_wins": None if first_wins is None else first_wins.share,
    }
    for said in (*result.task.notes, *result.advice.warnings):
        progress.say(said)
    return {**found, "text": judge_lines(found)}


def _read_run(run: Run) -> tuple[dict[str, dict[str, SampleResponse]], dict[str, dict[str, float]]]:
    """The responses to the held-out questions (or to dev, without these) and their scores, by model and question."""
    by_split: dict[str, dict[str, dict[str, SampleResponse]]] = {"held_out": {}, "dev": {}}
    recommended = run.result.advice.recommendation
    decodes = recommended is not None and recommended.is_decoded
    for sample in run.samples_for("it has the judge's scores"):
        own = dict(sample.responses)
        taken = sample.recommended
        if taken is not None and taken.text is not None:
            own[RECOMMENDED] = SampleResponse(text=taken.text, score=taken.score)
        elif taken is not None and not taken.draw and taken.model in own:
            own[RECOMMENDED] = own[taken.model]
        elif sample.ensemble is not None and decodes:
            own[RECOMMENDED] = sample.ensemble
        for name, response in own.items():
            by_split[sample.split].setdefault(name, {})[sample.id] = response
    shown = by_split["held_out"] or by_split["dev"]
    scores = {
        name: {key: each.score for key, each in own.items() if each.score is not None} for name, own in shown.items()
    }
    scores = {name: own for name, own in scores.items() if own}
    if not scores:
        raise InputError(f"{run.folder / 'samples.jsonl'}: no response has a score; give a run with a judge")
    return shown, scores


def _read_labels(path: Path, scores: Scores, progress: Progress) -> dict[str, dict[str, float]]:
    """The labels of people, by model and question."""
    if missing := [name for name in _COLUMNS if name not in columns_of(path)]:
        raise InputError(f"{path}: it has no column {missing[0]}; give a table with the columns id, model and label")
    labels: dict[str, dict[str, float]] = {}
    notes: list[str] = []
    for values, place in checked_rows(path, _COLUMNS, notes):
        number, model, label = (str(values[name] if values[name] is not None else "").strip() for name in _COLUMNS)
        if not label:
            continue
        if number not in scores.get(model, {}):
            raise InputError(
                f"{place}: the run has no score of the model {model[:60]!r} for the question {number[:60]!r}; take "
                "both as they are in samples.jsonl"
            )
        try:
            value = _WORDS[label.lower()] if label.lower() in _WORDS else float(label)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 1:
            raise InputError(f"{place}: label is {label[:40]!r}; give a number from 0 to 1 (as score), or yes or no")
        if number in labels.setdefault(model, {}):
            raise InputError(f"{place}: this response has a label already; leave out one of the rows")
        labels[model][number] = value
    for note in notes:
        progress.say(note)
    return labels


def _figures(name: str, scores: Scores, labels: Scores, best: str) -> dict[str, Any]:
    """What the judge and the labels say of a model, and of its difference to the best single one."""
    own, rival, given = scores[name], scores[best], labels.get(name, {})
    known = [key for key in own if key in given]
    shared = [key for key in own if key in rival]
    both = [key for key in shared if key in given and key in labels.get(best, {})]

    def differ(of: Scores, keys: list[str]) -> Floats:
        return np.array([of[name][key] - of[best][key] for key in keys])

    own_scores = np.array([own[key] for key in known])
    people = np.array([given[key] for key in known])
    enough, paired = len(known) >= FEWEST_LABELS, len(both) >= FEWEST_LABELS and name != best
    return {
        "model": name,
        "n": len(own),
        "judged": 100 * float(np.mean([*own.values()])),
        "labels": len(known),
        "corrected": corrected_mean(people, own_scores, np.array([*own.values()]), (0.0, 1.0))._asdict()
        if enough
        else None,
        "kappa": agreement(people, own_scores) if enough else None,
        "difference": corrected_mean(differ(labels, both), differ(scores, both), differ(scores, shared))._asdict()
        if paired
        else None,
    }


def judge_lines(found: Mapping[str, Any]) -> list[str]:
    """The figures of ``advisor judge --json`` in words."""
    lines, best = [], found["best_single_model"]
    has_labels = any(each["labels"] for each in found["models"])
    for each in found["models"]:
        name, own, pair = each["model"], each["corrected"], each["difference"]
        line = f"{name}: the judge gives {each['judged']:.1f} points on {counted(each['n'], 'question')}"
        if own is None and has_labels:
            line += f"; {counted(each['labels'], 'label')}, and a correction needs at least {FEWEST_LABELS}"
        elif own is not None:
            low, high = own["interval"]
            kappa = "" if each["kappa"] is None else f", kappa {each['kappa']:.2f}"
            line += (
                f"; {counted(own['labels'], 'label')} correct that to {own['points']:.1f} (95% interval {low:.1f} to "
                f"{high:.1f}{kappa}), as precise as {own['worth']:.0f} labels alone"
            )
        if pair is not None:
            ends = " to ".join(map(signed, pair["interval"]))
            needed = "more questions" if pair["needed"] is None else f"about {pair['needed']:,} labels"
            line += f"; {signed(pair['points'])} points against {best} ({ends}; to show it takes {needed})"
        lines.append(f"{line}.")
        if each["speaks_to_judge"]:
            lines.append(f"  {counted(each['speaks_to_judge'], 'response')} of {name} speak to the judge; read them.")
    for name in found["in_its_panel"]:
        lines.append(f"The judge {name} is a candidate, too, and judges prefer their own responses.")
    if found["first_wins"] is not None:
        lines.append(
            f"The response that the judge reads first wins {found['first_wins']:.0f}% of its decided verdicts."
        )
    if not has_labels:
        lines.append(
            f"A few labels of people correct these scores: --labels FILE, at least {FEWEST_LABELS} of a model."
        )
    return lines
