"""``advisor check``: whether the recommendation of a run still holds on fresh questions."""

from __future__ import annotations

import typer

from advisor.commands.command_line import command_line, print_json
from advisor.commands.compare import GATE_FAILED
from advisor.options.check import CheckOptions


def check(options: CheckOptions) -> None:
    """Ask the recommended strategy and the best single model fresh questions; status 3 if the advice fails on them."""
    from advisor.progress import Progress

    progress = Progress(quiet=options.quiet)
    progress.starting()
    from advisor.jobs.check import check_run
    from ensemble.common.text import visible

    found = check_run(options, command_line(), progress)
    if options.as_json:
        print_json(found)
    else:
        print(visible(found["text"]))
    if found["verdict"] == "worse":
        raise typer.Exit(GATE_FAILED)
