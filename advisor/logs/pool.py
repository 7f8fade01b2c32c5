"""Pools: questions with the answers of many models, without the texts of the responses.

JSON Lines, usually compressed. A line is one question with all its models; a model has the extracted answer (null if
none was found), 1 if it is right or 0, and the number of characters of the response:

    {"id": 7, "question": "1 + 1?", "group": "sums", "reference": "2", "models": {"small": ["3", 0, 12], ...}}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.logs.sources import LogFile, LogOptions, LogRecord, LogSource
from advisor.logs.values import count_of, object_at
from advisor.tasks.tables.rows import LeftOut
from advisor.tasks.tables.streams import Notes, json_lines
from advisor.tasks.tables.values import id_text, text_of, texts_of

SUMMARY = "JSON Lines with all models' extracted answers to a question in each line"


def recognise(files: Sequence[LogFile], _notes: Notes) -> list[LogSource]:
    """Files whose first line has models with answers."""
    return [
        LogSource("pool", file.path)
        for file in files
        if b'"models"' in file.head
        and any(isinstance(cell, list) and len(cell) == 3 for cell in object_at(file.first_object, "models").values())
    ]


def read(source: LogSource, options: LogOptions, notes: Notes) -> Iterator[LogRecord | LeftOut]:
    """One record for each question and model; see :class:`advisor.logs.sources.LogFormat`."""
    for line, place in json_lines(source.path, notes):
        number, models = id_text(line.get("id")), line.get("models")
        if number is None or not isinstance(models, dict):
            yield LeftOut("it has no id, or no models", place)
            continue
        question, group = text_of(line.get("question")), text_of(line.get("group"))
        reference = text_of(line.get("reference")) or texts_of(line.get("reference"))
        for model, cell in models.items():
            if not isinstance(cell, list) or len(cell) != 3:
                yield LeftOut("a model's answer is not a list of text, score and length", place)
                continue
            extracted, score, length = cell
            yield LogRecord(
                model=model,
                id=number,
                place=place,
                question=question,
                reference=reference,
                extracted=text_of(extracted),
                score=options.scores.read(score, model),
                length=count_of(length),
                group=group,
            )
