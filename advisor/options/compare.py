"""The options of ``advisor compare``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from advisor.options.option import Options, Range, argument, changed, option
from advisor.options.shared import LogsOptions, OutputOptions, SeedOptions
from advisor.records import FIGURE_CONFIDENCE, alpha_of
from ensemble.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ComparedArguments(Options):
    """What is compared."""

    models: tuple[str, ...] = argument(
        "Run folders or logs, each with #MODEL if it has several; with --logs, models of these logs. "
        "The first is the baseline.",
        "A B",
        (),
    )


@dataclass(frozen=True, kw_only=True)
class GateOptions(SeedOptions, panel="Choosing and verifying"):
    """What counts as a difference, and when the command fails."""

    confidence: float = option(
        FIGURE_CONFIDENCE,
        "Confidence of the intervals and tests of differences.",
        within=Range(above=0, below=1, unit="a number", example=FIGURE_CONFIDENCE),
    )
    margin: float = option(
        1.0, "Points within which models count as equal.", within=Range(above=0, most=100, unit="points")
    )
    fail_if_worse: float | None = option(
        None,
        "End with status 3 if a model is shown to be worse than the first by more than these points.",
        metavar="POINTS",
        within=Range(least=0, most=100, unit="points"),
    )
    fail_if_unsure: bool = option(
        False,
        "With --fail-if-worse: also fail if the questions are too few to tell.",
        needs=("fail_if_worse", ()),
    )
    html: Path | None = option(None, "Also write a page.", panel="Files and output", metavar="FILE")

    @property
    def alpha(self) -> float:
        """The probability that the truth is beyond one end of an interval."""
        return alpha_of(self.confidence)


@dataclass(frozen=True, kw_only=True)
class CompareOptions(OutputOptions, GateOptions, LogsOptions, ComparedArguments):
    """Of ``advisor compare``."""

    quiet: bool = changed(OutputOptions, "quiet", help="Show no notes on what was left out of the logs.")

    def __post_init__(self) -> None:
        super().__post_init__()
        # Before the logs are read, which can take a minute.
        if self.html is not None and (self.html.is_dir() or not self.html.absolute().parent.is_dir()):
            raise InputError(f"--html {self.html}: give the name of a file in a folder that exists")
        if not (self.models or self.logs):
            raise InputError(
                "nothing to compare; give two run folders or logs, or --logs with the logs of several models"
            )
