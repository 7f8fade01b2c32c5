"""``advisor report`` and ``advisor export``: what is written from a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from advisor.commands import options as opt
from advisor.progress import Progress
from advisor.records import signed
from ensemble.errors import InputError


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="A run folder, or a folder with several; with --diff, two run folders."),
    ],
    *,
    form: Annotated[
        Literal["html", "md", "csv"],
        typer.Option("--format", help="Markdown of the decision (md) or the table (csv), to standard output."),
    ] = "html",
    diff: Annotated[bool, typer.Option("--diff", help="Hold the second run against the first one.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The page of --diff. Default: diff.html in the second.")
    ] = None,
    debug: opt.Debug = False,
) -> None:
    """Write the report.html of a run again, an index of all runs in a folder, or the difference of two runs."""
    if len(runs) != 1 + diff:
        raise InputError("--diff compares two run folders; give both" if diff else "give one folder, or two and --diff")
    if out is not None and (not diff or form != "html"):
        raise InputError("--out goes with --diff and its page (--format html); leave it out")
    if diff:
        _write_difference(runs[0], runs[1], form, out)
    elif runs[0].is_dir() and not (runs[0] / "result.json").exists():
        _write_index(runs[0], form)
    else:
        _write_report(runs[0], form)


def _write_report(run: Path, form: str) -> None:
    from reports import write_report

    if form == "html":
        print(write_report(run))
        return
    from advisor.runs.run import Run
    from reports.formats import leaderboard_csv, markdown

    print((markdown if form == "md" else leaderboard_csv)(Run.open(run).result), end="")


def _write_index(folder: Path, form: str) -> None:
    from reports.run_index import find_runs, index_csv, index_markdown, index_rows, write_index

    rows = index_rows(folder, find_runs(folder))
    if form == "html":
        print(write_index(folder, rows))
    else:
        print((index_markdown if form == "md" else index_csv)(rows), end="")


def _write_difference(a: Path, b: Path, form: str, out: Path | None) -> None:
    if form == "csv":
        raise InputError("--format csv: a difference is a page or Markdown; give html or md")
    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise InputError(f"--out {out}: give the name of a file in a folder that exists")
    from advisor.runs.run import Run
    from advisor.runs.run_difference import run_difference
    from reports.run_difference import difference_markdown, headline, write_difference

    difference = run_difference(Run.open(a), Run.open(b))
    if form == "md":
        print(difference_markdown(difference), end="")
    else:
        Progress().say(f"{headline(difference)}: {signed(difference['pair']['delta'])} points")
        print(write_difference(out or b / "diff.html", difference))


def export(
    context: typer.Context,
    run: opt.Run,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or empty folder, or an earlier export.")],
    *,
    strategy: opt.StrategyName = None,
    pool: opt.Places = None,
    push: Annotated[str | None, typer.Option("--push", metavar="ID", help="Push it to the hub under this id.")] = None,
    public: Annotated[bool, typer.Option("--public", help="Make the new model of --push public.")] = False,
    compose: Annotated[
        bool, typer.Option("--compose", help="Also write files for Docker Compose: the server, vLLM and Prometheus.")
    ] = False,
    allow_server: opt.Servers = None,
    allow_key_env: opt.KeyNames = None,
    debug: opt.Debug = False,
) -> None:
    """Write the recommended strategy of a run, without weights, and a card with the evidence; push it on request."""
    if public and push is None:
        raise InputError("--public needs --push; add it, or leave out --public")
    if (allow_server or allow_key_env) and not compose:
        raise InputError("--allow-server and --allow-key-env need --compose; an export contacts no server")
    from advisor.jobs.export import export as write
    from advisor.runs.run import Run

    print(write(Run.open(run), folder, push, context.params, private=not public))
    if compose:
        from advisor.jobs.compose import wheel

        Progress().say(f"before `docker compose up --build`, put {wheel()} into {folder}: the image is built with it")
