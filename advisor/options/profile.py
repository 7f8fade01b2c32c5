"""The options of ``advisor profile``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from advisor.options.option import Options, option
from advisor.options.shared import (
    MEANS,
    MODELS,
    CacheOptions,
    CheckJudgeOptions,
    InferenceOptions,
    OutputOptions,
    PoolOptions,
    QuantizationOptions,
    QuestionOptions,
    SeedOptions,
)


@dataclass(frozen=True, kw_only=True)
class DryRunOptions(Options, panel="Files and output"):
    """Looking before a run."""

    dry_run: bool = option(False, "Show prompts, token counts, time, memory and price; run nothing.", **MODELS, **MEANS)


@dataclass(frozen=True, kw_only=True)
class BatchOptions(Options, panel="Files and output"):
    """Questions that a provider answers as a batch."""

    batch: Path | None = option(
        None,
        "Write the questions to models behind servers as OpenAI batch files into this folder; run nothing.",
        metavar="FOLDER",
        unless=("dry_run", "as_json"),
        **MODELS,
        **MEANS,
    )
    batch_results: tuple[str, ...] = option(
        (),
        "A file with a batch's answers; can be given several times.",
        metavar="FILE",
        unless=("dry_run",),
        **MODELS,
        **MEANS,
    )


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(
    OutputOptions,
    DryRunOptions,
    BatchOptions,
    CacheOptions,
    QuantizationOptions,
    InferenceOptions,
    SeedOptions,
    CheckJudgeOptions,
    QuestionOptions,
    PoolOptions,
):
    """Of ``advisor profile``."""
