"""The options of ``advisor evaluate``."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.options.on_run import AgainOptions, RunArgument
from advisor.options.option import Options, changed, option
from advisor.options.profile import SplitOptions
from advisor.options.shared import (
    CacheOptions,
    JudgeOptions,
    OutputOptions,
    QuestionOptions,
    SeedOptions,
    TaskOptions,
    WeightOptions,
)


@dataclass(frozen=True, kw_only=True)
class MethodsOptions(Options, panel="Decoding"):
    """What is evaluated."""

    methods: str = option("unite,voting", "Names with commas between them; see advisor methods.")
    members: str = option(
        "", "Candidates of the run with commas between them, the primary first. Default: the chosen set."
    )
    settings: tuple[str, ...] = option((), "An option of a method.", "--set", metavar="METHOD.NAME=VALUE")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(
    OutputOptions,
    CacheOptions,
    AgainOptions,
    WeightOptions,
    SeedOptions,
    JudgeOptions,
    QuestionOptions,
    MethodsOptions,
    RunArgument,
):
    """Of ``advisor evaluate``."""

    task: str | None = changed(TaskOptions, "task", help="The name of a task, or a task file. Default: the run's.")
    split: str = changed(SplitOptions, "split", default="held_out", help="The split to evaluate on.")
