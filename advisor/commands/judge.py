"""``advisor judge``: how far the judge of a run can be believed."""

from __future__ import annotations

from advisor.commands.command_line import print_json
from advisor.options.judge import JudgeRunOptions


def judge(options: JudgeRunOptions) -> None:
    """Correct the judge's scores of a run by a few labels of people, and say what misleads the judge."""
    from advisor.jobs.judge import judge_run
    from advisor.progress import Progress
    from ensemble.common.text import visible

    found = judge_run(options, Progress(quiet=options.quiet))
    if options.as_json:
        print_json(found)
    else:
        print(visible("\n".join(found["text"]), keep_lines=True))
