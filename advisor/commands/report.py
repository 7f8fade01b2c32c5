"""``advisor report`` and ``advisor export``: what is written from a finished run."""

from __future__ import annotations

from pathlib import Path

from advisor.options.export import ExportOptions
from advisor.options.report import ReportOptions
from ensemble.errors import InputError


def report(options: ReportOptions) -> None:
    """Write the report.html of a run again, or an index of all runs in a folder."""
    run = options.run
    if run.is_dir() and not (run / "result.json").exists():
        _write_index(run, options.form)
    else:
        _write_report(run, options)


def _write_report(run: Path, options: ReportOptions) -> None:
    from reports import write_report

    if options.form == "html":
        print(write_report(run))
        return
    from advisor.runs.run import Run
    from reports.formats import as_csv, latex, leaderboard_rows, markdown, strategy_rows

    result = Run.open(run).result
    if options.form == "csv":
        print(as_csv((leaderboard_rows if options.table == "leaderboard" else strategy_rows)(result)), end="")
    else:
        print((markdown if options.form == "md" else latex)(result), end="")


def _write_index(folder: Path, form: str) -> None:
    from reports.run_index import find_runs, index_csv, index_markdown, index_rows, write_index

    rows = index_rows(folder, find_runs(folder))
    if form == "latex":
        raise InputError(f"{folder}: has several runs; --format latex needs one run folder")
    if form == "html":
        print(write_index(folder, rows))
    else:
        print((index_markdown if form == "md" else index_csv)(rows), end="")


def export(options: ExportOptions) -> None:
    """Write the recommended strategy of a run, without weights, and a card with the evidence; push it on request."""
    from advisor.jobs.export import export as write

    print(write(options))
    if options.compose:
        from advisor.jobs.compose import wheel
        from advisor.progress import Progress

        put = f"put {wheel()} into {options.folder}: the image is built with it"
        Progress().say(f"before `docker compose up --build`, {put}")
