"""The options of ``advisor judge``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from advisor.options.on_run import RunArgument
from advisor.options.option import option
from advisor.options.shared import OutputOptions


@dataclass(frozen=True, kw_only=True)
class JudgeRunOptions(OutputOptions, RunArgument):
    """Of ``advisor judge``."""

    labels: Path | None = option(
        None,
        "A table with the columns id, model and label: the scores that people give.",
        metavar="FILE",
        panel="Judge",
    )
