"""Run folders of this project: each line of ``samples.jsonl`` has the responses of all models to one question.

``result.json`` beside it, if it exists, names the task, its metric, and the ensemble's method and members. The ensemble
is one more model: ``unite(a, b)``. The questions of both splits are read. A run folder may come from a stranger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.logs.sources import LogFile, LogOptions, LogRecord, LogSource
from advisor.logs.values import LONGEST_NAME
from advisor.run.figures import Sample
from advisor.run.folder import TASK, Run
from advisor.run.result import Result
from advisor.tasks.tables.rows import LeftOut
from advisor.tasks.tables.streams import LARGEST_ITEM, Notes, json_lines
from advisor.tasks.tables.values import text_of, texts_of
from ensemble.common.schema import validated
from ensemble.common.text import shortened, visible
from ensemble.errors import InputError

SUMMARY = "run folders of `advisor select`: samples.jsonl, and result.json beside it"
_WAY_OUT = "restore the file, or remove it"


def recognise(files: Sequence[LogFile], _notes: Notes) -> list[LogSource]:
    """Files whose first line has the fields of a line of ``samples.jsonl``, with the result and the task beside it."""
    found = []
    for file in files:
        if b'"responses"' in file.head and {"id", "prompt", "split"} <= file.first_object.keys():
            result, task = file.path.with_name("result.json"), file.path.with_name(TASK)
            questions = [other.path for other in files if other.path.is_relative_to(task)]
            found.append(LogSource("run_folder", file.path, (result, *questions) if result.is_file() else ()))
    return found


def read(source: LogSource, options: LogOptions, notes: Notes) -> Iterator[LogRecord | LeftOut]:
    """One record for each question and model; see :class:`advisor.logs.sources.LogFormat`."""
    result = None
    for path in source.companions[:1]:
        # Before it is read: a stranger's file may have any size.
        if path.stat().st_size > LARGEST_ITEM:
            raise InputError(f"{path}: it is larger than {LARGEST_ITEM >> 20} MB; {_WAY_OUT}")
        result = Run.open(path.parent, _WAY_OUT).result
    task, metric = (result.task.name, result.task.metric or None) if result else (None, None)
    # A run knows its clusters, for example the turns of a conversation, so the user need not name them.
    field = "cluster" if options.cluster is None else options.cluster
    ensemble = _ensemble(result)
    for line, place in json_lines(source.path, notes):
        try:
            # Texts as they are: they are compared with those of other logs.
            sample = validated(Sample, line, place, _WAY_OUT, clean=False)
        except InputError:
            yield LeftOut("it has another form than a line of samples.jsonl", place)
            continue
        together = [] if sample.ensemble is None else [(ensemble, sample.ensemble)]
        for model, answer in (*sample.responses.items(), *together):
            # In a choice task the text is an option. As a response, its length would count in the length rule.
            text = None if metric == "choice" else text_of(answer.text)
            failed = answer.finish_reason == "error"
            yield LogRecord(
                model=model,
                task=task,
                id=sample.id,
                place=place,
                question=text_of(sample.prompt),
                reference=text_of(line.get("reference")) or texts_of(line.get("reference")),
                response=text,
                extracted=text_of(answer.extracted),
                score=None if failed else options.scores.read(answer.score, model),
                metric=metric,
                cluster=text_of(line.get(field)),
                length=answer.length if text is None and metric != "choice" else None,
                tokens=answer.tokens,
                thinking=text_of(answer.thinking),
                thought=answer.thought,
                cut=answer.finish_reason == "length",
                error=visible(answer.error or "unknown reason")[:500] if failed else None,
            )


def _ensemble(result: Result | None) -> str:
    ensemble = result.ensemble if result else None
    members = ", ".join(member.model for member in ensemble.members) if ensemble else ""
    return shortened(f"{ensemble.method}({members})" if ensemble and members else "ensemble", LONGEST_NAME)
