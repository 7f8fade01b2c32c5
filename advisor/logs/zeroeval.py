r"""ZeroEval: a JSON list for each model, in the file ``MODEL.json`` of a task's folder.

An element has ``id``, ``dataset``, the question as ``problem`` (math-l5) or ``question`` (gsm, crux), its reference
``answer``, for questions with options also ``choices`` and maybe ``correct_answer``, and ``output``, a list of
responses. A response is JSON that a model wrote, ``{"reasoning": ..., "answer": ...}``: backslashes of LaTeX make much
of it invalid, so the answer is found without a parser. The files have no score; the answer is graded here:

* a reference that is a number: the first number of the answer equals the first number of the reference. "35/6" alone is
  a fraction, "7 + \\sqrt{69}" is 7, and "$10,455" is 10455;
* a question with options: the letter;
* other references, and all of crux, which are values of Python: the same text, without quotation marks at its ends.

On math-l5 this gives the published accuracies. No files of gsm, crux and questions with options were at hand for tests.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from advisor.logs.record import LogOptions, LogRecord
from advisor.logs.sources import LogFile, LogSource
from advisor.logs.values import check_name, text_of, texts_of, usable
from advisor.tables.rows import LeftOut
from advisor.tables.streams import Notes, json_items

SUMMARY = "ZeroEval: a JSON list for each model, with the responses in `output`"
_FIELD = re.compile(r'"answer"\s*:\s*')
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?", re.ASCII)
_FRACTION = re.compile(r"\s*(-?\d{1,300})\s*/\s*(\d{1,300})\s*", re.ASCII)
_LETTER = re.compile(r"\s*\(?([A-Z])(?![A-Za-z])")


def recognise(files: Sequence[LogFile], _notes: Notes) -> list[LogSource]:
    """JSON lists whose first element has the fields that every task of ZeroEval writes."""
    return [LogSource("zeroeval", file.path) for file in files if _is_zeroeval(file.head)]


def read(source: LogSource, _options: LogOptions, notes: Notes) -> Iterator[LogRecord]:
    """One record for each response; see :class:`advisor.logs.sources.LogFormat`."""
    return usable(source.path, _records(source.path), notes)


def _is_zeroeval(head: bytes) -> bool:
    # The first two fields of an element: the ones after a long question may be beyond the head.
    return head.lstrip().startswith(b"[") and b'"session_id"' in head and b'"chat_history"' in head


def _records(path: Path) -> Iterator[LogRecord | LeftOut]:
    model = check_name(path.name.partition(".json")[0], str(path))
    for item, place in json_items(path):
        values: dict[str, Any] = item if isinstance(item, dict) else {}
        number, reference = (
            text_of(values.get("id")),
            text_of(values.get("correct_answer")) or text_of(values.get("answer")),
        )
        responses = texts_of(values.get("output"))
        if number is None or reference is None or responses is None:
            yield LeftOut("it has no `id`, `answer` or `output`", place)
            continue
        choices, task = texts_of(values.get("choices")) or (), text_of(values.get("dataset"))
        for draw, response in enumerate(responses):
            extracted, score = grade(response, reference, choices, literal=(task or "").startswith("crux"))
            yield LogRecord(
                model=model,
                task=task,
                id=number,
                place=place,
                question=text_of(values.get("problem")) or text_of(values.get("question")),
                reference=reference,
                choices=choices,
                response=response,
                extracted=extracted,
                score=score,
                metric="accuracy",
                draw=draw,
            )


def grade(
    response: str, reference: str, choices: tuple[str, ...] = (), *, literal: bool = False
) -> tuple[str | None, float]:
    """The answer in a response, and 1 if it is right, else 0.

    Args:
        response: JSON that a model wrote, valid or not.
        reference: The right answer; for a question with options the letter or the number of one, counted from 0.
        choices: The options.
        literal: Compare the texts, also if the reference is a number.
    """
    answer = _answer(response)
    if answer is None:
        return None, 0.0
    if choices:
        letter = _LETTER.match(answer)
        right = chr(ord("A") + int(reference)) if re.fullmatch("[0-9]|1[0-9]", reference) else reference.strip()
        return (letter[1], float(letter[1] == right)) if letter else (None, 0.0)
    if literal or not _NUMBER.match(reference.strip().removeprefix("$")):
        return answer, float(answer.strip("'\"") == reference.strip("'\""))
    number = _number(answer)
    return (None, 0.0) if number is None else (_written(number), float(number == _number(reference)))


def _answer(response: str) -> str | None:
    """The value of the last field ``answer``, as text."""
    fields = list(_FIELD.finditer(response))
    if not fields:
        return None
    start = fields[-1].end()
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(response, start)
        if re.match(r"\s*(?:[,}]|$)", response[end : end + 100]):
            return value if isinstance(value, str) else None if value is None else response[start:end]
    except (ValueError, RecursionError):
        pass
    # Not JSON: what is left of the object. Quotation marks inside of the text may not be escaped.
    rest = response[start:].partition("```")[0].strip().removesuffix("}").strip()
    return rest.removeprefix('"').removesuffix('"')


def _number(text: str) -> float | None:
    """The first number of a text, or the value of a text that is a fraction."""
    text = text.replace(",", "").replace("$", "")
    # A fraction over 0 has no value; its first number counts.
    if (fraction := _FRACTION.fullmatch(text)) and int(fraction[2]):
        value = int(fraction[1]) / int(fraction[2])
    elif first := _NUMBER.search(text):
        value = float(first[0])
    else:
        return None
    return value if math.isfinite(value) else None


def _written(number: float) -> str:
    # As the pools have it, so that the answers of a log and of a pool are the same texts.
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else str(number)
