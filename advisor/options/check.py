"""The options of ``advisor check``."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.options.on_run import AgainOptions, RunArgument
from advisor.options.option import Options, Range, Source, changed, option
from advisor.options.profile import SplitOptions
from advisor.options.shared import (
    CacheOptions,
    LogsOptions,
    OutputOptions,
    QuestionOptions,
    SeedOptions,
    StrategyOptions,
    TaskOptions,
)


@dataclass(frozen=True, kw_only=True)
class GainOptions(Options, panel="Choosing and verifying"):
    """What counts as a gain."""

    min_gain: float | None = option(
        None,
        "The least gain that pays. Default: as in the run, or 0.",
        metavar="POINTS",
        within=Range(least=0, most=100, unit="points"),
    )


@dataclass(frozen=True, kw_only=True)
class CheckOptions(
    OutputOptions,
    CacheOptions,
    AgainOptions,
    LogsOptions,
    GainOptions,
    StrategyOptions,
    SeedOptions,
    QuestionOptions,
    RunArgument,
):
    """Of ``advisor check``."""

    task: str | None = changed(TaskOptions, "task", help="The name of a task, or a task file. Default: the run's.")
    split: str = changed(SplitOptions, "split", default="held_out", help="The split with fresh questions.")
    limit: int | None = changed(
        TaskOptions,
        "limit",
        help="The number of fresh questions.",
        shown_default="100; all of a log",
        sources=("models", "logs"),
    )
    seed: int = changed(SeedOptions, "seed", help="Another seed draws other fresh questions.")
    max_new_tokens: int | None = changed(
        AgainOptions, "max_new_tokens", help="The maximum number of tokens of a response. Default: as in the run."
    )

    @property
    def source(self) -> Source:
        """Where the answers come from."""
        return "logs" if self.logs else "models"
