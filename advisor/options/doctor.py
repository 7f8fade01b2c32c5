"""The options of ``advisor doctor``."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.options.option import Options, changed
from advisor.options.shared import (
    CacheOptions,
    InferenceOptions,
    LimitsOptions,
    OutputOptions,
    PoolOptions,
    QuestionOptions,
)


@dataclass(frozen=True, kw_only=True)
class MachineOptions(Options, panel="Running models"):
    """What is to fit on the machine."""

    max_models: int = changed(LimitsOptions, "max_models")
    max_new_tokens: int | None = changed(InferenceOptions, "max_new_tokens")
    device: str = changed(InferenceOptions, "device")
    dtype: str = changed(InferenceOptions, "dtype")


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(CacheOptions, MachineOptions, QuestionOptions, PoolOptions):
    """Of ``advisor doctor``."""

    as_json: bool = changed(OutputOptions, "as_json")
