"""``advisor select``: the whole job."""

from __future__ import annotations

from functools import partial

from advisor.commands.command_line import command_line, print_json
from advisor.commands.dry_run import print_dry_run
from advisor.options.select import SelectOptions


def select(options: SelectOptions) -> None:
    """Profile every candidate, choose a set by the rules, run it on held-out questions, write a report."""
    from advisor.progress import Progress

    progress = Progress(quiet=options.quiet)
    progress.starting()
    from advisor.jobs.select import run_folder, select_run
    from advisor.terminal.tables import print_conclusion, print_tables
    from ensemble.common.schema import written

    if options.dry_run:
        print_dry_run(options, check_folder=partial(run_folder, options))
        return
    folder, result = select_run(options, command_line(), progress)
    if not options.quiet:
        print_tables(result)
    if options.as_json:
        print_json(written(result))
    else:
        print_conclusion(result, folder / "report.html")
