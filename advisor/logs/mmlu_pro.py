"""MMLU-Pro: a JSON list for each model, in a zip file or not, named ``model_outputs_MODEL_5shots``.

An element has ``question_id``, ``question``, ``options``, the letter ``answer``, ``category``, the response as
``generated_text``, ``model_outputs`` or ``response``, and ``pred``, the letter that MMLU-Pro's script found in it.

In some files ``pred`` is a random letter where the script found nothing, so the letter is found again in the response:
after "answer is", else after the last "Answer:", else the last single capital letter. This gives ``pred`` in all
responses of the two files of the tests but those where it finds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from advisor.logs.record import LogOptions, LogRecord
from advisor.logs.sources import LogFile, LogSource
from advisor.logs.values import check_name, text_of, texts_of, usable
from advisor.tables.rows import LeftOut
from advisor.tables.streams import HEAD, ZIP, Notes, json_items, open_stream, zip_members
from ensemble.errors import InputError

SUMMARY = "MMLU-Pro: a JSON list for each model, model_outputs_MODEL_5shots.zip or .json"
_FIELDS = (b'"question_id"', b'"options"', b'"answer_index"', b'"pred"')
_RESPONSES = ("generated_text", "model_outputs", "response")
_MODEL = re.compile(r"model_outputs_(.+?)(?:_\d+shots?)?$")
# Each takes time that is linear in the text. The first two take the first letter of a word too, as MMLU-Pro's script.
_PATTERNS = tuple(map(re.compile, (r"answer is \(?([A-P])", r"[aA]nswer:\s*\(?([A-P])", r"\b([A-P])\b")))
# A zip file with more members is the log of another tool.
_MOST_MEMBERS = 100


def recognise(files: Sequence[LogFile], _notes: Notes) -> list[LogSource]:
    """JSON lists, or members of zip files, whose first element has the fields of MMLU-Pro."""
    found = []
    for file in files:
        if file.head.startswith(ZIP):
            found += [LogSource("mmlu_pro", file.path, (), member) for member in _members(file.path)]
        elif _is_mmlu_pro(file.head):
            found.append(LogSource("mmlu_pro", file.path))
    return found


def read(source: LogSource, _options: LogOptions, notes: Notes) -> Iterator[LogRecord]:
    """One record for each question; see :class:`advisor.logs.sources.LogFormat`."""
    return usable(source.path, _records(source, notes), notes)


def extract(response: str, letters: str) -> str | None:
    """The letter that a response answers; None if it has none.

    Args:
        response: The text.
        letters: The letters of the options.
    """
    first, *others = (
        [match[1] for match in pattern.finditer(response) if match[1] in letters] for pattern in _PATTERNS
    )
    return first[0] if first else next((found[-1] for found in others if found), None)


def _members(path: Path) -> Iterator[str]:
    try:
        names = [name for name in zip_members(path) if name.endswith(".json") and not name.startswith("__MACOSX/")]
        for name in names if len(names) <= _MOST_MEMBERS else ():
            with open_stream(path, name) as stream:
                if _is_mmlu_pro(stream.read(HEAD)):
                    yield name
    except InputError:
        return  # not a log that can be read: it gets the message for unknown files


def _is_mmlu_pro(head: bytes) -> bool:
    return head.lstrip().startswith(b"[") and all(field in head for field in _FIELDS)


def _records(source: LogSource, notes: Notes) -> Iterator[LogRecord | LeftOut]:
    stem = Path(source.member or source.path.name).name.partition(".json")[0]
    match = _MODEL.match(stem)
    model = check_name(match[1] if match else stem, str(source.path))
    random = total = 0
    for item, place in json_items(source.path, member=source.member):
        values: dict[str, Any] = item if isinstance(item, dict) else {}
        number, reference = text_of(values.get("question_id")), text_of(values.get("answer"))
        options, response = texts_of(values.get("options")), _response(values)
        if number is None or reference is None or options is None or response is None:
            yield LeftOut("it has no `question_id`, `answer`, `options` or response", place)
            continue
        # MMLU-Pro has up to ten options, and its script takes any of ten letters; MMLU-Pro+ has twelve.
        extracted = extract(response, "ABCDEFGHIJKLMNOP"[: max(10, len(options))])
        total += 1
        random += extracted is None and isinstance(values.get("pred"), str)
        yield LogRecord(
            model=model,
            task="mmlu-pro",
            id=number,
            place=place,
            question=text_of(values.get("question")),
            reference=reference,
            choices=options,
            response=response,
            extracted=extracted,
            score=float(extracted == reference),
            metric="accuracy",
            group=text_of(values.get("category")),
        )
    if random:
        notes.append(
            f"{source.path}: {random:,} of {total:,} responses have no letter as answer and count as wrong; the log's "
            "`pred` has a letter there, which is random in files of MMLU-Pro"
        )


def _response(values: dict[str, Any]) -> str | None:
    return next((text for name in _RESPONSES if (text := text_of(values.get(name))) is not None), None)
