"""Rows of tables in CSV, TSV, JSON, JSON Lines, Parquet and Excel files and in saved data sets, as a stream.

The kind of a file follows from its content. The first sheet of an Excel file that is neither hidden nor empty is
read; formulas have the values that the file keeps for them. A file that is one JSON object has its rows by column or
by row, as pandas writes them, or in its only list. CSV files are text in UTF-8, in UTF-16 with a byte order mark, or
else in cp1252; commas, semicolons, tabs or bars separate their columns.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, getincrementaldecoder
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from advisor.tasks.tables.libraries import MOST_COLUMNS, MOST_ROWS, ROWS_OF_TITLE, check_title
from advisor.tasks.tables.streams import (
    HEAD,
    LARGEST_ITEM,
    ZIP,
    Notes,
    head_of,
    json_items,
    json_lines,
    json_object,
    open_stream,
    zip_members,
)
from ensemble.common.extras import check_installed
from ensemble.common.limits import LimitExceededError, limited_process
from ensemble.common.text import shortened, visible
from ensemble.errors import InputError

Row = tuple[dict[str, Any], str]
"""Values by column, and the place."""
LIBRARY_SECONDS = 60.0
"""The time limit of what a library does at a time: the largest Excel files take a few seconds."""
LIBRARY_MEMORY = 6 * 2**30
"""The memory limit of libraries, in bytes: a saved data set is mapped into memory, and files have up to 4 GB."""
_DELIMITERS = ",\t;|"
_QUOTED = re.compile(r'"[^"]*"')
_HINT = re.compile(r"sep=(.)\s*")
"""A first line by which Excel knows the delimiter."""
_WINDOWS = "cp1252"
_LONGEST_LIST = 200  # characters
_LIBRARY_KINDS = {"excel": None, "parquet": "pyarrow", "saved": "datasets"}
"""What :mod:`advisor.tasks.tables.libraries` reads, and the package that must be installed for it."""
_SHEET = "xl/workbook.xml"
EXTENSIONS = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json", ".parquet", ".xlsx", ".xlsm", ".gz", ".xz", ".bz2")
"""How names of tables and of other data files end; the last three are of compressed files."""


class LeftOut(NamedTuple):
    """A record that cannot be used, with its place and what it lacks as the end of a sentence: "it has no score"."""

    reason: str
    place: str


def stem_of(path: Path) -> str:
    """The name of a data file without its extensions: ``dev`` for ``dev.jsonl.gz``."""
    stem = path.name
    while stem.lower().endswith(EXTENSIONS):
        stem = stem.rpartition(".")[0]
    return stem


def kind_of(head: bytes, path: Path) -> str | None:
    """The kind of a table by its decompressed head; None for other files.

    The extension decides only whether text is CSV, and the members of a zip file are looked up.
    """
    start = head.removeprefix(BOM_UTF8).lstrip()[:1]
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(ZIP):
        with suppress(InputError):
            return "excel" if _SHEET in zip_members(path) else None
        return None
    if start in (b"{", b"["):
        return "lines" if start == b"{" else "json"
    line = head.partition(b"\n")[0]
    if {".csv", ".tsv"} & set(path.suffixes):
        return "csv"
    return "csv" if b"\0" not in head and any(mark.encode() in line for mark in _DELIMITERS) else None


def columns_of(path: Path) -> list[str]:
    """The names of a table's columns, at most 2,000; of JSON, those of the first 100 objects."""
    kind = _kind(path)
    if kind == "csv":
        cells = (row for row, _ in islice(_cells(path), ROWS_OF_TITLE))
        names, rows = next(cells, []), list[list[str]]()
        with suppress(InputError):  # reading the rows says what is wrong in them
            rows.extend(cells)
        check_title(str(path), [names, *rows])
    elif kind in _LIBRARY_KINDS:
        if package := _LIBRARY_KINDS[kind]:
            check_installed(package, str(path))
        names = _call_library(path, "columns", kind, str(path))
    else:
        # Not the first object alone: tools leave out keys without a value.
        names = list(dict.fromkeys(name for row, _ in islice(objects_of(path, []), 100) for name in row))
    if len(names) > MOST_COLUMNS:
        raise InputError(f"{path}: it has {len(names):,} columns; give a table with at most {MOST_COLUMNS:,}")
    return names


def rows_of(path: Path, columns: Sequence[str], notes: Notes) -> Iterator[Row | LeftOut]:
    """The rows of a table, with some of its columns. Cells without a value are None. The notes say what is left out."""
    names = columns_of(path)
    if twice := next((name for name in columns if names.count(name) > 1), None):
        raise InputError(f"{path}: the column {visible(twice)} occurs twice; rename one")
    kind = _kind(path)
    if kind == "csv":
        rows: Iterable[Row | LeftOut] = _csv_rows(path, names, columns)
        if _encoding(path) == _WINDOWS:
            notes.append(f"{path}: not UTF-8 text; it is read as {_WINDOWS} (Windows, Western Europe)")
    elif kind in _LIBRARY_KINDS:
        rows = _library_rows(kind, path, columns)
        sheet, others = _call_library(path, "sheets", str(path)) if kind == "excel" else ("", [])
        if others:
            listed = shortened(", ".join(map(visible, others)), _LONGEST_LIST)
            notes.append(f"{path}: of its {len(others) + 1} sheets only {visible(sheet)} was read, and not {listed}")
    else:
        rows = (({name: row.get(name) for name in columns}, place) for row, place in objects_of(path, notes))
    for number, row in enumerate(rows, start=1):
        if number > MOST_ROWS:
            raise InputError(f"{path}: it has over {MOST_ROWS:,} rows; split it")
        yield row if isinstance(row, LeftOut) else ({name: plain(value) for name, value in row[0].items()}, row[1])


def checked_rows(path: Path, columns: Sequence[str], notes: Notes) -> Iterator[Row]:
    """The rows of a table, as :func:`rows_of` has them; a row that it leaves out is an InputError."""
    for row in rows_of(path, columns, notes):
        if isinstance(row, LeftOut):
            raise InputError(f"{row.place}: {row.reason}; correct it, or quote the cells that have commas")
        yield row


def _kind(path: Path) -> str:
    if path.is_dir():
        # It also checks that no file outside of the folder is named.
        saved_files(path)
        return "saved"
    with open_stream(path) as stream:
        kind = kind_of(stream.read(HEAD), path)
    if kind is None:
        raise InputError(f"{path}: it is not a table in CSV, JSON, JSON Lines, Parquet or Excel (.xlsx); convert it")
    return kind


def plain(value: Any) -> Any:
    """A value, or None for what stands for "no value": NaN, and an empty text."""
    return None if value == "" or value != value else value  # noqa: PLR0124  # true only for NaN


def _library_rows(kind: str, path: Path, columns: Sequence[str]) -> Iterator[Row]:
    reading = _call_library(path, "open_rows", kind, str(path), list(columns))
    try:
        while batch := _call_library(path, "next_rows", reading):
            numbers, given = batch
            # Each text is one object, however often it occurs.
            cells = [
                each if isinstance(each, list) else [None if n is None else each["values"][n] for n in each["indices"]]
                for each in given
            ]
            for number, *values in zip(numbers, *cells, strict=True):
                yield dict(zip(columns, values, strict=True)), f"{path} (row {number})"
    finally:
        _call_library(path, "close_rows", reading)


def _call_library(path: Path, function: str, *arguments: Any) -> Any:
    try:
        process = limited_process(LIBRARY_MEMORY)
        return process.call(f"advisor.tasks.tables.libraries:{function}", *arguments, seconds=LIBRARY_SECONDS)
    except LimitExceededError as error:
        raise InputError(f"{path}: {error}; give another file, or a smaller part of it") from error


def objects_of(path: Path, notes: Notes | None) -> Iterator[Row]:
    """The objects of a file with JSON Lines, or with one JSON list or object; without notes other values are errors."""
    if head_of(path).removeprefix(BOM_UTF8).lstrip()[:1] != b"[":
        whole = _rows_of_object(path)
        yield from json_lines(path, notes) if whole is None else whole
        return
    broken: list[str] = []
    for item, place in json_items(path):
        if isinstance(item, dict):
            yield item, place
        elif notes is None:
            raise InputError(f'{place}: a record must be a JSON object such as {{"question": ...}}; correct it')
        else:
            broken.append(place)
    if broken and notes is not None:
        notes.append(
            f"{path}: {len(broken):,} elements are left out, which are not JSON objects; the first: {broken[0]}"
        )


def _rows_of_object(path: Path) -> list[Row] | None:
    """The rows in a file that is one JSON object; None for JSON Lines."""
    first, _, rest = head_of(path).partition(b"\n")
    try:
        # Of JSON Lines the first line is an object. A row alone is one, too.
        json.loads(first)
        is_row = True
    except (ValueError, RecursionError):
        is_row = False
    try:
        value = {} if is_row and rest.strip() else json_object(path)
    except InputError:
        return None
    rows = _rows_in(value)
    if rows is None and not is_row:
        raise InputError(f"{path} holds no list of records; make it a JSON array, or an object with one list")
    return None if rows is None else [(row, f"{path} (row {number})") for number, row in enumerate(rows, start=1)]


def _rows_in(value: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The rows in an object, by column or by row, as pandas writes them, or in its only list; None without rows."""
    columns, data = value.get("columns"), value.get("data")
    if isinstance(columns, list) and isinstance(data, list) and all(isinstance(row, list) for row in data):
        return [dict(zip(map(str, columns), row, strict=False)) for row in data]
    inner = list(value.values())
    if inner and all(isinstance(each, dict) and each for each in inner):
        if all(key.isdecimal() for key in inner[0]):
            return [{name: cells.get(key) for name, cells in value.items()} for key in inner[0]]
        return [{"id": key, **row} for key, row in value.items()]
    lists = [each for each in inner if isinstance(each, list)]
    if len(inner) > 1 and len(lists) == len(inner) and len(set(map(len, lists))) == 1:
        return [dict(zip(value, cells, strict=True)) for cells in zip(*lists, strict=True)]
    if len(lists) == 1 and lists[0] and all(isinstance(row, dict) for row in lists[0]):
        return lists[0]
    return None


def _cells(path: Path) -> Iterator[tuple[list[str], int]]:
    """The rows of a CSV file, the header first, each with the number of its last line."""
    csv.field_size_limit(LARGEST_ITEM)  # of all readers of this process; the default is 131,072
    with open_stream(path) as stream:
        text = io.TextIOWrapper(io.BufferedReader(stream, 2**16), encoding=_encoding(path), newline="")
        skipped = number = 0
        try:
            header = text.readline()
            if hint := _HINT.fullmatch(header):
                skipped, header = 1, text.readline()
            plain_header = _QUOTED.sub("", header)
            # The first of them if it has no delimiter.
            delimiter = hint[1] if hint else max(_DELIMITERS, key=plain_header.count)
            # Strict: a quote that is never closed would silently take all rows after it into one cell.
            reader = csv.reader(chain([header], text), delimiter=delimiter, strict=True)
            for row in reader:
                number = reader.line_num
                stream.next_item()
                yield row, number + skipped
        except csv.Error as error:
            raise InputError(f"{path}:{number + skipped + 1}: not CSV ({error}); write the table again") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: neither UTF-8 nor cp1252 text; save the table as UTF-8") from error


def _encoding(path: Path) -> str:
    """The encoding of a text file. The whole file decides: rows of the start may have ASCII characters only."""
    with open_stream(path) as stream:
        piece = stream.read(HEAD)
        if piece.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            return "utf-16"
        decoder = getincrementaldecoder("utf-8")()
        try:
            while piece:
                decoder.decode(piece)
                stream.next_item()
                piece = stream.read(2**20)
        except UnicodeDecodeError:
            return _WINDOWS
    return "utf-8-sig"


def _csv_rows(path: Path, names: Sequence[str], columns: Sequence[str]) -> Iterator[Row | LeftOut]:
    places = [names.index(name) for name in columns]
    for row, number in islice(_cells(path), 1, None):
        if len(row) == len(names) and any(row):
            yield {name: row[place] for name, place in zip(columns, places, strict=True)}, f"{path}:{number}"
        # An empty line is no row, and a spreadsheet may write the cells of one as commas.
        elif any(row):
            yield LeftOut("the row has more or fewer cells than the header", f"{path}:{number}")


_SPLITS, _STATE = "dataset_dict.json", "state.json"


def is_saved(folder: Path) -> bool:
    """Whether a folder is a data set, or one split of it, that ``save_to_disk`` wrote."""
    # Not Path.is_file, which raises an error for a name that is too long.
    return any(os.path.isfile(folder / name) for name in (_SPLITS, _STATE))  # noqa: PTH113


def saved_splits(folder: Path) -> list[str]:
    """The splits of a data set, each a folder in this one; empty if the folder is itself one split."""
    if not (folder / _SPLITS).is_file():
        return []
    names = json_object(folder / _SPLITS).get("splits")
    # A name with a slash would lead out of the folder.
    if not isinstance(names, list) or not all(isinstance(name, str) and _is_name(name) for name in names):
        raise InputError(f"{folder / _SPLITS}: `splits` is not a list of names of folders; save the data set again")
    return names


def saved_files(folder: Path) -> list[Path]:
    """The Arrow files of one split, in their order."""
    if not (folder / _STATE).is_file():
        splits = saved_splits(folder)
        way_out = f"give one of its splits, for example {folder / splits[0]}" if splits else "give another folder"
        raise InputError(f"{folder} is not one split of a data set that datasets.save_to_disk wrote; {way_out}")
    entries = json_object(folder / _STATE).get("_data_files")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries or ()]
    if not all(isinstance(name, str) and _is_name(name) for name in names):
        raise InputError(f"{folder / _STATE}: `_data_files` is not a list of file names; save the data set again")
    return [folder / str(name) for name in names]


def _is_name(name: str) -> bool:
    return Path(name).name == name and "\0" not in name
