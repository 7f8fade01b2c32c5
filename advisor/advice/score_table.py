"""The scores of several models on the same questions: from runs, logs, or columns of one log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.advice.doubts import run_doubts
from advisor.advice.rules import rank
from advisor.logs.join import JoinedLogs, plain, question_key, read_logs
from advisor.options.shared import LogsOptions
from advisor.records import fits
from advisor.statistics import Floats, scores
from ensemble.common.files import exists
from ensemble.errors import InputError

_Column = tuple[str, str, Floats]
"""A model of a log: its name, the name of its log, and its scores in the order of the common questions."""


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """The scores of several models on the same questions; the first model is the baseline."""

    task: str
    metric: str
    models: tuple[str, ...]
    scores: Floats  # questions by models, 0 to 1; the mean where a model answered several times
    groups: tuple[str | None, ...]
    clusters: tuple[str, ...] | None  # of each question; None if questions count as independent
    # For each model how many scores are ``unread``, and responses ``missing`` or ``failed``.
    lost: tuple[Mapping[str, int], ...]
    notes: tuple[str, ...]  # what was left out, and why


def read_columns(options: LogsOptions, names: Sequence[str]) -> ScoreTable:
    """Read models of logs that are joined to one, in the order of the names or globs, or the most accurate first."""
    joined = read_logs(options, names)
    answered = [(name, "", _scores(joined, name)) for name in _in_order(joined, names or ("*",), "the logs")]
    # One log, so names need no path behind them.
    return _table({"": joined}, range(len(joined.examples)), answered, sort=not names)


def read_runs(options: LogsOptions, paths: Sequence[str]) -> ScoreTable:
    """Read runs and logs (``PATH`` or ``PATH#MODEL``), and keep the questions that they have in common."""
    given = [_path_and_name(path) for path in paths]
    for path, name in given:
        # A word is a model's name rather than a path.
        if name == "*" and not exists(path) and re.fullmatch(r"[\w.-]+", path):
            raise InputError(
                f"{path}: no such file or folder; a model of a log is LOG#{path}, or {path} with --logs LOG"
            )
    wanted: dict[str, list[str]] = {}
    for path, name in given:
        wanted.setdefault(path, []).append(name)
    # A path that is given several times is read once. Without a name it gives all its models.
    logs = {path: read_logs(options, () if "*" in names else names, paths=[path]) for path, names in wanted.items()}
    rows = _common_rows(logs)
    answered = [
        (model, path, _scores(logs[path], model)[rows[path]])
        for path, name in given
        for model in _in_order(logs[path], [name], path)
    ]
    return _table(logs, next(iter(rows.values())), answered, sort=len(given) == 1 and given[0][1] == "*")


def _path_and_name(argument: str) -> tuple[str, str]:
    path, mark, name = argument.rpartition("#")
    # A file's name may have the mark, too.
    if not mark or not name or exists(argument):
        return argument, "*"
    return path, name


def _in_order(joined: JoinedLogs, names: Sequence[str], place: str) -> list[str]:
    chosen: list[str] = []
    for name in names:
        fitting = [model for model in joined.profiles if fits(model, name)]
        if not fitting:
            raise InputError(f"no model of {place} has this name; leave the names out to see all", of=name)
        # A name may fit an earlier glob: it keeps the earlier place.
        chosen.extend(model for model in fitting if model not in chosen)
    return chosen


def _scores(joined: JoinedLogs, model: str) -> Floats:
    draws = joined.draws.get(model)
    if draws is None:
        return scores(joined.profiles[model])
    # The mean of several responses to a question has less noise than the first of them.
    return sum((scores(profile) for profile in draws), np.zeros(len(joined.examples))) / len(draws)


def _places(log: JoinedLogs, *, by_id: bool) -> dict[tuple[str, ...], int]:
    """The row of each question of a log by what it is; without the ids only of what is asked once."""
    keys = [(plain(each.id) if by_id else "", *question_key(each)) for each in log.examples]
    counts = Counter(keys)
    return {key: row for row, key in enumerate(keys) if by_id or (counts[key] == 1 and key[1])}


def _common_rows(logs: Mapping[str, JoinedLogs]) -> dict[str, list[int]]:
    """The rows of the common questions in each log, in the order of the first log."""
    places, common = {}, list[tuple[str, ...]]()
    for by_id in (True, False):
        rows_of = {path: _places(log, by_id=by_id) for path, log in logs.items()}
        first, *others = rows_of.values()
        keys = [key for key in first if all(key in other for other in others)]
        if len(keys) > len(common):
            places, common = rows_of, keys
    if not common:
        counts = ", ".join(f"{path} ({len(log.examples):,})" for path, log in list(logs.items())[:5])
        ids = [{example.id for example in log.examples} for log in logs.values()]
        shared = len(set.intersection(*ids))
        why = f"; {shared:,} ids are common, with other questions or references" if shared else ""
        raise InputError(
            f"no question is in all of them, by id and by question and reference: {counts}{why}; give logs of the same "
            "questions"
        )
    return {path: [rows[key] for key in common] for path, rows in places.items()}


def _table(
    logs: Mapping[str, JoinedLogs], rows: Sequence[int], answered: Sequence[_Column], *, sort: bool
) -> ScoreTable:
    """The table of the common questions, which are `rows` of the first log."""
    for (name, path), count in Counter((name, path) for name, path, _ in answered).items():
        if count > 1:
            raise InputError(f"{name}{' of ' + path if path else ''} is given {count} times; give each model once")
    if len(answered) < 2:
        raise InputError(
            f"{answered[0][1] or '--logs'}: only {answered[0][0]} is in it, and a comparison needs two models; give "
            "another run or log"
        )
    if sort:
        # Rounded, so that a rounding error does not break a tie; sorting keeps the order of equals.
        answered = sorted(answered, key=lambda each: -round(float(each[2].mean()), 9))
    shown = Counter(name for name, _, _ in answered)
    models = tuple(f"{name} ({path})" if shown[name] > 1 else name for name, path, _ in answered)
    notes = [note for log in logs.values() for note in log.notes]
    for path, log in logs.items():
        profiles = sorted((log.profiles[name] for name, own, _ in answered if own == path), key=rank)
        notes += [each.text for each in run_doubts(profiles, log.task("logs", range(len(log.examples)), 0))]
        if left_out := len(log.examples) - len(rows):
            notes.append(f"{path}: {left_out:,} of {len(log.examples):,} questions are not in all logs; left out")
    metrics = list(dict.fromkeys(log.metric for log in logs.values()))
    if len(metrics) > 1:
        notes.append(f"the logs have several scores, {', '.join(metrics)}; they are compared as if they were one")
    first = next(iter(logs.values()))
    return ScoreTable(
        task=first.name,
        metric=metrics[0],
        models=models,
        scores=np.column_stack([values for _, _, values in answered]),
        groups=tuple(first.examples[row].group for row in rows),
        clusters=None if first.clusters is None else tuple(first.clusters[row] for row in rows),
        lost=tuple(logs[path].lost[name] for name, path, _ in answered),
        notes=tuple(dict.fromkeys(notes)),
    )
