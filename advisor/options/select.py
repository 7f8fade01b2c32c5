"""The options of ``advisor select``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from advisor.options.option import Options, Range, Source, option
from advisor.options.profile import DryRunOptions
from advisor.options.shared import (
    ANSWERS,
    LOGS,
    MEANS,
    MODELS,
    CacheOptions,
    CheckJudgeOptions,
    ConfidenceOptions,
    DecodingOptions,
    InferenceOptions,
    LimitsOptions,
    LogsOptions,
    OutputOptions,
    PoolOptions,
    QuantizationOptions,
    QuestionOptions,
    SeedOptions,
    VerificationOptions,
)
from ensemble.errors import InputError


@dataclass(frozen=True, kw_only=True)
class LogChoiceOptions(Options):
    """What of the logs counts, and what for."""

    only: str | None = option(
        None, "The models to take from the logs or the pool. Default: all.", metavar="GLOB,...", **ANSWERS
    )
    dev_size: int | None = option(
        None, "Questions of the logs that choose.", shown_default="300, at most half", within=Range(least=1), **LOGS
    )


@dataclass(frozen=True, kw_only=True)
class RaceOptions(Options):
    """Leaving work out."""

    race: bool = option(False, "Drop candidates as soon as they are surely outside the gap.", **MODELS)
    race_risk: float = option(
        0.05,
        "Probability that --race changes the selection.",
        within=Range(above=0, below=1, unit="a probability", example=0.05),
        needs=("race", ()),
        **MODELS,
    )
    no_verify: bool = option(False, "Do not run the set on held-out questions.", **MODELS)


@dataclass(frozen=True, kw_only=True)
class SourceOptions(Options):
    """Numbers instead of models, and where the result goes."""

    scores: Path | None = option(None, "A file with numbers, instead of models that run.")
    out: Path | None = option(None, "The run folder. Default: runs/TASK.", **MEANS)
    force: bool = option(False, "Replace a run with other settings in this folder.", **MEANS)


@dataclass(frozen=True, kw_only=True)
class SelectOptions(
    OutputOptions,
    DryRunOptions,
    CacheOptions,
    SourceOptions,
    RaceOptions,
    QuantizationOptions,
    InferenceOptions,
    DecodingOptions,
    VerificationOptions,
    ConfidenceOptions,
    LimitsOptions,
    LogChoiceOptions,
    LogsOptions,
    SeedOptions,
    CheckJudgeOptions,
    QuestionOptions,
    PoolOptions,
):
    """Of ``advisor select``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.until_sure and self.no_verify:
            raise InputError("--until-sure asks held-out questions, but --no-verify asks none; leave out one of them")

    @property
    def source(self) -> Source:
        """Where the answers come from."""
        return "models" if self.scores is None and not self.logs else "logs" if self.scores is None else "scores"
