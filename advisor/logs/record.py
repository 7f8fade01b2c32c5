"""One response as a log has it, and what a user says about the logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from advisor.logs.scores import ScoreReader
from advisor.tables.rows import LeftOut
from advisor.tables.streams import Notes
from ensemble.errors import InputError


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One response of one model to one question. Texts are untrusted. None: the log does not have the value.

    Attributes:
        model: The name of the model.
        id: The question's id in the log, as text; unique within a part if the log counts each part from 0.
        place: File and line or number, for messages.
        task: The name of the evaluation, without the parts that it has.
        question: The question's text, or the whole prompt.
        reference: The right answer, or all that are accepted.
        choices: The options of a choice question.
        response: What the model wrote; its thinking may be in it, at the start.
        extracted: The answer that the log's tool read from the response; None also if it found none.
        score: 0 (wrong) to 1 (right).
        metric: The name of the score.
        length: Characters of the response, for logs without its text.
        group: The part of the task that the question belongs to.
        cluster: What the question shares with others, for example its passage: the field that the user names.
        tokens: Tokens that the model wrote, those of its thinking included.
        thinking: What the model thought before its answer, where the log has it apart.
        thought: Whether it thought, also where the log does not have the text.
        prompt_tokens: Tokens of the prompt.
        seconds: Time that the model took.
        dollars: What the response cost.
        draw: The number of the response, from 0, if a model answered a question several times.
        cut: Whether the response was cut off at a token limit.
        error: Why the model gave no response, in one line.
    """

    model: str
    id: str
    place: str
    task: str | None = None
    question: str | None = None
    reference: str | tuple[str, ...] | None = None
    choices: tuple[str, ...] = ()
    response: str | None = None
    extracted: str | None = None
    score: float | None = None
    metric: str | None = None
    length: int | None = None
    group: str | None = None
    cluster: str | None = None
    tokens: int | None = None
    thinking: str | None = None
    thought: bool = False
    prompt_tokens: int | None = None
    seconds: float | None = None
    dollars: float | None = None
    draw: int = 0
    cut: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What a user says about the logs.

    Attributes:
        score: The score to use where a log has several, for example ``exact_match,flexible-extract`` (metric and
            filter of lm-eval) or a scorer of inspect; None for the first.
        cluster: The field of the log that says which questions belong together; None if no field does. ``group`` is
            the part of the task.
        evaluation: Glob of the evaluation to take where logs have several; None if there is only one.
        columns: For tables, the column of each role; see :mod:`advisor.logs.table`.
        model_columns: For tables with one column per model, globs of these columns.
        needs_score: Whether a response must have a score, or a reference for it: not where labels will give it.
        is_rescored: Whether a metric scores the responses again, so that a response without a score is kept.
        scores: Reads the scores, and counts those that it cannot read.
    """

    score: str | None = None
    cluster: str | None = None
    evaluation: str | None = None
    columns: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    model_columns: tuple[str, ...] = ()
    needs_score: bool = True
    is_rescored: bool = False
    scores: ScoreReader = field(default_factory=ScoreReader, compare=False)


def usable(path: Path, found: Iterable[LogRecord | LeftOut], notes: Notes) -> Iterator[LogRecord]:
    """The records of a file without those that are left out, which are counted in one note for each reason.

    Raises:
        InputError: The file has no record that can be used.
    """
    left: dict[str, tuple[int, str]] = {}
    kept = 0
    for record in found:
        if isinstance(record, LogRecord):
            kept += 1
            yield record
        else:
            count, first = left.get(record.reason, (0, record.place))
            left[record.reason] = (count + 1, first)
    if not kept:
        reason, place = next(((reason, first) for reason, (_, first) in left.items()), ("it is empty", str(path)))
        raise InputError(f"{place}: no record of this log can be used: {reason}; give another file")
    for reason, (count, first) in left.items():
        what = "1 record is" if count == 1 else f"{count:,} records are"
        notes.append(f"{path}: {what} left out: {reason}; the first is {first}")
