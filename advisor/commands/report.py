"""``advisor report`` and ``advisor export``: what is written from a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from advisor.commands import options as opt
from advisor.progress import Progress
from ensemble.errors import InputError


def report(
    run: opt.Run,
    *,
    form: Annotated[
        Literal["html", "md", "csv"],
        typer.Option("--format", help="Markdown of the decision (md) or the leaderboard (csv), to standard output."),
    ] = "html",
    debug: opt.Debug = False,
) -> None:
    """Write the report.html of a run again, from result.json, samples.jsonl and evaluation.json alone."""
    from reports import write_report

    if form == "html":
        print(write_report(run))
        return
    from reports.formats import leaderboard_csv, markdown
    from reports.read import read_run

    print((markdown if form == "md" else leaderboard_csv)(read_run(run)), end="")


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
    from advisor.production.export import export as write

    print(write(run, folder, push, context.params, private=not public))
    if compose:
        from advisor.production.compose import wheel

        Progress().say(f"before `docker compose up --build`, put {wheel()} into {folder}: the image is built with it")
