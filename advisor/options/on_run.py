"""What the commands that ask the models of a run again share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from advisor.options.option import Options, argument, changed
from advisor.options.shared import InferenceOptions, JudgeOptions, LoadingOptions, ServerOptions


@dataclass(frozen=True, kw_only=True)
class RunArgument(Options):
    """A run folder."""

    run: Path = argument("A run folder.", "RUN")


@dataclass(frozen=True, kw_only=True)
class AgainOptions(ServerOptions, LoadingOptions, JudgeOptions, RunArgument, panel="Running models"):
    """How the models of a run answer again."""

    max_new_tokens: int | None = changed(InferenceOptions, "max_new_tokens")
    batch_size: int | None = changed(InferenceOptions, "batch_size")
