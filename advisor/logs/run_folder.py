"""Run folders of this project: each line of ``samples.jsonl`` has the responses of all models to one question.

``result.json`` beside it, if it exists, names the task, its metric, and the ensemble's method and members. The ensemble
is one more model: ``unite(a, b)``. The questions of both splits are read. A run folder may come from a stranger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from advisor.logs.record import LogOptions, LogRecord
from advisor.logs.sources import LogFile, LogSource
from advisor.logs.values import LONGEST_NAME, check_name, count_of, score_of, text_of, texts_of, usable
from advisor.runs.read.fields import Fields, read_object
from advisor.tables.rows import LeftOut
from advisor.tables.streams import LARGEST_ITEM, Notes, json_lines
from ensemble.common.text import shortened, visible
from ensemble.errors import InputError

SUMMARY = "run folders of `advisor select`: samples.jsonl, and result.json beside it"
_WAY_OUT = "restore the file, or remove it"


def recognise(files: Sequence[LogFile], _notes: Notes) -> list[LogSource]:
    """Files whose first line has the fields of a line of ``samples.jsonl``, each with the result beside it."""
    found = []
    for file in files:
        if b'"responses"' in file.head and {"id", "prompt", "split"} <= file.first_object.keys():
            result = file.path.with_name("result.json")
            found.append(LogSource("run_folder", file.path, (result,) if result.is_file() else ()))
    return found


def read(source: LogSource, options: LogOptions, notes: Notes) -> Iterator[LogRecord]:
    """One record for each question and model; see :class:`advisor.logs.sources.LogFormat`."""
    result = _result(source.companions[0]) if source.companions else Fields({}, "")
    name, metric = result.part("task").line("name"), result.part("task").line("metric")
    # A run knows its clusters, for example the turns of a conversation, so the user need not name them.
    field = "cluster" if options.cluster is None else options.cluster
    return usable(
        source.path, _records(source.path, notes, name or None, metric or None, _ensemble(result), field), notes
    )


def _result(path: Path) -> Fields:
    # Before it is read: a stranger's file may have any size.
    if path.is_file() and path.stat().st_size > LARGEST_ITEM:
        raise InputError(f"{path}: it is larger than {LARGEST_ITEM >> 20} MB; {_WAY_OUT}")
    return read_object(path, _WAY_OUT)


def _ensemble(result: Fields) -> str:
    ensemble = result.part("ensemble")
    members = ", ".join(member.line("model") for member in ensemble.parts("members"))
    name = f"{ensemble.line('method', 'ensemble')}({members})" if members else "ensemble"
    return shortened(name, LONGEST_NAME)


def _records(
    path: Path, notes: Notes, task: str | None, metric: str | None, ensemble: str, cluster: str
) -> Iterator[LogRecord | LeftOut]:
    known: set[str] = set()
    for line, place in json_lines(path, notes):
        number, responses = text_of(line.get("id")), line.get("responses")
        if number is None or not isinstance(responses, dict):
            yield LeftOut("it has no id, or no responses", place)
            continue
        question = text_of(line.get("prompt"))
        reference = text_of(line.get("reference")) or texts_of(line.get("reference"))
        together = line.get("ensemble")
        for model, value in (*responses.items(), *([] if together is None else [(ensemble, together)])):
            if model not in known:
                known.add(check_name(model, place))
            answer: Mapping[str, Any] = value if isinstance(value, dict) else {}
            score = score_of(answer.get("score"))
            # In a choice task the text is an option. As a response, its length would count in the length rule.
            text = None if metric == "choice" else text_of(answer.get("text"))
            if score is None:
                yield LeftOut("a model's response has no score between 0 and 1", place)
                continue
            failed = answer.get("finish_reason") == "error"
            yield LogRecord(
                model=model,
                task=task,
                id=number,
                place=place,
                question=question,
                reference=reference,
                response=text,
                extracted=text_of(answer.get("extracted")),
                score=score,
                metric=metric,
                cluster=text_of(line.get(cluster)),
                length=count_of(answer.get("length")) if text is None and metric != "choice" else None,
                cut=answer.get("finish_reason") == "length",
                error=visible(text_of(answer.get("error")) or "unknown reason")[:500] if failed else None,
            )
