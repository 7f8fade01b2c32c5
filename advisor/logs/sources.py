"""Finds the logs in files, folders and globs, and reads them in the format that their content has: as records."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, cast

from advisor.logs.values import check_name
from advisor.tasks.tables.rows import LeftOut
from advisor.tasks.tables.streams import Notes, content_of, head_of, json_lines, outline
from advisor.tasks.tables.values import ScoreReader
from ensemble.common.files import exists
from ensemble.common.text import counted
from ensemble.errors import InputError
from ensemble.plugins import Plugins

# In this order the formats look at each file: the most specific form first, any table last. Those of other packages
# come before the table.
FORMATS = ("run_folder", "pool", "lm_eval", "inspect", "helm", "every_eval_ever", "table")
MOST_FILES = 100_000
"""Files of all folders together."""


class LogFile:
    """A file that may be a log; it is `given` if the user named it, and otherwise it was found in a folder."""

    def __init__(self, path: Path, *, given: bool) -> None:
        self.path, self.given = path, given

    @cached_property
    def head(self) -> bytes:
        """The first 64 kB, decompressed."""
        return head_of(self.path)

    @cached_property
    def outline(self) -> frozenset[str]:
        """The keys of the first JSON value in the head; see :func:`advisor.tasks.tables.streams.outline`."""
        return outline(self.head)

    @cached_property
    def first_object(self) -> dict[str, Any]:
        """The object on the first line of a file with JSON lines; empty for other files."""
        if not self.head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
            return {}
        try:
            # Not from the head, because a line may be longer.
            value, place = next(json_lines(self.path, []), ({}, ""))
        except InputError:
            return {}
        # A first line that is not JSON is skipped; the file is something else then.
        return value if place.endswith(":1") else {}


@dataclass(frozen=True, slots=True)
class LogSource:
    """A file with responses."""

    format: str
    path: Path  # the file
    companions: tuple[Path, ...] = ()  # files that it is read with, for example the results that name the model


class LogFormat(Protocol):
    """A module that reads one format.

    Attributes:
        SUMMARY: The format in one line, for lists and messages.
    """

    SUMMARY: str

    def recognise(self, files: Sequence[LogFile], notes: Notes) -> list[LogSource]:
        """The sources among some files, by their content. A file without responses gets a note and no source."""

    def read(self, source: LogSource, options: LogOptions, notes: Notes) -> Iterator[LogRecord | LeftOut]:
        """The records of a source, and what cannot be used of it.

        Raises:
            InputError: The file cannot be read, or lacks what every record needs.
        """


@cache
def plugins() -> Plugins:
    """The formats of other packages; see :mod:`ensemble.plugins`."""
    return Plugins("log_format", FORMATS, ("SUMMARY", "recognise", "read"))


def format_names() -> tuple[str, ...]:
    """The names of all formats, in the order in which they look at a file."""
    return (*FORMATS[:-1], *plugins().names, FORMATS[-1])


def get_format(name: str) -> LogFormat:
    """The module of a format."""
    if name in plugins().names:
        return cast(LogFormat, plugins().load(name))
    return cast(LogFormat, import_module(f"advisor.logs.{name}"))


def find_sources(paths: Sequence[str], notes: Notes) -> list[LogSource]:
    """The logs in files, folders (with all folders in them) and globs; the notes say which files are no logs."""
    left = [file for path in paths for file in _files(path)]
    left = list({file.path.resolve(): file for file in left}.values())  # one that is named twice is read once
    # In the order of the paths: of two answers of a model to a question the first counts.
    order = {file.path: place for place, file in enumerate(left)}
    sources: list[LogSource] = []
    for name in format_names():
        try:
            log_format = get_format(name)
            with plugins().running(name):
                found = log_format.recognise(left, notes)
                taken = {path for source in found for path in (source.path, *source.companions)}
        except InputError as error:
            if name in FORMATS:
                raise
            # Those that cannot be loaded are noted below, together with those that have no usable name.
            if name not in plugins().problems:
                notes.append(str(error))
            continue
        left = [file for file in left if file.path not in taken]
        sources.extend(found)
    # A package that is broken must not end the reading of other formats.
    notes.extend(plugins().problems.values())
    known = ", ".join(map(plugins().label, format_names()))
    # A file in a folder may be anything, but one that the user named is meant.
    if wrong := next((file for file in left if file.given), None):
        content_of(wrong.path, 2**20)  # refuses a damaged file
        if not wrong.head.strip():
            raise InputError(f"{wrong.path}: the file is empty, or it cannot be read; give another file")
        raise InputError(
            f"{wrong.path}: its content is in none of the known formats with responses ({known}); give the columns of "
            "a table with --column, or another file"
        )
    if not sources:
        raise InputError(f"{paths[0]}: no log with responses in it; the known formats are {known}")
    # A page beside a log is a report, not a log that cannot be read.
    if left := [file for file in left if file.path.suffix != ".html"]:
        notes.append(f"not read: {counted(len(left), 'file')} without a log of responses; the first is {left[0].path}")
    return sorted(sources, key=lambda source: order[source.path])


def _files(text: str) -> Iterator[LogFile]:
    # Not Path.expanduser, which fails for an unknown user.
    path = Path(os.path.expanduser(text))  # noqa: PTH111
    # Not Path.glob, which takes no absolute patterns. A link that leads nowhere matches, too.
    matches = [] if exists(path) else sorted(filter(exists, glob.glob(str(path), recursive=True)))  # noqa: PTH207
    if not matches and not exists(path):
        raise InputError(f"{text}: no such file or folder, and no file matches it as a glob; correct the path")
    for found in [Path(match) for match in matches] or [path]:
        if found.is_dir():
            yield from _files_in(found)
        else:
            yield LogFile(found, given=found is path)


def _files_in(folder: Path) -> Iterator[LogFile]:
    # Links to folders are not followed, so that a link to a parent does not end in a circle.
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    if len(paths) > MOST_FILES:
        raise InputError(f"{folder}: it has over {MOST_FILES:,} files; give the folder of the logs")
    for path in paths:
        yield LogFile(path, given=False)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One response of one model to one question. Texts are untrusted. None: the log does not have the value."""

    model: str
    id: str  # the question's id in the log, as text; unique within a part if the log counts each part from 0
    place: str  # file and line or number, for messages
    task: str | None = None  # the name of the evaluation, without the parts that it has
    question: str | None = None  # the question's text, or the whole prompt
    reference: str | tuple[str, ...] | None = None  # the right answer, or all that are accepted
    choices: tuple[str, ...] = ()  # the options of a choice question
    response: str | None = None  # what the model wrote; its thinking may be in it, at the start
    extracted: str | None = None  # the answer that the log's tool read from the response; None also if it found none
    score: float | None = None  # 0 (wrong) to 1 (right)
    metric: str | None = None
    length: int | None = None  # characters of the response, for logs without its text
    group: str | None = None  # the part of the task that the question belongs to
    # What the question shares with others, for example its passage: the field that the user names.
    cluster: str | None = None
    tokens: int | None = None  # tokens that the model wrote, those of its thinking included
    thinking: str | None = None  # what the model thought before its answer, where the log has it apart
    thought: bool = False  # whether it thought, also where the log does not have the text
    prompt_tokens: int | None = None  # tokens of the prompt
    seconds: float | None = None  # time that the model took
    dollars: float | None = None  # what the response cost
    draw: int = 0  # the number of the response, from 0, if a model answered a question several times
    cut: bool = False  # whether the response was cut off at a token limit
    error: str | None = None  # why the model gave no response, in one line


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What a user says about the logs."""

    # The score to use where a log has several, for example ``exact_match,flexible-extract`` (metric and filter of
    # lm-eval) or a scorer of inspect; None for the first.
    score: str | None = None
    # The field of the log that says which questions belong together; None if no field does. ``group`` is the part
    # of the task.
    cluster: str | None = None
    evaluation: str | None = None  # Glob of the evaluation to take where logs have several; None if there is only one
    # For tables, the column of each role; see :mod:`advisor.logs.table`.
    columns: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    model_columns: tuple[str, ...] = ()  # for tables with one column per model, globs of these columns
    # Whether a response must have a score, or a reference for it: not where labels will give it.
    needs_score: bool = True
    is_rescored: bool = False  # whether a metric scores the responses again, so that a response without a score is kept
    reads_json: bool = False  # whether this metric reads JSON, so that an object may be a response
    # Reads the scores, and counts those that it cannot read.
    scores: ScoreReader = field(default_factory=ScoreReader, compare=False)


def records_of(source: LogSource, options: LogOptions, notes: Notes) -> Iterator[LogRecord]:
    """The records of a source without those that are left out, which are counted in one note for each reason."""
    path, models = source.path, set[str]()
    left: dict[str, tuple[int, str]] = {}
    for record in get_format(source.format).read(source, options, notes):
        if isinstance(record, LogRecord):
            if record.model not in models:
                models.add(check_name(record.model, record.place))
            yield record
        else:
            count, first = left.get(record.reason, (0, record.place))
            left[record.reason] = (count + 1, first)
    if not models:
        reason, place = next(((reason, first) for reason, (_, first) in left.items()), ("it is empty", str(path)))
        raise InputError(f"{place}: no record of this log can be used: {reason}; give another file")
    for reason, (count, first) in left.items():
        notes.append(f"{path}: {counted(count, 'record', 'is')} left out: {reason}; the first is {first}")
