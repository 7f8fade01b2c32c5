"""The table of ``advisor label``: written as CSV or JSON Lines, and read again after people have filled it in."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from advisor.advice.labels import Labels, OpenQuestion, Round
from advisor.progress import Progress
from advisor.runs.schema.samples import LabelRow
from advisor.strategies.vote_reader import VOTE_METRICS
from advisor.tables.rows import LeftOut, Row, columns_of, rows_of
from advisor.tables.streams import Notes
from advisor.tables.values import text_of
from advisor.tasks.metrics import get_metric
from advisor.tasks.task import Task
from ensemble.common.files import write_text
from ensemble.common.schema import validated, written
from ensemble.common.text import counted, shortened
from ensemble.errors import InputError, UniteError
from reports.formats import as_csv

_NO_ANSWER = "(no answer)"
_NONE = "none"
_LABEL = ("key", "round", "right", "reference")
_MOST_FAULTS = 20  # that are shown, each in a line
_WAY_OUT = "correct the row, or write the table again with `advisor label`"


class LabelTable(NamedTuple):
    """What people have filled in.

    Attributes:
        labels: The right answers of each question that has a label.
        rows: The rows with a label, by key, to be written again.
    """

    labels: Labels
    rows: Mapping[str, LabelRow]


def write_table(path: Path, questions: Sequence[OpenQuestion], earlier: Mapping[str, LabelRow]) -> None:
    """Write the questions to a table, with the labels that are known.

    Args:
        path: The file; its extension decides its format.
        questions: The questions, in their order.
        earlier: Rows with a label, by key.

    Raises:
        UniteError: The file cannot be written.
    """
    rows = []
    for question in questions:
        known = earlier.get(question.key)
        rows.append(
            LabelRow(
                key=question.key,
                round=question.round,
                question=_usable(question.question),
                answers={
                    letter: None if answer is None else _usable(answer)
                    for letter, answer in zip(_letters(len(question.answers)), question.answers, strict=True)
                },
                right=known.right if known else None,
                reference=known.reference if known else None,
            )
        )
    if path.suffix == ".jsonl":
        text = "".join(f"{json.dumps(written(row), ensure_ascii=False)}\n" for row in rows)
    else:
        most = _letters(max((len(row.answers) for row in rows), default=0))
        text = as_csv(
            [
                {
                    "key": row.key,
                    "round": row.round,
                    "question": row.question,
                    **{letter: _shown(row.answers[letter]) if letter in row.answers else "" for letter in most},
                    "right": row.right,
                    "reference": row.reference,
                }
                for row in rows
            ]
        )
    try:
        write_text(path, text)
    except OSError as error:
        raise UniteError(f"{path}: cannot be written ({error.strerror or error}); give another --out") from error


def label_columns(path: Path) -> list[str]:
    """The names of a table's columns.

    Raises:
        InputError: The file cannot be read, or lacks a column of labels.
    """
    names = columns_of(path)
    if missing := [name for name in _LABEL if name not in names and path.suffix != ".jsonl"]:
        raise InputError(f"{path}: it has no column {missing[0]}; give a table that `advisor label` wrote")
    return names


def read_table(
    path: Path, questions: Mapping[str, OpenQuestion], rounds: Sequence[Round], task: Task, progress: Progress
) -> LabelTable:
    """Read the labels of some rounds of a table. A row without a label is no fault.

    Args:
        path: The table, also one that a spreadsheet has saved, in any format of tables.
        questions: All questions of these rounds, by key.
        rounds: The rounds; rows of others are not looked at.
        task: Its metric compares answers with a reference.
        progress: Shows the rows that cannot be used, each in a line.

    Raises:
        InputError: The file cannot be read, or a row cannot be used.
    """
    names = label_columns(path)
    notes: Notes = []
    faults: list[str] = []
    labels: dict[str, frozenset[int]] = {}
    rows: dict[str, LabelRow] = {}
    places: dict[str, str] = {}
    answers = [name for name in names if name == "answers" or re.fullmatch("[A-Z]{1,2}", name)]
    for found in rows_of(path, [*_LABEL, *answers], notes):
        try:
            row, place = _row(found)
            if row.key in places:
                raise InputError(f"{place}: its question is in {places[row.key]}, too; leave out one of the rows")
            places[row.key] = place
            if row.round not in rounds:
                continue
            question = _question(row, place, questions)
            if question is not None:
                labels[row.key], rows[row.key] = _label(row, question, place, task), row
        except InputError as error:
            faults.append(str(error))
    for note in notes:
        progress.say(note)
    for fault in faults[:_MOST_FAULTS] if len(faults) > 1 else ():
        progress.say(fault)
    if faults:
        rest = f" (and {counted(len(faults) - 1, 'more row')} that cannot be used)" if len(faults) > 1 else ""
        raise InputError(f"{faults[0]}{rest}")
    return LabelTable(labels, rows)


def _row(found: Row | LeftOut) -> tuple[LabelRow, str]:
    if isinstance(found, LeftOut):
        raise InputError(f"{found.place}: {found.reason}; {_WAY_OUT}")
    values, place = found
    # A spreadsheet may have numbers in place of texts, and blanks.
    cells = {name: (text_of(values[name]) or "").strip() or None for name in _LABEL}
    given = values.get("answers")
    answers = (
        given if isinstance(given, dict) else {name: text_of(values[name]) for name in values if name not in _LABEL}
    )
    return validated(LabelRow, {**cells, "answers": answers}, place, _WAY_OUT, clean=False), place


def _question(row: LabelRow, place: str, questions: Mapping[str, OpenQuestion]) -> OpenQuestion | None:
    """The question of a row; None for a row without a label."""
    if row.right is None and row.reference is None:
        return None
    question = questions.get(row.key)
    if question is None:
        raise InputError(
            f"{place}: no question with these answers has the key {shortened(row.key, 20)!r}; give the models, logs, "
            "task and options that the table was written with, or write it again: the answers or earlier labels have "
            "changed"
        )
    for letter, answer in zip(_letters(len(question.answers)), question.answers, strict=True):
        if letter in row.answers and not _is_same(row.answers[letter], answer):
            raise InputError(
                f"{place}: answer {letter} is {shortened(row.answers[letter] or '', 40)!r}, and was "
                f"{shortened(answer or _NO_ANSWER, 40)!r} when the table was written; restore it"
            )
    return question


def _label(row: LabelRow, question: OpenQuestion, place: str, task: Task) -> frozenset[int]:
    """The places of the right answers."""
    if row.right is not None and row.reference is not None:
        raise InputError(f"{place}: it has both right and reference; empty one of them")
    if row.reference is not None:
        metric = get_metric(task.metric if task.metric in VOTE_METRICS else "exact_match")
        if (problem := metric.problem((row.reference,), question.choices)) is not None:
            raise InputError(f"{place}: {problem}; correct it")
        values = [
            0.0 if answer is None else metric.score(answer, (row.reference,), question.choices)[0]
            for answer in question.answers
        ]
        return frozenset(place for place, value in enumerate(values) if value == 1)
    words = re.split(r"[\s,;]+", (row.right or "").strip().strip("'"))
    letters = _letters(len(question.answers))
    if [word.lower() for word in words] == [_NONE]:
        return frozenset()
    if wrong := next((word for word in words if word.upper() not in letters), None):
        last = f" to {letters[-1]}" if len(letters) > 1 else ""
        raise InputError(f"{place}: right is {shortened(wrong, 20)!r}; give {letters[0]}{last}, or none")
    return frozenset(letters.index(word.upper()) for word in words)


def _letters(count: int) -> list[str]:
    """A, B, ..., Z, AA, AB, ..."""
    alphabet = string.ascii_uppercase
    return [*alphabet, *(first + second for first in alphabet for second in alphabet)][:count]


def _shown(answer: str | None) -> str:
    return _NO_ANSWER if answer is None else answer


def _usable(text: str) -> str:
    # Halves of surrogate pairs occur in JSON, and no file in UTF-8 can have them.
    return text.replace("\0", "").encode(errors="replace").decode()


def _is_same(cell: str | None, answer: str | None) -> bool:
    """Whether a cell has an answer as it was written; a spreadsheet may write a number in another way."""
    written_as, given = _usable(_shown(answer)).strip(), (cell or "").strip().removeprefix("'")
    if given in (written_as, written_as.removeprefix("'")) or (answer is None and cell is None):
        return True
    try:
        return float(given) == float(written_as)
    except ValueError:
        return " ".join(given.split()) == " ".join(written_as.removeprefix("'").split())
