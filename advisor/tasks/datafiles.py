r"""Records from files: JSON lines, a JSON array, or lines of plain text.

    dev.jsonl                                {"question": "1 + 1?", "answer": "2"}   one object a line
    dev.json                                 [{...}, {...}]   or an object whose only list is the records
    {source: eng.txt, target: ron.txt}       the lines of text files in parallel, a field each
    dev.txt                                  lines again, under the field `text`

Only "\n" ends a line: real data has U+2028 and U+0085 inside of strings, and `str.splitlines` would break them. Not
covered: CSV, Parquet, compressed files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from advisor.tasks.record import Record
from ensemble.errors import InputError


def read_records(path: Path, part: str = "") -> list[Record]:
    """Read one data file by its ending.

    Args:
        path: A file that ends in .jsonl, .json or .txt.
        part: The records' ``part``.

    Raises:
        InputError: The file or a line of it cannot be used.
    """
    readers = {".jsonl": _json_lines, ".ndjson": _json_lines, ".json": _json_array, ".txt": _text_lines}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path} ends in none of .jsonl, .json and .txt; convert it to one of them")
    return [
        Record({"_part": path.stem, **values}, place, part, index)
        for index, (values, place) in enumerate(reader(path, _read(path)))
    ]


def read_parallel(paths: Mapping[str, Path]) -> list[Record]:
    """Read text files whose lines belong together, a field for each file.

    Raises:
        InputError: A file cannot be read, or they differ in length.
    """
    columns = {field: _lines(_read(path)) for field, path in paths.items()}
    lengths = {str(paths[field]): len(lines) for field, lines in columns.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{path} has {count}" for path, count in lengths.items())
        raise InputError(f"files whose lines belong together differ in length: {counts} lines; make them equal")
    first = next(iter(paths.values()))
    rows = zip(*columns.values(), strict=True)
    return [
        Record({"_part": first.stem, **dict(zip(columns, row, strict=True))}, f"{first}:{number}", "", number - 1)
        for number, row in enumerate(rows, start=1)
    ]


def _read(path: Path) -> str:
    try:
        # Bytes first: reading as text would turn "\r\n" and "\r" inside of lines into "\n".
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise InputError(f"{path} is not there; correct the path, or put the data there") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 at byte {error.start}; convert it") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}; give a data file") from error


def _lines(text: str) -> list[str]:
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def _text_lines(path: Path, text: str) -> Iterator[tuple[dict[str, object], str]]:
    for number, line in enumerate(_lines(text), start=1):
        yield {"text": line}, f"{path}:{number}"


def _json_lines(path: Path, text: str) -> Iterator[tuple[dict[str, object], str]]:
    for number, line in enumerate(_lines(text), start=1):
        if line.strip():
            place = f"{path}:{number}"
            yield _fields(_parse(line, place), place), place


def _json_array(path: Path, text: str) -> Iterator[tuple[dict[str, object], str]]:
    content = _parse(text, str(path), by_line=True)
    if isinstance(content, dict):
        lists = [value for value in content.values() if isinstance(value, list)]
        content = lists[0] if len(lists) == 1 else content
    if not isinstance(content, list):
        raise InputError(f"{path} holds no list of records; make it a JSON array, or an object with one")
    for number, record in enumerate(content, start=1):
        place = f"{path} (record {number})"
        yield _fields(record, place), place


def _parse(text: str, place: str, *, by_line: bool = False) -> object:
    try:
        value = json.loads(text)
        if "\\ud" in text.lower():
            _check_unicode(value)
    except json.JSONDecodeError as error:
        where = f"{place}:{error.lineno}" if by_line else place
        raise InputError(f"{where}: not valid JSON: {error.msg} (column {error.colno}); correct the line") from error
    except (ValueError, RecursionError) as error:
        message = str(error).partition(";")[0] or "nested too deeply"
        raise InputError(f"{place}: not usable JSON: {message}; correct it") from error
    return value


def _check_unicode(value: object) -> None:
    # JSON can spell half a surrogate pair, which no tokenizer and no file in UTF-8 can hold.
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("half a surrogate pair in a string") from error


def _fields(value: object, place: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InputError(f'{place}: a record must be a JSON object such as {{"question": ...}}; correct it')
    return value
