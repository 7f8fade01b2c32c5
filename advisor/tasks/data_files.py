r"""Records from files: tables, JSON lines, a JSON array, or lines of plain text.

    dev.jsonl                                {"question": "1 + 1?", "answer": "2"}   one object a line
    dev.json                                 [{...}, {...}]   or an object whose only list is the records
    dev.csv, .tsv, .parquet, .xlsx           one record for each row; of Excel files the first sheet
    exported/train                           a split that `datasets.save_to_disk` wrote
    {source: eng.txt, target: ron.txt}       the lines of parallel text files, one field for each file
    dev.txt                                  lines, in the field `text`

All but Excel and Parquet files may be compressed: dev.csv.gz, dev.jsonl.xz.
"""

from __future__ import annotations

import json
import keyword
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from advisor.tasks.tables.rows import Row, checked_rows, columns_of, objects_of, stem_of
from advisor.tasks.tables.streams import Notes, content_of
from ensemble.common.files import exists
from ensemble.errors import InputError

LARGEST = 2**28
"""Bytes of the files of a split. As Python objects they are several times larger."""
_WAY_OUT = "give a data file"
_COMPRESSED = (".gz", ".xz", ".bz2")
TABLES = (".csv", ".tsv", ".parquet", ".xlsx", ".xlsm")
# Words that templates read as something else than a field.
_RESERVED = {*keyword.kwlist, "true", "false", "none", "loop", "self", "caller"}
_TRUTH = {"true": True, "false": False}
_LARGEST_WHOLE = 2**53  # floats hold every whole number up to here


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of a task's data, its place in the data, and the question that a task makes of it."""

    values: Mapping[str, object]  # the fields by name. Names that begin with ``_`` are added by this package
    place: str  # file and line, or data set and index, for messages
    part: str = ""  # stem of the file (or configuration of the data set) if the split has several, else empty
    index: int = 0  # counted from 0 within its file or data set
    # What all questions of a split have; the rest is rendered only for those that are drawn.
    id: str = ""  # unique in its split
    text: str = ""  # the rendered prompt, without shots
    choices: tuple[str, ...] = ()
    cluster: str | None = None

    def with_fields(self, **fields: object) -> Record:
        """The same record with fields added; they replace fields of the same name."""
        return replace(self, values={**self.values, **fields})


def is_field(name: str) -> bool:
    """Whether templates can read a field by this name."""
    return name.isidentifier() and name not in _RESERVED


def field_name(column: str) -> str:
    """The name that a template has for a column: ``Expected_Answer`` for the column "Expected Answer"."""
    if is_field(column):
        return column
    name = re.sub(r"\W+", "_", column.strip()).strip("_")
    return name if is_field(name) else f"column_{name}"


def make_record(values: Mapping[str, object], place: str, *, stem: str, part: str = "", index: int = 0) -> Record:
    """A record whose fields can all be named in templates: others are there a second time; `stem` is ``_part``."""
    fields: dict[str, object] = {"_part": stem}
    for name, value in values.items():
        fields[name] = value
        if field_name(name) not in values:
            fields[field_name(name)] = value
    return Record(fields, place, part, index)


def data_suffix(path: Path) -> str:
    """The extension that tells the form of a data file, in lower case: ``.jsonl`` for ``dev.jsonl.gz``."""
    return (path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path).suffix.lower()


def read_records(path: Path, part: str, notes: Notes) -> list[Record]:
    """Read one data file by its extension, or a folder that is a split of a saved data set."""
    kind = data_suffix(path)
    if path.is_dir() or kind in TABLES:
        rows: Iterable[Row] = _table_rows(path, notes)
    elif kind in (".jsonl", ".ndjson", ".json"):
        rows = _checked(path, objects_of(path, None))
    elif kind == ".txt":
        lines = _split_lines(read_text(path, LARGEST, _WAY_OUT))
        rows = (({"text": line}, f"{path}:{number}") for number, line in enumerate(lines, start=1))
    else:
        raise InputError(
            f"{path} is not a .csv, .tsv, .jsonl, .json, .parquet, .xlsx or .txt file; convert it to one of them"
        )
    stem = stem_of(path)
    return [make_record(values, place, stem=stem, part=part, index=index) for index, (values, place) in enumerate(rows)]


def read_parallel(paths: Mapping[str, Path]) -> list[Record]:
    """Read parallel text files: line n of every file belongs to record n, in one field for each file."""
    columns = {field: _split_lines(read_text(path, LARGEST, _WAY_OUT)) for field, path in paths.items()}
    lengths = {str(paths[field]): len(lines) for field, lines in columns.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{path} has {count}" for path, count in lengths.items())
        raise InputError(f"parallel files differ in length: {counts} lines; make them equal")
    first = next(iter(paths.values()))
    rows = zip(*columns.values(), strict=True)
    return [
        make_record(dict(zip(columns, row, strict=True)), f"{first}:{number}", stem=stem_of(first), index=number - 1)
        for number, row in enumerate(rows, start=1)
    ]


def read_text(path: Path, most: int, way_out: str) -> str:
    """The text of a file in UTF-8 of at most so many bytes, decompressed."""
    if not exists(path):
        raise InputError(f"{path} does not exist; {way_out}")
    content = content_of(path, most)
    if content is None:
        raise InputError(f"{path} is larger than {_size(most)}; {way_out}")
    try:
        # Bytes first: reading as text would turn "\r\n" and "\r" inside of lines into "\n". Files that Windows programs
        # write may begin with a byte order mark, which utf-8-sig removes.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 at byte {error.start}; convert it") from error


def check_files(paths: Iterable[Path], folder: Path, hint: str) -> None:
    """Check that files are regular files within the folder that a task may read, also behind links, and their size."""
    root, total = folder.resolve(), 0
    for path in paths:
        try:
            str(path).encode()
            inside, info = path.resolve().is_relative_to(root), path.stat()
        except UnicodeEncodeError as error:
            # The name would go into ids and prompts, which are written as UTF-8.
            raise InputError(f"{folder}: the file name {path.name!a} is not UTF-8; rename it") from error
        except FileNotFoundError as error:
            raise InputError(f"{path} does not exist; {hint}") from error
        except (OSError, RuntimeError) as error:  # RuntimeError: links that lead to each other, before Python 3.13
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{path} cannot be read: {reason}; {hint}") from error
        if not inside:
            raise InputError(f"{path} is a link that leads out of {folder}; copy the data into the folder")
        if not stat.S_ISREG(info.st_mode):
            raise InputError(f"{path} cannot be read: it is not a regular file; {hint}")
        total += info.st_size
        if total > LARGEST:
            together = "" if total == info.st_size else ", with the files before it"
            raise InputError(f"{path} is larger than {_size(LARGEST)}{together}; give fewer records")


def _size(count: int) -> str:
    return f"{count >> 20} MB" if count >> 20 else f"{count >> 10} kB"


def _split_lines(text: str) -> list[str]:
    # Not str.splitlines: real data has U+2028 and U+0085 inside of strings, and they end no line.
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _table_rows(path: Path, notes: Notes) -> list[Row]:
    # Tables with an index often have a column without a name for it.
    names = [name for name in columns_of(path) if name.strip()]
    rows = _checked(path, checked_rows(path, names, notes))
    if data_suffix(path) in (".csv", ".tsv"):
        _read_truth(rows)
    return _with_whole_numbers(rows)


def _read_truth(rows: Sequence[Row]) -> None:
    """Make true and false of the columns that have no other words: a CSV file has no other way to write them."""
    for name in rows[0][0] if rows else ():
        words = [None if values[name] is None else str(values[name]).lower() for values, _ in rows]
        if any(words) and set(words) <= {*_TRUTH, None}:
            for (values, _), word in zip(rows, words, strict=True):
                values[name] = None if word is None else _TRUTH[word]


def _with_whole_numbers(rows: list[Row]) -> list[Row]:
    """The rows with 7 for 7.0 in columns of whole numbers: libraries make floats of them if a value is missing."""
    kept: dict[str, bool] = {}
    for values, _ in rows:
        for name, value in values.items():
            if isinstance(value, float):
                whole = value.is_integer() and abs(value) < _LARGEST_WHOLE
                kept[name] = whole and kept.get(name, True)
    whole_columns = {name for name, is_whole in kept.items() if is_whole}
    for values, _ in rows:
        for name in whole_columns & values.keys():
            if isinstance(values[name], float):
                values[name] = int(values[name])
    return rows


def _checked(path: Path, rows: Iterable[Row]) -> list[Row]:
    """Rows that are not too large together, and have no half of a surrogate pair, over which tokenizers stumble."""
    kept, size = [], 0
    for values, place in rows:
        try:
            size += len(json.dumps(values, ensure_ascii=False).encode())
        except UnicodeEncodeError as error:
            raise InputError(f"{place}: not usable JSON: half a surrogate pair in a string; correct it") from error
        # The size of the file says little: compressed files, Parquet and Arrow repeat a text in a few bytes.
        if size > LARGEST:
            raise InputError(f"{path}: its records have more than {_size(LARGEST)}; give fewer records")
        kept.append((values, place))
    return kept
