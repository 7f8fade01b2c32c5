"""The options of the commands that prepare a run: init, doctor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from advisor.options.option import Options, argument, changed, option
from advisor.options.shared import (
    CacheOptions,
    CodeOptions,
    InferenceOptions,
    LimitsOptions,
    OutputOptions,
    PoolOptions,
    QuestionOptions,
)


@dataclass(frozen=True, kw_only=True)
class InitOptions(Options):
    """Write a task file for your data: guess the question, the answer, the metric and the split, and say why."""

    data: tuple[str, ...] = argument("A file, a file for dev and one for held-out, a folder, or a hub id.", "DATA...")
    out: Path | None = option(None, "The task file.", metavar="FILE", shown_default="NAME.yaml")
    name: str | None = option(None, "The task's name. Default: from the data.")
    question: str | None = option(None, "The question.", metavar="COLUMN")
    reference: str | None = option(None, "The right answer, or the accepted answers.", metavar="COLUMN")
    choices: str | None = option(None, "The options: columns, one column with lists, or none.", metavar="COLUMN,...")
    metric: str | None = option(None, "How a response is scored.")
    decimal: str | None = option(None, "The decimal mark of the references: a point or a comma.", metavar="MARK")
    config: str | None = option(None, "The configuration of a data set of the hub.")
    yes: bool = option(False, "Take all guesses; ask nothing.")
    force: bool = option(False, "Replace a task file that exists.")
    allow_code_execution: bool = changed(
        CodeOptions, "allow_code_execution", help="Run the programs of the data to score its references."
    )


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(CacheOptions, QuestionOptions, PoolOptions):
    """Show the machine, versions, the hub, the cache, and with --pool which models fit. Status 1 if one cannot run."""

    max_models: int = changed(LimitsOptions, "max_models")
    max_new_tokens: int | None = changed(InferenceOptions, "max_new_tokens")
    device: str = changed(InferenceOptions, "device")
    dtype: str = changed(InferenceOptions, "dtype")
    as_json: bool = changed(OutputOptions, "as_json")
