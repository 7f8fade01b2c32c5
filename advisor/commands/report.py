"""``advisor report``: the report of a run again, in each of its forms, or an index of several runs."""

from __future__ import annotations

from advisor.options.finished_run import ReportOptions
from advisor.run.folder import Run
from ensemble.errors import InputError
from reports import write_report
from reports.formats import as_csv, latex, markdown
from reports.run_index import find_runs, index_csv, index_markdown, index_rows, write_index
from reports.tables import leaderboard, strategies


def report(options: ReportOptions) -> None:
    """Write the page and print its path, or print the report in another form."""
    run, form = options.run, options.form
    if run.is_dir() and not (run / "result.json").exists():
        rows = index_rows(run, find_runs(run))
        if form == "latex":
            raise InputError(f"{run}: has several runs; --format latex needs one run folder")
        if form == "html":
            print(write_index(run, rows))
        else:
            print((index_markdown if form == "md" else index_csv)(rows), end="")
        return
    if form == "html":
        print(write_report(run))
        return
    result = Run.open(run).result
    if form == "csv":
        print(as_csv((leaderboard if options.table == "leaderboard" else strategies)(result).data), end="")
    else:
        print((markdown if form == "md" else latex)(result), end="")
