"""``advisor report`` and ``advisor export``: what is written from a finished run."""

from __future__ import annotations

from pathlib import Path

from advisor.options.export import ExportOptions
from advisor.options.report import ReportOptions
from ensemble.errors import InputError


def report(options: ReportOptions) -> None:
    """Write the report.html of a run again, an index of all runs in a folder, or the difference of two runs."""
    first = options.runs[0]
    if options.diff:
        _write_difference(first, options.runs[1], options.form, options.out)
    elif first.is_dir() and not (first / "result.json").exists():
        _write_index(first, options.form)
    else:
        _write_report(first, options)


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


def _write_difference(a: Path, b: Path, form: str, out: Path | None) -> None:
    from advisor.compare.run_difference import run_difference
    from advisor.progress import Progress
    from advisor.records import signed
    from advisor.runs.run import Run
    from reports.run_difference import difference_markdown, headline, write_difference

    difference = run_difference(Run.open(a), Run.open(b))
    if form == "md":
        print(difference_markdown(difference), end="")
    else:
        Progress().say(f"{headline(difference)}: {signed(difference['pair']['difference'])} points")
        print(write_difference(out or b / "diff.html", difference))


def export(options: ExportOptions) -> None:
    """Write the recommended strategy of a run, without weights, and a card with the evidence; push it on request."""
    from advisor.jobs.export import export as write

    print(write(options))
    if options.compose:
        from advisor.jobs.compose import wheel
        from advisor.progress import Progress

        put = f"put {wheel()} into {options.folder}: the image is built with it"
        Progress().say(f"before `docker compose up --build`, {put}")
