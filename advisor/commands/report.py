"""``advisor report``: the report of a run, again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from advisor.commands import options as opt


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    *,
    debug: opt.Debug = False,  # noqa: ARG001  # read by main, before the command
) -> None:
    """Write a run's report.html again, from result.json, samples.jsonl and evaluation.json alone."""
    from reports import write_report

    print(write_report(run))
