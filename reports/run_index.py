"""All runs below a folder in one table: ``advisor report FOLDER``, as a page, Markdown or CSV."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from advisor.run.folder import Run
from advisor.run.result import Result
from ensemble.common import text
from ensemble.errors import InputError
from ensemble.saved.model_card import escaped
from reports.formats import as_csv
from reports.page import SMALL_SCRIPTS, write_html
from reports.tables import Cell, Column, Table, as_markdown, fields, figures, make_table

MOST_RUNS = 500
_DEEPEST = 3
_MOST_FOLDERS = 20_000
_LARGEST = 64 << 20  # of a result.json, in bytes; that of a large run has a few MB
_MARK = b'<meta name="generator" content="unite-advisor, index of runs">'
_MOST_HEAD = 2000  # bytes of a page in which the mark is


def find_runs(folder: Path) -> list[Path]:
    """Return the run folders at most three levels below a folder, in the order of their names."""
    # One more than allowed tells that there are too many.
    found = list(islice(_runs(folder), MOST_RUNS + 1))
    if not found:
        raise InputError(f"{folder}: has no result.json, and no folder below it has one; name a run folder")
    if len(found) > MOST_RUNS:
        raise InputError(f"{folder}: more than {MOST_RUNS} runs are below it; name a folder with fewer")
    return sorted(found)


def _runs(folder: Path) -> Iterator[Path]:
    # Links are not followed: they may lead out of the folder, or back into it.
    for seen, (place, folders, files) in enumerate(os.walk(folder)):
        path = Path(place)
        if seen >= _MOST_FOLDERS:
            raise InputError(f"{folder}: more than {_MOST_FOLDERS:,} folders are below it; name a smaller one")
        if path != folder and "result.json" in files:
            yield path
        # Changing the list tells os.walk where not to go.
        deep = len(path.relative_to(folder).parts) >= _DEEPEST
        folders[:] = [] if deep else sorted(each for each in folders if not each.startswith("."))


def index_rows(folder: Path, runs: Sequence[Path]) -> list[dict[str, Any]]:
    """Return what is shown of each run, the newest first; of one that cannot be read, ``name`` and ``problem``."""
    rows = [_row(folder, run) for run in runs]
    return sorted(rows, key=lambda row: row.get("written", ""), reverse=True)


def _row(folder: Path, run: Path) -> dict[str, Any]:
    relative = run.relative_to(folder).as_posix()
    named = {"name": text.visible(relative), "link": None, "problem": None}
    try:
        state = (run / "result.json").stat()
        if state.st_size > _LARGEST:
            return {**named, "problem": f"its result.json is larger than {_LARGEST >> 20} MB"}
        result = Run.open(run).result
    except (InputError, OSError) as error:
        return {**named, "problem": text.visible(str(error))}
    recommended = result.advice.recommendation
    gained = None if recommended is None or recommended.is_single else recommended
    return {
        **named,
        # A name may have any characters, also those that mean something in an address.
        "link": quote(f"{relative}/report.html") if (run / "report.html").is_file() else None,
        "task": result.task.name,
        "written": _written(result, state.st_mtime),
        "models": len(result.candidates),
        "held_out": result.held_out,
        "best_single": result.best_single.name if result.best_single else None,
        "best_points": _best_points(result),
        "strategy": recommended.title if recommended else None,
        "gain": gained and gained.expected_gain,
        "gain_ci": gained and gained.expected_gain_ci,
        "probability": gained and gained.probability,
        "calls": recommended and recommended.calls_per_question,
        "price": recommended and recommended.price_per_1000,
    }


def _written(result: Result, changed: float) -> str:
    """When the result was first written, in UTC; for a result without a date, when its file was last changed."""
    try:
        moment = datetime.fromisoformat(result.provenance.date or "").astimezone(timezone.utc)
    except (ValueError, OverflowError):
        moment = datetime.fromtimestamp(changed, timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M")


def _best_points(result: Result) -> float | None:
    """The accuracy of the best single model: on the held-out questions where it answered them, else on dev."""
    best = result.best_single
    if best is None:
        return None
    held_out = (row.accuracy for row in result.strategies if row.is_single and row.members == (best.name,))
    return next(held_out, best.accuracy)


def write_index(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write ``index.html`` into a folder, but not over another page; return its path."""
    path = folder / "index.html"
    # Only an index of this program is replaced: a folder may have a page of its user's by this name.
    if path.exists() and not _is_index(path):
        raise InputError(f"{path} exists and is no index of runs; move it, or use --format md")
    return write_html(
        path,
        "index.html.j2",
        SMALL_SCRIPTS,
        folder=text.visible(folder.resolve().name or str(folder)),
        table=_table([row for row in rows if row["problem"] is None]),
        broken=[row for row in rows if row["problem"] is not None],
    )


def _is_index(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _MARK in file.read(_MOST_HEAD)


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    def task(row: Mapping[str, Any]) -> Cell:
        return Cell(row["task"], notes=(text.counted(row["models"], "model"),))

    def recommended(row: Mapping[str, Any]) -> Cell:
        best = row["best_single"]
        single = (f"best single: {best}, {text.points(row['best_points'])}",) if best else ()
        return Cell(row["strategy"] or text.UNKNOWN, notes=single)

    columns = [
        Column("Run", lambda row: Cell(row["name"], row["name"], link=row["link"]), "name", data=fields("name")),
        Column("Task", task, "text", data=fields("task")),
        Column(
            "Written",
            lambda row: Cell(row["written"]),
            "text",
            descending=True,
            data=fields("written", "models"),
        ),
        figures("held_out", "Held-out", text.thousands, label="Held-out questions"),
        Column("Recommended", recommended, "text", data=fields("best_single", "best_points", "strategy")),
        figures("gain", "Expected gain", text.difference, interval="Interval"),
        figures("probability", "Better", text.probability, label="Probability that it is better"),
        figures("calls", "Calls", text.decimals),
        figures("price", "Price of 1,000", text.price),
        Column("Problem", lambda row: Cell(row["problem"]), where="data", data=fields("problem")),
    ]
    return make_table("Runs", rows, columns)


def index_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the runs as Markdown, and below it the runs that cannot be read."""
    broken = [f"- {escaped(row['name'])}: {escaped(row['problem'])}" for row in rows if row["problem"] is not None]
    table = as_markdown(_table([row for row in rows if row["problem"] is None]))
    return "\n".join([table, *([""] if broken else []), *broken]) + "\n"


def index_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the runs as CSV; an unknown value is an empty cell."""
    broken = [{"name": row["name"], "problem": row["problem"]} for row in rows if row["problem"] is not None]
    return as_csv([*_table([row for row in rows if row["problem"] is None]).data, *broken])
