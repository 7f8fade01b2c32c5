"""The options of ``advisor report``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from advisor.options.option import Options, argument, option
from advisor.options.shared import DebugOptions
from ensemble.errors import InputError

ReportFormat = Literal["html", "md", "csv", "latex"]
ReportTable = Literal["leaderboard", "strategies"]


@dataclass(frozen=True, kw_only=True)
class RunsArgument(Options):
    """The run folders of a report."""

    runs: tuple[Path, ...] = argument("A run folder, or a folder with several; with --diff, two run folders.", "RUN")


@dataclass(frozen=True, kw_only=True)
class ReportOptions(DebugOptions, RunsArgument):
    """Of ``advisor report``."""

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
    diff: bool = option(False, "Hold the second run against the first one.")
    out: Path | None = option(None, "The page of --diff. Default: diff.html in the second.", metavar="FILE")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.runs) != 1 + self.diff:
            raise InputError(
                "--diff compares two run folders; give both" if self.diff else "give one folder, or two and --diff"
            )
        if self.out is not None and (not self.diff or self.form != "html"):
            raise InputError("--out goes with --diff and its page (--format html); leave it out")
        if self.diff and self.form in ("csv", "latex"):
            raise InputError(f"--format {self.form}: a difference is a page or Markdown; give html or md")
        if self.table != "leaderboard" and self.form != "csv":
            raise InputError("--table goes with --format csv; leave it out")
        if self.out is not None and (self.out.is_dir() or not self.out.absolute().parent.is_dir()):
            raise InputError(f"--out {self.out}: give the name of a file in a folder that exists")
