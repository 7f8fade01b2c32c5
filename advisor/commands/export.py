"""``advisor export``: a run's chosen set as a folder that anybody can load, with a model card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from advisor.commands import options as opt
from ensemble.errors import InputError


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, whose chosen set is taken.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or empty folder, or one that this wrote.")],
    *,
    push: Annotated[str | None, typer.Option("--push", metavar="ID", help="Push it to the hub as this model.")] = None,
    public: Annotated[bool, typer.Option("--public", help="For all to see, where --push makes the model.")] = False,
    debug: opt.Debug = False,  # noqa: ARG001  # read by main, before the command
) -> None:
    """Write a run's chosen set, without weights, and a model card that states the evidence; push it on request."""
    if public and push is None:
        raise InputError("--public says who sees what --push makes; give --push too")
    from advisor.output.export import export as write

    print(write(run, folder, push, private=not public))
