"""``advisor label``: the questions whose labels decide, for people who have no references."""

from __future__ import annotations

from advisor.commands.command_line import command_line, print_json
from advisor.options.label import LabelOptions


def label(options: LabelOptions) -> None:
    """Write a table of the questions whose labels decide, where there are no references; select --labels reads it."""
    from advisor.progress import Progress

    progress = Progress(quiet=options.quiet)
    progress.starting()
    from advisor.jobs.label import label_run
    from ensemble.common.text import visible

    summary = label_run(options, command_line(), progress)
    if options.as_json:
        print_json(summary)
    else:
        print(visible(summary["text"]))
