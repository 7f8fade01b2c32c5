"""The options of ``advisor select``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from advisor.options.option import Options, Source, option
from advisor.options.profile import DryRunOptions
from advisor.options.shared import (
    ANSWERS,
    MEANS,
    MODELS,
    CacheOptions,
    DecodingOptions,
    FusionOptions,
    InferenceOptions,
    JudgeOptions,
    LabelsOptions,
    LimitsOptions,
    LogsOptions,
    OutputOptions,
    PoolOptions,
    QuestionOptions,
    SeedOptions,
    VerificationOptions,
)


@dataclass(frozen=True, kw_only=True)
class LogChoiceOptions(Options, panel="Models and questions"):
    """What of the logs counts, and what for."""

    only: str | None = option(
        None,
        "Models of the pool or the logs to take, or to leave out (!GLOB). Default: all.",
        metavar="GLOB,...",
        **ANSWERS,
    )


@dataclass(frozen=True, kw_only=True)
class NoVerifyOptions(Options, panel="Choosing and verifying"):
    """Leaving work out."""

    no_verify: bool = option(False, "Do not run the set on held-out questions.", unless=("labels",), **MODELS)


@dataclass(frozen=True, kw_only=True)
class SourceOptions(Options, panel="Files and output"):
    """Numbers instead of models, and where the result goes."""

    scores: Path | None = option(None, "A file with numbers, instead of models that run.", panel="Models and questions")
    out: Path | None = option(None, "The run folder. Default: runs/TASK.", **MEANS)
    force: bool = option(False, "Replace a run with other settings in this folder.", **MEANS)


@dataclass(frozen=True, kw_only=True)
class SelectOptions(
    OutputOptions,
    DryRunOptions,
    CacheOptions,
    SourceOptions,
    NoVerifyOptions,
    InferenceOptions,
    DecodingOptions,
    FusionOptions,
    VerificationOptions,
    LimitsOptions,
    LabelsOptions,
    LogChoiceOptions,
    LogsOptions,
    SeedOptions,
    JudgeOptions,
    QuestionOptions,
    PoolOptions,
):
    """Of ``advisor select``."""

    @property
    def source(self) -> Source:
        """Where the answers come from."""
        return "models" if self.scores is None and not self.logs else "logs" if self.scores is None else "scores"
