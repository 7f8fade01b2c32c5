"""The options of ``advisor report``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from advisor.options.option import Options, argument, option
from ensemble.errors import InputError

ReportFormat = Literal["html", "md", "csv", "latex"]
ReportTable = Literal["leaderboard", "strategies"]


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """Of ``advisor report``."""

    run: Path = argument("A run folder, or a folder with several.", "RUN")
    form: ReportFormat = option(
        "html",
        "Markdown of the decision (md), a table (csv) or all tables (latex), to standard output.",
        "--format",
        metavar="<html|md|csv|latex>",
        one_of=get_args(ReportFormat),
    )
    table: ReportTable = option(
        "leaderboard",
        "The table of --format csv.",
        metavar="<leaderboard|strategies>",
        one_of=get_args(ReportTable),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.table != "leaderboard" and self.form != "csv":
            raise InputError("--table goes with --format csv; leave it out")
