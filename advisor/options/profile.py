"""The options of ``advisor profile``."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.options.option import Options, option
from advisor.options.shared import (
    MEANS,
    MODELS,
    CacheOptions,
    ClusterOptions,
    InferenceOptions,
    JudgeOptions,
    OutputOptions,
    PoolOptions,
    QuestionOptions,
    SeedOptions,
)


@dataclass(frozen=True, kw_only=True)
class DryRunOptions(Options, panel="Files and output"):
    """Looking before a run."""

    dry_run: bool = option(False, "Show prompts, token counts, memory and price; run nothing.", **MODELS, **MEANS)


@dataclass(frozen=True, kw_only=True)
class SplitOptions(Options, panel="Models and questions"):
    """Which questions of a task."""

    split: str = option("dev", "The split to profile on.", **MODELS)


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(
    OutputOptions,
    DryRunOptions,
    CacheOptions,
    ClusterOptions,
    InferenceOptions,
    SeedOptions,
    JudgeOptions,
    QuestionOptions,
    SplitOptions,
    PoolOptions,
):
    """Of ``advisor profile``."""
