"""Tables: CSV, TSV, JSON, JSON Lines, Parquet and Excel files with the columns that a user names.

Long form: a row for each question and model. A column has a role, which ``--column ROLE=NAME`` gives; other roles are
guessed by usual names of columns, and a note tells the guess:

    id,question,answer,model,response,score       --column reference=answer

A response may also be the object in which a provider gave it; its thinking, tokens and end are read from there. All
forms of responses and references are those of :mod:`advisor.tasks.tables.values`.

Without a column for the model, the file's name is the model. Without an ``id``, the question's text identifies it.

Wide form: a row for each question and a column for each model, which globs choose. If all values of these columns are
scores, or no reference is known and they are few, they are read as scores; otherwise they are responses:

    id,question,answer,llama-8b,qwen-7b           --column "models=llama-*,qwen-*"
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from advisor.logs.sources import LogFile, LogOptions, LogRecord, LogSource
from advisor.logs.values import amount_of, count_of, listed, object_at
from advisor.records import fits
from advisor.tasks.metrics.contains import METRIC as CONTAINS
from advisor.tasks.tables.rows import EXTENSIONS, LeftOut, Row, columns_of, kind_of, rows_of, stem_of
from advisor.tasks.tables.streams import Notes
from advisor.tasks.tables.values import (
    SavedResponse,
    UnknownFormError,
    accepted_texts,
    as_number,
    id_text,
    is_answer,
    known_options,
    line_of,
    parsed_cell,
    parsed_text,
    read_response,
    text_of,
    texts_of,
)
from ensemble.common.text import shortened, visible
from ensemble.errors import InputError
from ensemble.models.thinking import has_thought

SUMMARY = "tables in CSV, TSV, JSON, JSON Lines, Parquet and Excel files"
# Usual names, the most certain first.
ROLES: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "question_id", "example_id", "sample_id", "doc_id", "item_id", "uid", "idx", "index"),
    "question": ("question", "prompt", "input", "problem", "query"),
    "reference": ("reference", "target", "gold", "expected", "ground_truth", "correct_answer", "label", "answer"),
    "choices": ("choices", "options"),
    "model": ("model", "model_name", "model_id"),
    "response": ("response", "output", "completion", "prediction", "generated_text", "generation", "model_output"),
    "extracted": ("extracted", "extracted_answer", "parsed", "parsed_answer", "pred"),
    "score": ("score", "correct", "is_correct", "right", "passed", "exact_match", "accuracy", "acc"),
    "length": ("length", "response_length"),
    "group": ("group", "category", "subject", "topic"),
    "tokens": ("tokens", "output_tokens", "completion_tokens"),
    "prompt_tokens": ("prompt_tokens", "input_tokens"),
    "seconds": ("seconds", "latency", "duration"),
    "dollars": ("dollars", "cost", "cost_usd", "total_cost"),
    "thinking": ("thinking", "reasoning", "reasoning_content"),
    "thinking_length": ("thinking_length", "reasoning_length"),
    "thinking_tokens": ("thinking_tokens", "reasoning_tokens"),
    "finish": ("finish", "finish_reason", "stop_reason"),
    "draw": ("draw", "epoch", "attempt", "repeat", "trial"),
    "task": ("task", "benchmark", "dataset"),
}
"""The role of a column, and the names by which it is guessed."""
OF_ALL_LOGS = ("models", "cluster", "evaluation")
"""What else ``--column`` names: the columns of the models of a wide table, and what logs of any format have."""
_THOUGHTS = ("thinking", "thinking_length", "thinking_tokens")
_MOST_WORDS = 3
"""Different values of the models' columns that may be scores in words, such as "good" and "bad"."""
_MOST_GRADES = 12
"""The same for the grades of a scale."""
_ROWS = 300
"""Rows that tell which columns are those of models."""
_COSTS = ("prompt_tokens", "seconds", "dollars")
_PER_MODEL = ("model", "response", "extracted", "score", "length", "tokens", *_COSTS, *_THOUGHTS, "finish")


def recognise(files: Sequence[LogFile], _notes: Notes) -> list[LogSource]:
    """Tables that the user named; of those in folders, the ones whose columns have usual names and suffice."""
    return [LogSource("table", file.path) for file in files if _is_table(file)]


def read(source: LogSource, options: LogOptions, notes: Notes) -> Iterator[LogRecord | LeftOut]:
    """One record for each row, or for each cell of a model; see :class:`advisor.logs.sources.LogFormat`."""
    names = columns_of(source.path)
    columns = _columns(source.path, names, options, notes)
    models = _model_columns(source.path, names, columns, options)
    _check_enough(source.path, names, columns, models, options)
    if options.cluster in names:
        columns = {**columns, "cluster": options.cluster}
    texts = [columns[role] for role in ("reference", "response") if role in columns]
    reader = _ValueReader(options, _spelled_columns(source.path, [*texts, *models], options))
    rows = _wide if models else _long
    return rows(source.path, columns, models, reader, notes)


def _is_table(file: LogFile) -> bool:
    kind = kind_of(file.head, file.path)
    if kind is None or (not file.given and file.path.suffix.lower() not in EXTENSIONS):
        return False
    if not file.given:
        # Only files that may be tables: a folder may have thousands of others.
        return bool(roles_of(file.path))
    try:
        return kind != "lines" or bool(columns_of(file.path))
    except InputError:
        return False


def roles_of(path: Path) -> dict[str, str]:
    """The columns of a table by roles, where they have usual names; empty unless answers can be read with them."""
    try:
        found = usual_roles(columns_of(path))
    except InputError:
        return {}
    answers = (
        "score" in found or {"reference", "response"} <= found.keys() or {"reference", "extracted"} <= found.keys()
    )
    return found if answers and {"id", "question"} & found.keys() else {}


def models_of(path: Path) -> list[str]:
    """The columns of a table that hold answers of models, by their values; empty if no two do.

    Such a column gives the reference in some rows, not in all, as a solution does; and two of them give it in the same
    row, which two options of a question do not.
    """
    try:
        names = columns_of(path)
        roles = usual_roles(names)
        if "reference" not in roles or {"response", "extracted", "score", "model"} & roles.keys():
            return []
        others = [name for name in names if name not in roles.values() and set(name).isdisjoint(",*?[!")]
        given = [row[0] for row in islice(rows_of(path, names, []), _ROWS) if not isinstance(row, LeftOut)]
    except InputError:
        return []
    references = [text_of(row[roles["reference"]]) or "" for row in given]
    gives = {
        name: [
            CONTAINS.score(text_of(row[name]) or "", (reference,), ())[0] > 0
            for row, reference in zip(given, references, strict=True)
        ]
        for name in others
    }
    models = [name for name, rights in gives.items() if len(given) <= 20 * sum(rights) < 20 * len(given)]
    both = sum(sum(rights) > 1 for rights in zip(*(gives[name] for name in models), strict=True))
    return models if 20 * both >= len(given) > 0 else []


def usual_roles(names: Sequence[str]) -> dict[str, str]:
    """The columns by roles, where they have usual names."""
    # Reversed, so that the first of two columns with the same usual name counts.
    usual = {name.strip().lower().replace(" ", "_").replace("-", "_"): name for name in reversed(names)}
    found = {role: next((usual[name] for name in known if name in usual), None) for role, known in ROLES.items()}
    return {role: name for role, name in found.items() if name is not None}


def _columns(path: Path, names: Sequence[str], options: LogOptions, notes: Notes) -> dict[str, str]:
    """The column of each role."""
    given = dict(options.columns)
    for role, name in given.items():
        if role not in ROLES:
            raise InputError(
                f"--column {role}={name}: {visible(role)} is not one of {', '.join((*ROLES, *OF_ALL_LOGS))}"
            )
        if name not in names:
            raise InputError(f"--column {role}={name}: {path} has no such column; it has {listed(names)}")
        if twin := next((other for other in given if other != role and given[other] == name), None):
            raise InputError(f"--column {role}={name}: the column has the role {twin} already; give another column")
    taken = {*given.values(), *(name for name in names if _is_model(name, options))}
    guessed = usual_roles([name for name in names if name not in taken])
    guessed = {role: name for role, name in guessed.items() if role not in given}
    if options.model_columns:
        guessed = {role: name for role, name in guessed.items() if role not in _PER_MODEL}
    # A column that is named like its role is no guess.
    pairs = ", ".join(f"{role}={visible(name)}" for role, name in guessed.items() if name.strip().lower() != role)
    if pairs:
        notes.append(f"{path}: the roles of columns are guessed by their names: {pairs}; change one with --column")
    return {**given, **guessed}


def _is_model(name: str, options: LogOptions) -> bool:
    return any(fits(name, pattern) for pattern in options.model_columns)


def _model_columns(path: Path, names: Sequence[str], columns: Mapping[str, str], options: LogOptions) -> list[str]:
    models = [name for name in names if _is_model(name, options) and name not in columns.values()]
    for pattern in options.model_columns:
        if not any(fits(name, pattern) for name in models):
            raise InputError(f"--column models={pattern}: {path} has no such column; it has {listed(names)}")
    if wrong := next((role for role in _PER_MODEL if models and role in columns), None):
        raise InputError(
            f"--column {wrong}={columns[wrong]}: the columns of the models have these values; leave one out"
        )
    return models


def _check_enough(
    path: Path, names: Sequence[str], columns: Mapping[str, str], models: Sequence[str], options: LogOptions
) -> None:
    missing = []
    if not models:
        if not {"id", "question"} & columns.keys():
            missing.append(("the question", "question=NAME"))
        if not {"score", "response", "extracted"} & columns.keys():
            missing.append(("the response or its score", "response=NAME --column score=NAME"))
        elif options.needs_score and not {"score", "reference"} & columns.keys():
            missing.append(("the score or the reference", "score=NAME"))
    if missing:
        what, way_out = " and ".join(what for what, _ in missing), " --column ".join(option for _, option in missing)
        raise InputError(
            f"{path}: no column is known for {what}; it has {listed(names) or 'none'}; give --column {way_out}, "
            "or --column models=GLOB for one column per model"
        )


class _ValueReader(NamedTuple):
    """Reads the responses and references of a table; all texts of the `spelled` columns spell lists or objects."""

    options: LogOptions
    spelled: frozenset[str]

    def response(self, row: Row, column: str) -> SavedResponse:
        """The response in a column of a row."""
        value = self._value(row, column)
        if self.options.reads_json and isinstance(value, (list, dict)) and not is_answer(value):
            return SavedResponse(json.dumps(value))
        try:
            return read_response(value)
        except UnknownFormError as error:
            way_out = "write its text there"
            if isinstance(value, list):
                way_out = "write a row for each, and number them in a column draw"
            return SavedResponse(_json_text(row, column, "response", f"{error}; {way_out}"))

    def reference(self, row: Row, column: str) -> str | tuple[str, ...] | None:
        """The reference in a column of a row."""
        value = self._value(row, column)
        if self.options.reads_json and isinstance(value, (list, dict)) and texts_of(value) is None:
            return json.dumps(value)
        if isinstance(value, str) and (word := value.strip().lower()) in ("true", "false"):
            value = word == "true"  # a CSV file has no other way to write it
        if not isinstance(value, (list, dict, bool)):
            return text_of(value)
        try:
            return accepted_texts(value)
        except UnknownFormError as error:
            return _json_text(row, column, "reference", f"{error}; write the accepted texts there as a list")

    def _value(self, row: Row, column: str) -> Any:
        value = row[0][column]
        return parsed_text(value) if column in self.spelled and isinstance(value, str) else value


def _json_text(row: Row, column: str, role: str, problem: str) -> str:
    """The text of a cell that is an object in JSON: models write that, and pandas writes Python."""
    text = row[0][column]
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(text, str) and isinstance(json.loads(text), dict):
            return str(text_of(text))
    raise InputError(
        f"{row[1]}: the {role} in the column {visible(column)} is {problem}, or name another column with --column "
        f"{role}=NAME"
    )


def _spelled_columns(path: Path, names: Sequence[str], options: LogOptions) -> frozenset[str]:
    """The columns whose texts all spell lists or objects: if only some do, they are what a model wrote."""
    # The responses that a metric for JSON reads, and its references, are JSON.
    names = [] if options.reads_json else list(dict.fromkeys(names))
    left, filled = set(names), set[str]()
    for row in rows_of(path, names, []) if names else ():
        values = {} if isinstance(row, LeftOut) else {name: row[0][name] for name in left}
        filled |= {name for name, value in values.items() if value is not None}
        left -= {name for name, value in values.items() if value is not None and parsed_cell(value) is None}
        if not left:
            break
    return frozenset(left & filled)


def _long(
    path: Path, columns: Mapping[str, str], _models: Sequence[str], reader: _ValueReader, notes: Notes
) -> Iterator[LogRecord | LeftOut]:
    stem, ids = stem_of(path), set[str]()
    # Without these columns all rows are one model's, and each question occurs once.
    is_one_model = not columns.keys() & {"model", "draw"}
    for row in rows_of(path, list(dict.fromkeys(columns.values())), notes):
        record = row if isinstance(row, LeftOut) else _record(row, columns, stem, reader)
        if is_one_model and isinstance(record, LogRecord):
            if record.id in ids and "id" in columns:
                raise InputError(
                    f"{record.place}: the id {shortened(record.id, 40)!r} occurs a second time, and no column is known "
                    "for the model; give --column model=NAME, or --column draw=NAME for several responses of one model"
                )
            ids.add(record.id)
        yield record


def _record(row: Row, columns: Mapping[str, str], stem: str, reader: _ValueReader) -> LogRecord | LeftOut:
    """The record of a row in the long form."""
    value = partial(_value, row[0], columns)
    question = _question(row, columns, None, reader)
    model = stem if "model" not in columns else text_of(value("model"))
    if isinstance(question, LeftOut):
        return question
    if model is None:
        return LeftOut("the model's name is missing", row[1])
    said = reader.response(row, columns["response"]) if "response" in columns else SavedResponse()
    thinking = text_of(value("thinking")) or said.all_thinking
    details = object_at(said.usage, "completion_tokens_details")
    thinking_tokens = count_of(value("thinking_tokens")) or count_of(details.get("reasoning_tokens")) or 0
    dollars = amount_of(value("dollars"))
    is_scored = "score" in columns and not reader.options.is_rescored
    score = reader.options.scores.read(value("score"), model) if is_scored else None
    return replace(
        question,
        model=model,
        # Tables have an empty cell where a model wrote nothing.
        response=(said.text or "") if "response" in columns else None,
        extracted=text_of(value("extracted")),
        score=score,
        metric=visible(columns["score"]) if "score" in columns else None,
        length=count_of(value("length")),
        tokens=count_of(value("tokens")) or _tokens(said, "completion_tokens", "output_tokens", "candidatesTokenCount"),
        prompt_tokens=count_of(value("prompt_tokens"))
        or _tokens(said, "prompt_tokens", "input_tokens", "promptTokenCount"),
        seconds=amount_of(value("seconds")),
        dollars=dollars if dollars is not None else amount_of(said.usage.get("cost")),
        thinking=thinking,
        # Of a thinking that is shown, the text says whether it is more than white space.
        thought=has_thought(thinking, thinking_tokens) or (not thinking and bool(amount_of(value("thinking_length")))),
        cut=SavedResponse(finish=said.finish or value("finish")).is_cut,
        draw=count_of(value("draw")) or 0,
        error=line_of(said.error) if score is None else None,
    )


def _tokens(said: SavedResponse, *names: str) -> int | None:
    """The count of tokens that a provider gave by one of these names."""
    return next((count for name in names if (count := count_of(said.usage.get(name)))), None)


def _wide(
    path: Path, columns: Mapping[str, str], models: Sequence[str], reader: _ValueReader, notes: Notes
) -> Iterator[LogRecord | LeftOut]:
    options = reader.options
    # Read twice: only all values together tell whether they are scores.
    values = [
        value
        for row in rows_of(path, models, [])
        if not isinstance(row, LeftOut)
        for value in row[0].values()
        if value is not None
    ]
    read = sum(options.scores.is_score(value) for value in values)
    # Without a reference, responses could not be scored: if the values are few, or many are scores, the others cannot
    # be read.
    kinds = {str(value)[:100] for value in values}
    most = _MOST_GRADES if None not in map(as_number, kinds) else _MOST_WORDS
    is_few = "reference" not in columns and len(kinds) <= most
    is_many = "reference" not in columns and 5 * read > len(values)
    are_scores = options.needs_score and not options.is_rescored and (read == len(values) or is_few or is_many)
    if options.needs_score and not are_scores and "reference" not in columns:
        raise InputError(f"{path}: no column is known for the reference of the responses; give --column reference=NAME")
    what = "scores" if are_scores else "responses"
    notes.append(f"{path}: the columns of the {len(models)} models have {what}, by their values")
    for number, row in enumerate(rows_of(path, [*dict.fromkeys(columns.values()), *models], notes)):
        if isinstance(row, LeftOut):
            yield row
            continue
        question = _question(row, columns, str(number), reader)
        if isinstance(question, LeftOut):
            yield question
            continue
        for model in models:
            if are_scores:
                yield replace(question, model=model, score=options.scores.read(row[0][model], model))
            else:
                said = reader.response(row, model)
                yield replace(
                    question,
                    model=model,
                    response=said.text or "",
                    thinking=said.all_thinking,
                    cut=said.is_cut,
                    error=line_of(said.error),
                )


def _question(row: Row, columns: Mapping[str, str], fallback: str | None, reader: _ValueReader) -> LogRecord | LeftOut:
    """What the records of one question have in common, without the model's name; the last id is `fallback`."""
    value = partial(_value, row[0], columns)
    question, number = text_of(value("question")), id_text(value("id"))
    if "id" not in columns:
        # A short hash, because ids are shown; that two questions are equal is checked with their texts.
        number = fallback if question is None else hashlib.sha256(question.encode()).hexdigest()[:12]
    if number is None:
        return LeftOut("the question's id or text is missing", row[1])
    return LogRecord(
        model="",
        task=text_of(value("task")),
        id=number,
        place=row[1],
        question=question,
        reference=reader.reference(row, columns["reference"]) if "reference" in columns else None,
        choices=known_options(value("choices")),
        group=text_of(value("group")),
        cluster=text_of(value("cluster")),
    )


def _value(row: Mapping[str, Any], columns: Mapping[str, str], role: str) -> Any:
    return row[columns[role]] if role in columns else None
