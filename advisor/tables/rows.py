"""Rows of tables in CSV, TSV, JSON, JSON Lines, Parquet and Excel files, as a stream.

The kind of a file follows from its content. The first sheet of an Excel file is read; formulas have the values that the
file keeps for them. CSV files are UTF-8 text; commas, semicolons or tabs separate their columns.
"""

from __future__ import annotations

import csv
import io
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from advisor.tables.streams import (
    HEAD,
    LARGEST_ITEM,
    ZIP,
    Notes,
    json_items,
    json_lines,
    lines_of,
    open_stream,
    zip_members,
)
from ensemble.common.text import visible
from ensemble.errors import InputError

T = TypeVar("T")
Row = tuple[dict[str, Any], str]
"""Values by column, and the place."""
MOST_COLUMNS = 2_000
MOST_ROWS = 20_000_000
MOST_SHEET_ROWS = 2**20
"""Excel allows no more."""
LARGEST_SHEET = 2**27
"""Bytes that an Excel file may expand to: its reader keeps all texts, and takes minutes for more."""
LARGEST_ROW_GROUP = 2**30
"""Bytes of a row group of a Parquet file before compression: its reader expands pages of it at a time."""
_DELIMITERS = ",\t;"
_SHEET = "xl/workbook.xml"
_BATCH = 1_000
EXTENSIONS = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json", ".parquet", ".xlsx", ".xlsm", ".gz", ".xz", ".bz2")
"""How names of tables and of other data files end; the last three are of compressed files."""


class LeftOut(NamedTuple):
    """A record that cannot be used.

    Attributes:
        reason: What it lacks, as the end of a sentence: "it has no score".
        place: File and line or number.
    """

    reason: str
    place: str


def stem_of(path: Path) -> str:
    """The name of a data file without its extensions: ``dev`` for ``dev.jsonl.gz``."""
    stem = path.name
    while stem.lower().endswith(EXTENSIONS):
        stem = stem.rpartition(".")[0]
    return stem


def kind_of(head: bytes, path: Path) -> str | None:
    """The kind of a table: ``csv``, ``json``, ``lines``, ``parquet`` or ``excel``; None for other files.

    Args:
        head: The start of the file, decompressed.
        path: The file; its extension decides only whether text is CSV, and the members of a zip file are looked up.
    """
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(ZIP):
        return "excel" if _is_excel(path) else None
    if start in (b"{", b"["):
        return "lines" if start == b"{" else "json"
    line = head.partition(b"\n")[0]
    if {".csv", ".tsv"} & set(path.suffixes):
        return "csv"
    return "csv" if b"\0" not in head and any(mark.encode() in line for mark in _DELIMITERS) else None


def columns_of(path: Path) -> list[str]:
    """The names of a table's columns; of JSON, those of the first 100 objects.

    Raises:
        InputError: The file cannot be read, is in no known form, or has over 2,000 columns.
    """
    kind = _kind(path)
    if kind == "csv":
        names = next(_cells(path), ([], 0))[0]
    elif kind == "excel":
        names = _sheet_header(path)
    elif kind == "parquet":
        names = list(_parquet(path).schema_arrow.names)
    else:
        # Not the first object alone: tools leave out keys without a value.
        names = list(dict.fromkeys(name for row, _ in islice(_objects(path, kind, []), 100) for name in row))
    if len(names) > MOST_COLUMNS:
        raise InputError(f"{path}: it has {len(names):,} columns; give a table with at most {MOST_COLUMNS:,}")
    return names


def rows_of(path: Path, columns: Sequence[str], notes: Notes) -> Iterator[Row | LeftOut]:
    """The rows of a table. Cells without a value are None.

    Args:
        path: The file.
        columns: The columns to read, names of :func:`columns_of`.
        notes: Gets sentences on what is left out.

    Raises:
        InputError: The file cannot be read, is damaged or has too many rows; or one of the columns occurs twice.
    """
    names = columns_of(path)
    if twice := next((name for name in columns if names.count(name) > 1), None):
        raise InputError(f"{path}: the column {visible(twice)} occurs twice; rename one")
    kind = _kind(path)
    if kind == "csv":
        rows: Iterable[Row | LeftOut] = _csv_rows(path, names, columns)
    elif kind == "excel":
        rows = _sheet_rows(path, names, columns, notes)
    elif kind == "parquet":
        rows = _parquet_rows(path, columns)
    else:
        rows = (({name: row.get(name) for name in columns}, place) for row, place in _objects(path, kind, notes))
    for number, row in enumerate(rows, start=1):
        if number > MOST_ROWS:
            raise InputError(f"{path}: it has over {MOST_ROWS:,} rows; split it")
        yield row if isinstance(row, LeftOut) else ({name: plain(value) for name, value in row[0].items()}, row[1])


def _kind(path: Path) -> str:
    with open_stream(path) as stream:
        kind = kind_of(stream.read(HEAD), path)
    if kind is None:
        raise InputError(f"{path}: it is not a table in CSV, JSON, JSON Lines, Parquet or Excel (.xlsx); convert it")
    return kind


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    # Libraries write "no value" as NaN or as an empty text.
    return None if value == "" or value != value else value  # noqa: PLR0124  # true only for NaN


@contextmanager
def errors_of_library(path: Path) -> Iterator[None]:
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


def _from_library(path: Path, results: Iterator[T]) -> Iterator[T]:
    while True:
        # Not around the yield, where errors of the caller would be taken for the library's.
        with errors_of_library(path):
            result = next(results, None)
        if result is None:
            return
        yield result


def _objects(path: Path, kind: str, notes: Notes) -> Iterator[Row]:
    if kind == "lines":
        yield from json_lines(path, notes)
        return
    broken: list[str] = []
    for item, place in json_items(path):
        if isinstance(item, dict):
            yield item, place
        else:
            broken.append(place)
    if broken:
        notes.append(
            f"{path}: {len(broken):,} elements are left out, which are not JSON objects; the first: {broken[0]}"
        )


def _cells(path: Path) -> Iterator[tuple[list[str], int]]:
    """The rows of a CSV file, the header first, each with the number of its last line."""
    csv.field_size_limit(LARGEST_ITEM)  # of all readers of this process; the default is 131,072
    with open_stream(path) as stream:
        text = io.TextIOWrapper(io.BufferedReader(stream, 2**16), encoding="utf-8-sig", newline="")
        number = 0
        try:
            header = text.readline()
            delimiter = max(_DELIMITERS, key=header.count)  # the first of them if it has no delimiter
            # Strict: a quote that is never closed would silently take all rows after it into one cell.
            reader = csv.reader(_again(header, text), delimiter=delimiter, strict=True)
            for row in reader:
                number = reader.line_num
                stream.next_item()
                yield row, number
        except csv.Error as error:
            raise InputError(f"{path}:{number + 1}: not CSV ({error}); write the table again") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{path}:{_first_odd_line(path)}: not UTF-8 text; save the table as UTF-8") from error


def _first_odd_line(path: Path) -> int:
    # Read again, because the decoder is ahead of the rows by thousands of bytes.
    with open_stream(path) as stream:
        lines = enumerate(lines_of(stream), start=1)
        return next((number for number, line in lines if not _is_utf8(line)), 1)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _again(first: str, others: Iterable[str]) -> Iterator[str]:
    yield first
    yield from others


def _csv_rows(path: Path, names: Sequence[str], columns: Sequence[str]) -> Iterator[Row | LeftOut]:
    places = [names.index(name) for name in columns]
    for row, number in islice(_cells(path), 1, None):
        if len(row) == len(names) and any(row):
            yield {name: row[place] for name, place in zip(columns, places, strict=True)}, f"{path}:{number}"
        # An empty line is no row, and a spreadsheet may write the cells of one as commas.
        elif any(row):
            yield LeftOut("the row has more or fewer cells than the header", f"{path}:{number}")


def _parquet(path: Path) -> Any:
    import pyarrow.parquet as pq

    with errors_of_library(path):
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


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    number = 0
    # Threads would expand several columns at once.
    batches = _parquet(path).iter_batches(_BATCH, columns=list(columns), use_threads=False)
    for batch in _from_library(path, batches):
        with errors_of_library(path):
            lists = [_values(batch.column(name)) for name in columns]
        for values in zip(*lists, strict=True):
            number += 1
            yield dict(zip(columns, values, strict=True)), f"{path} (row {number})"


def _values(array: Any) -> list[Any]:
    import pyarrow as pa

    if not isinstance(array, pa.DictionaryArray):
        return cast("list[Any]", array.to_pylist())
    # Each text becomes an object once, however often it occurs.
    values = array.dictionary.to_pylist()
    return [None if index is None else values[index] for index in array.indices.to_pylist()]


def _is_excel(path: Path) -> bool:
    try:
        return _SHEET in zip_members(path)
    except InputError:
        return False


def _sheet_cells(path: Path, width: int, notes: Notes, *, formulas: bool = False) -> Iterator[tuple[Any, ...]]:
    """The rows of the first sheet with values, or with formulas where a cell has one; each has `width` cells."""
    from openpyxl import load_workbook

    with errors_of_library(path), zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
    # The archive gives no more than these sizes, also if they are wrong.
    if sum(info.file_size for info in infos) > LARGEST_SHEET:
        raise InputError(f"{path}: it expands to more than {LARGEST_SHEET >> 20} MB; save the table as CSV or Parquet")

    def cells() -> Iterator[tuple[Any, ...]]:
        book = load_workbook(path, read_only=True, data_only=not formulas, keep_links=False)
        try:
            sheet = book.worksheets[0]
            if len(book.sheetnames) > 1:
                notes.append(f"{path}: of its {len(book.sheetnames)} sheets only {visible(sheet.title)} was read")
            # A size that the sheet claims would give rows of any length.
            sheet.reset_dimensions()
            yield from sheet.iter_rows(max_col=width, values_only=True)
        finally:
            book.close()

    for number, row in enumerate(_from_library(path, cells()), start=1):
        if number > MOST_SHEET_ROWS:
            raise InputError(f"{path}: it has over {MOST_SHEET_ROWS:,} rows; write it again")
        yield row


def _has_formulas(path: Path) -> bool:
    with errors_of_library(path), zipfile.ZipFile(path) as archive:
        # columns_of was called before, and has checked what the file expands to.
        names = [name for name in archive.namelist() if name.startswith("xl/worksheets/")]
        return any(mark in sheet for sheet in map(archive.read, names) for mark in (b"<f>", b"<f ", b"<f/"))


def _sheet_header(path: Path) -> list[str]:
    header = list(next(_sheet_cells(path, MOST_COLUMNS + 1, []), ()))
    # A sheet keeps columns beside the table that once had a value or a format.
    while header and header[-1] is None:
        header.pop()
    return ["" if name is None else str(name) for name in header]


def _sheet_rows(path: Path, names: Sequence[str], columns: Sequence[str], notes: Notes) -> Iterator[Row]:
    from openpyxl.utils import get_column_letter

    places = [names.index(name) for name in columns]
    # Without a second look, a formula whose value the file lacks cannot be told from an empty cell.
    texts = _sheet_cells(path, len(names), [], formulas=True) if _has_formulas(path) else iter(())
    for number, row in enumerate(_sheet_cells(path, len(names), notes), start=1):
        # Without formulas the row is compared with itself, which finds nothing.
        written = next(texts, row)
        if number == 1:
            continue
        for place in places:
            if row[place] is None and written[place] is not None:
                cell = f"{get_column_letter(place + 1)}{number}"
                raise InputError(
                    f"{path}: cell {cell} has a formula without its value; save the file in a spreadsheet program"
                )
        # Rows below the table count as used after their values were deleted.
        if any(value is not None for value in row):
            yield {name: row[place] for name, place in zip(columns, places, strict=True)}, f"{path} (row {number})"
