"""Pools: questions with the answers of many models, without the texts of the responses.

JSON Lines, usually compressed. A line is one question with all its models; a model has the extracted answer (null if
none was found), 1 if it is right or 0, and the number of characters of the response:

    {"id": 7, "question": "1 + 1?", "group": "sums", "reference": "2", "models": {"small": ["3", 0, 12], ...}}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from advisor.logs.sources import LogFile, LogOptions, LogRecord, LogSource, usable
from advisor.logs.values import check_name, count_of
from advisor.tables.rows import LeftOut
from advisor.tables.streams import Notes, json_lines
from advisor.tables.values import score_of, text_of, texts_of

SUMMARY = "JSON Lines with all models' extracted answers to a question in each line"


def recognise(files: Sequence[LogFile], _notes: Notes) -> list[LogSource]:
    """Files whose first line has models with answers."""
    return [LogSource("pool", file.path) for file in files if _is_pool(file)]


def read(source: LogSource, options: LogOptions, notes: Notes) -> Iterator[LogRecord]:
    """One record for each question and model; see :class:`advisor.logs.sources.LogFormat`."""
    return usable(source.path, _records(source.path, options, notes), notes)


def _is_pool(file: LogFile) -> bool:
    models = file.first_object.get("models") if b'"models"' in file.head else None
    return isinstance(models, dict) and any(isinstance(cell, list) and len(cell) == 3 for cell in models.values())


def _records(path: Path, options: LogOptions, notes: Notes) -> Iterator[LogRecord | LeftOut]:
    known: set[str] = set()
    for line, place in json_lines(path, notes):
        number, models = text_of(line.get("id")), line.get("models")
        if number is None or not isinstance(models, dict):
            yield LeftOut("it has no id, or no models", place)
            continue
        question, group = text_of(line.get("question")), text_of(line.get("group"))
        reference = text_of(line.get("reference")) or texts_of(line.get("reference"))
        for model, cell in models.items():
            if model not in known:
                known.add(check_name(model, place))
            is_cell = isinstance(cell, list) and len(cell) == 3
            extracted, score, length = cell if is_cell else (None, None, None)
            right = options.scores.read(score, model) if options.needs_score and is_cell else score_of(score)
            if right is None and not options.is_rescored and (options.needs_score or not is_cell):
                yield LeftOut("a model's answer is not a list of text, score between 0 and 1, and length", place)
                continue
            yield LogRecord(
                model=model,
                id=number,
                place=place,
                question=question,
                reference=reference,
                extracted=text_of(extracted),
                score=right,
                length=count_of(length),
                group=group,
            )
