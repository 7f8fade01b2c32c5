"""The options of ``advisor judge``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from advisor.options.on_run import RunArgument
from advisor.options.option import Options, option
from advisor.options.shared import OutputOptions


@dataclass(frozen=True, kw_only=True)
class OtherScoresOptions(Options, panel="Judge"):
    """What people and another judge say."""

    labels: Path | None = option(
        None, "A table with the columns id, model and label: the scores that people give.", metavar="FILE"
    )
    check_run: Path | None = option(
        None,
        "A run on the same questions with another judge's scores, to test whether a judge prefers its own family.",
        metavar="RUN",
    )
    judges: str | None = option(
        None,
        "The judges of RUN and of --check-run, for runs on logs: two names with a comma between them. Their first "
        "words are their families: gpt-4o,claude-3.",
        metavar="NAMES",
        needs=("check_run", ()),
    )


@dataclass(frozen=True, kw_only=True)
class JudgeRunOptions(OutputOptions, OtherScoresOptions, RunArgument):
    """Of ``advisor judge``."""
