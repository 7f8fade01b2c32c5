"""What libraries in C++ and Rust read: Parquet files, Excel files, and data sets that ``datasets.save_to_disk`` wrote.

These libraries can crash, or expand a few bytes to gigabytes, on a file made for that. So this module runs in a child
process with limits (:mod:`ensemble.common.limits`), which :mod:`advisor.tasks.tables.rows` calls.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from ensemble.common.text import shortened, visible
from ensemble.errors import InputError

MOST_COLUMNS = 2_000
MOST_ROWS = 20_000_000
MOST_SHEET_ROWS = 2**20
"""Excel allows no more."""
LARGEST_BOOK = 2**27
"""Bytes that the sheets and texts of an Excel file may expand to."""
LARGEST_PART = 2**24
"""Bytes that each other part of it, such as its styles, may expand to."""
ROWS_OF_TITLE = 20
"""Rows by which a title is known; most of those below it have several values."""
LARGEST_ROW_GROUP = 2**30
"""Bytes of a row group of a Parquet file before compression: its reader expands pages of it at a time."""
Column = list[Any] | dict[str, list[Any]]
"""The values of some rows; texts that repeat are given once: {"values": ["a", "b"], "indices": [0, 0, 1, null]}."""
Batch = tuple[list[int], list[Column]]
"""The numbers of some rows, and their values by column."""
_BATCH = 1_000
_WHOLE = 2**53
_XML = (".xml", ".rels")
_UNSAVED = re.compile(
    rb"""<(?:\w+:)?c\s[^>]*?\br="([A-Z]{1,3})(\d{1,7})"[^>]*>\s*     # a cell
        <(?:\w+:)?f\b[^>]*(?:/>|>[^<]*</(?:\w+:)?f>)\s*              # with a formula
        (?:<(?:\w+:)?v\s*/>|<(?:\w+:)?v>\s*</(?:\w+:)?v>)?\s*</""",  # and an empty value, or none
    re.VERBOSE,
)
_NAMESPACE = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"

_open: dict[int, tuple[str, Iterator[Batch]]] = {}
_numbers = count()


def columns(kind: str, path: str) -> list[str]:
    """The names of the columns of a table: a ``parquet`` or ``excel`` file, or the folder of a ``saved`` split."""
    with _errors_of_library(path):
        if kind == "parquet":
            return list(_parquet(path).schema_arrow.names)
        if kind == "excel":
            return _book(path, _version(path)).names
        return list(_saved(path).column_names)


def open_rows(kind: str, path: str, names: Sequence[str]) -> int:
    """Begin to read these columns of a table; the number of the reading is for :func:`next_rows`."""
    with _errors_of_library(path):
        if kind == "parquet":
            # Threads would expand several columns at once.
            batches = _parquet(path).iter_batches(_BATCH, columns=list(names), use_threads=False)
            rows = _arrow_rows(batches, names)
        elif kind == "excel":
            rows = _sheet_rows(path, names)
        else:
            rows = _arrow_rows(_saved(path).with_format("arrow").iter(_BATCH), names)
    number = next(_numbers)
    _open[number] = path, rows
    return number


def next_rows(number: int) -> Batch | None:
    """The next rows of a reading; None after the last."""
    path, rows = _open[number]
    with _errors_of_library(path):
        return next(rows, None)


def close_rows(number: int) -> None:
    """End a reading."""
    _open.pop(number, None)


def sheets(path: str) -> tuple[str, list[str]]:
    """The name of the sheet that is read of an Excel file, and those of the others."""
    book = _book(path, _version(path))
    return book.sheet, book.others


def check_title(place: str, rows: Sequence[Sequence[Any]]) -> None:
    """Check by the first rows of a table that the first is no title, a text alone above the names of columns."""
    names, *others = [[value for value in row if value != ""] for row in rows[:ROWS_OF_TITLE]] or [[]]
    if len(names) == 1 and 2 * sum(len(row) > 1 for row in others) > len(others):
        raise InputError(
            f"{place}: its first row has only '{shortened(visible(str(names[0])), 40)}', which looks like a title; "
            "remove what is above the names of the columns"
        )


@contextmanager
def _errors_of_library(path: str) -> Iterator[None]:
    """Turns the many kinds of errors that a library raises for a damaged file into an :class:`InputError`."""
    try:
        # Some warn of formats that they ignore; these do not matter for values.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    # Too little memory is no sign of a damaged file.
    except (InputError, MemoryError):
        raise
    except Exception as error:
        reason = visible(" ".join(f"{type(error).__name__}: {error}".split()))[:150]
        raise InputError(f"{path}: the file is damaged or has another form ({reason}); write it again") from error


def _parquet(path: str) -> Any:
    import pyarrow.parquet as pq

    schema = pq.ParquetFile(path).schema
    columns = [schema.column(number) for number in range(len(schema))]
    # Texts stay in their dictionaries: a few bytes may repeat a long text a million times.
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    file = pq.ParquetFile(path, read_dictionary=texts)
    meta = file.metadata
    if meta.num_columns > MOST_COLUMNS or meta.num_rows > MOST_ROWS:
        raise InputError(
            f"{path}: it has {meta.num_rows:,} rows and {meta.num_columns:,} columns; give at most {MOST_ROWS:,} rows "
            f"and {MOST_COLUMNS:,} columns"
        )
    for number in range(meta.num_row_groups):
        if meta.row_group(number).total_byte_size > LARGEST_ROW_GROUP:
            raise InputError(
                f"{path}: row group {number} has over {LARGEST_ROW_GROUP >> 20} MB; write it with smaller row groups"
            )
    return file


def _saved(folder: str) -> Any:
    import datasets

    return datasets.load_from_disk(folder)


def _arrow_rows(batches: Iterator[Any], names: Sequence[str]) -> Iterator[Batch]:
    number = 1
    for batch in batches:
        # Offsets that lead out of a buffer would read other memory of this process.
        batch.validate(full=True)
        yield list(range(number, number + len(batch))), [_values(batch.column(name)) for name in names]
        number += len(batch)


def _values(array: Any) -> Column:
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if not isinstance(array, pa.DictionaryArray):
        return [_json(value) for value in array.to_pylist()]
    indices = array.indices.to_pylist()
    used = sorted({index for index in indices if index is not None})
    place = {index: number for number, index in enumerate(used)}
    values = [_json(value) for value in array.dictionary.take(pa.array(used, pa.int64())).to_pylist()]
    return {"values": values, "indices": [None if index is None else place[index] for index in indices]}


def _json(value: Any) -> Any:
    """A value as JSON can have it."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(name): _json(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(inner) for inner in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    return float(value) if isinstance(value, Decimal) else str(value)


class _Book(NamedTuple):
    """The sheet that is read of an Excel file."""

    rows: list[list[Any]]  # its cells, the header first; an empty text is no value
    names: list[str]  # the header
    above: int  # the empty rows above the header
    # The cells with a formula whose value the file lacks, as the row from 1 and the column's letters.
    formulas: list[tuple[int, str]]
    sheet: str  # the sheet's name
    others: list[str]  # the names of the other sheets


def _version(path: str) -> tuple[int, int]:
    stat = Path(path).stat()
    return stat.st_mtime_ns, stat.st_size


@lru_cache(maxsize=1)
def _book(path: str, version: tuple[int, int]) -> _Book:  # noqa: ARG001  # read again if the file has changed
    """The first sheet of a file that is neither hidden nor empty; it is parsed once for its columns and its rows."""
    from python_calamine import SheetTypeEnum, SheetVisibleEnum, load_workbook

    _check_parts(path)
    with load_workbook(path) as book:
        # The property makes new objects each time.
        all_sheets = book.sheets_metadata
        tables = [each for each in all_sheets if each.typ == SheetTypeEnum.WorkSheet]
        if not tables:
            raise InputError(f"{path}: it has no sheet with cells; give another file")
        for chosen in [each for each in tables if each.visible == SheetVisibleEnum.Visible] or tables:
            sheet = book.get_sheet_by_name(chosen.name)
            if sheet.start is not None:
                break
        others = [
            each.name if each.visible == SheetVisibleEnum.Visible else f"{each.name} (hidden)"
            for each in all_sheets
            if each is not chosen
        ]
        above = sheet.start[0] if sheet.start else 0
        rows = sheet.to_python(skip_empty_area=False)[above:]
        merged = sheet.merged_cell_ranges or ()
    if len(rows) > MOST_SHEET_ROWS:
        raise InputError(f"{path}: it has over {MOST_SHEET_ROWS:,} rows; write it again")
    header = [str(_cell(value)) for value in rows[0]] if rows else []
    # A sheet keeps columns beside the table that once had a value or a format.
    while header and not header[-1]:
        header.pop()
    check_title(path, rows)
    for (top, left), (bottom, right) in merged:
        first = top - above
        if first == 0 and any(value != "" for value in rows[1:2] and rows[1][left + 1 : right + 1]):
            name = shortened(visible(str(rows[0][left])), 40)
            raise InputError(
                f"{path}: the cell '{name}' in its first row is over several columns; give each column a name of its "
                "own, in one row"
            )
        # A cell over several rows holds for each of them; the file has its value in the first.
        for row in rows[first + 1 : bottom - above + 1] if first > 0 and left < len(rows[0]) else ():
            row[left] = rows[first][left]
    return _Book(rows, header, above, _formulas_without_value(path, sheet.name), sheet.name, others)


def _check_parts(path: str) -> None:
    """Check, before anything is unpacked, that no part of an Excel file is too large, nor all of them together."""
    with zipfile.ZipFile(path) as archive:
        # The archive gives no more than these sizes, also if they are wrong. Images are not read.
        parts = {part.filename: part.file_size for part in archive.infolist() if part.filename.endswith(_XML)}
    if sum(parts.values()) > LARGEST_BOOK:
        raise InputError(f"{path}: it expands to more than {LARGEST_BOOK >> 20} MB; save the table as CSV or Parquet")
    for name, size in parts.items():
        if size > LARGEST_PART and "/worksheets/" not in name and not name.endswith("sharedStrings.xml"):
            raise InputError(
                f"{path}: its part {visible(name)} expands to more than {LARGEST_PART >> 20} MB; save the table as CSV "
                "or Parquet"
            )


def _cell(value: Any) -> Any:
    # Spreadsheets have no whole numbers.
    if isinstance(value, float) and value.is_integer() and abs(value) < _WHOLE:
        return int(value)
    return _json(value)


def _sheet_rows(path: str, names: Sequence[str]) -> Iterator[Batch]:
    book = _book(path, _version(path))
    places = [book.names.index(name) for name in names]
    used = {_letters(place) for place in places}
    for row, letters in book.formulas:
        if row > book.above + 1 and letters in used:
            raise InputError(
                f"{path}: cell {letters}{row} has a formula without its value; save the file in a spreadsheet program"
            )
    width = len(book.names)
    for start in range(1, len(book.rows), _BATCH):
        part = enumerate(book.rows[start : start + _BATCH], start=book.above + start + 1)
        # Rows below the table count as used after their values were deleted.
        kept = [(number, row) for number, row in part if any(value != "" for value in row[:width])]
        cells: list[Column] = [[None if row[place] == "" else _cell(row[place]) for _, row in kept] for place in places]
        yield [number for number, _ in kept], cells


def _formulas_without_value(path: str, name: str) -> list[tuple[int, str]]:
    """The cells of a sheet with a formula whose value was not saved; the library gives nothing for these."""
    with zipfile.ZipFile(path) as archive:
        book = ElementTree.fromstring(archive.read("xl/workbook.xml"))
        links = ElementTree.fromstring(archive.read("xl/_rels/workbook.xml.rels"))
        target = {link.get("Id"): link.get("Target", "") for link in links}
        relation = next(sheet.get(_RELATION) for sheet in book.iter(f"{_NAMESPACE}sheet") if sheet.get("name") == name)
        sheet = archive.read(str(Path("/xl") / target[relation])[1:])
        return [(int(row), column.decode()) for column, row in _UNSAVED.findall(sheet)]


def _letters(column: int) -> str:
    letters, rest = "", column + 1
    while rest:
        rest, digit = divmod(rest - 1, 26)
        letters = chr(65 + digit) + letters
    return letters
