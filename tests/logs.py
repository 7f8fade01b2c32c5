"""Reading logs in tests."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from advisor.logs.sources import LogFile, LogOptions, LogRecord, LogSource, get_format, records_of

REAL = Path(__file__).resolve().parents[1].parent / "shared" / "pools" / "logs"
needs_logs = pytest.mark.skipif(not REAL.is_dir(), reason="../shared/pools/logs is not beside the project")


def write_lines(path: Path, items: Iterable[object]) -> Path:
    """Write a JSON value on each line."""
    path.write_text("".join(f"{json.dumps(item)}\n" for item in items), encoding="utf-8")
    return path


def write_table(path: Path, items: Sequence[Mapping[str, Any]], mark: str = ",") -> Path:
    """Write a table with a row for each item."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(items[0]), delimiter=mark)
        writer.writeheader()
        writer.writerows(items)
    return path


def files_of(*paths: Path) -> list[LogFile]:
    """Files, and those of folders."""
    found = [sorted(path.rglob("*")) if path.is_dir() else [path] for path in paths]
    return [LogFile(file, given=False) for each in found for file in each if file.is_file()]


def recognise(name: str, *paths: Path) -> tuple[list[LogSource], list[str]]:
    """The sources that a format finds, and its notes."""
    notes: list[str] = []
    return get_format(name).recognise(files_of(*paths), notes), notes


def read(name: str, *paths: Path, options: LogOptions | None = None) -> tuple[list[LogRecord], list[str]]:
    """The records of the sources that a format finds, and its notes."""
    sources, notes = recognise(name, *paths)
    return [record for each in sources for record in records_of(each, options or LogOptions(), notes)], notes


def scores(records: Sequence[LogRecord]) -> dict[str, float | None]:
    """The score of each question, by its id."""
    return {record.id: record.score for record in records}
