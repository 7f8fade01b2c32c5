"""``advisor evaluate``: methods of ensembling side by side."""

from __future__ import annotations

from advisor.commands.command_line import command_line, print_json
from advisor.options.evaluate import EvaluateOptions


def evaluate(options: EvaluateOptions) -> None:
    """Score methods of ensembling, and every member alone, on the same questions; write RUN/evaluation.json."""
    from advisor.progress import Progress

    progress = Progress(quiet=options.quiet)
    progress.starting()
    from advisor.jobs.evaluate import evaluate_run
    from advisor.runs.run_folder import write_json
    from advisor.terminal.tables import print_methods
    from ensemble.common.schema import written
    from reports import write_report

    evaluation = evaluate_run(options, command_line(), progress)
    content = written(evaluation)
    # Before the report, which reads it.
    write_json(options.run / "evaluation.json", content)
    write_report(options.run)
    if options.as_json:
        print_json(content)
    else:
        print_methods(evaluation)
