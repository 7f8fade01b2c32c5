"""The options of the commands that prepare a run, or make one: init, doctor, select, profile, label."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from advisor.options.option import AT_LEAST_0, Options, Source, argument, changed, option
from advisor.options.shared import (
    LOGS,
    MEANS,
    MODELS,
    AnswersOptions,
    CacheOptions,
    ClusterOptions,
    InferenceOptions,
    JudgeOptions,
    LimitsOptions,
    LogsOptions,
    OutputOptions,
    PoolOptions,
    SeedOptions,
    TaskOptions,
    VerificationOptions,
    VoterOptions,
    WeightOptions,
)
from ensemble.errors import InputError


@dataclass(frozen=True, kw_only=True)
class DryRunOptions(Options, panel="Files and output"):
    """Looking before a run."""

    dry_run: bool = option(False, "Show prompts, token counts, memory and price; run nothing.", **MODELS, **MEANS)


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(
    OutputOptions,
    DryRunOptions,
    CacheOptions,
    ClusterOptions,
    InferenceOptions,
    SeedOptions,
    JudgeOptions,
    TaskOptions,
    PoolOptions,
    panel="Models and questions",
):
    """Only profile: fill the cache and print the leaderboard. --json has the form that --scores reads."""

    split: str = option("dev", "The split to profile on.", **MODELS)


@dataclass(frozen=True, kw_only=True)
class SelectOptions(
    OutputOptions,
    DryRunOptions,
    CacheOptions,
    InferenceOptions,
    WeightOptions,
    VerificationOptions,
    LimitsOptions,
    AnswersOptions,
    LogsOptions,
    SeedOptions,
    JudgeOptions,
    TaskOptions,
    PoolOptions,
    panel="Files and output",
    are_rare=True,
):
    """Profile every candidate, choose a set by the rules, run it on held-out questions, write a report."""

    no_verify: bool = option(
        False,
        "Do not run the set on held-out questions.",
        panel="Choosing and verifying",
        unless=("labels",),
        **MODELS,
    )
    scores: Path | None = option(None, "A file with numbers, instead of models that run.", panel="Models and questions")
    router: Path | None = option(
        None,
        "A table with the model that your router chose for each question (id or question, model), to see if it pays.",
        panel="Logs",
        metavar="FILE",
        **LOGS,
    )
    out: Path | None = option(None, "The run folder. Default: runs/TASK.", is_rare=False, **MEANS)
    force: bool = option(False, "Replace a run with other settings in this folder.", **MEANS)

    @property
    def source(self) -> Source:
        """Where the answers come from."""
        return "models" if self.scores is None and not self.logs else "logs" if self.scores is None else "scores"


@dataclass(frozen=True, kw_only=True)
class LabelOptions(
    OutputOptions,
    CacheOptions,
    InferenceOptions,
    VoterOptions,
    LogsOptions,
    SeedOptions,
    TaskOptions,
    AnswersOptions,
    PoolOptions,
    panel="Files and output",
):
    """Write a table of the questions whose labels decide, where there are no references; select --labels reads it."""

    labels: Path | None = changed(
        AnswersOptions,
        "labels",
        help="A table of an earlier call with labels of the round `choose`: add the round `verify`.",
    )
    accuracy: int = option(
        0,
        "Also this many of the questions on which the answers agree, without which no accuracy is known.",
        panel="Choosing and verifying",
        needs=("labels", ()),
        within=AT_LEAST_0,
    )
    out: Path | None = option(
        None, "The table, .csv or .jsonl.", metavar="FILE", shown_default="labels.csv, or --labels", **MEANS
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.table.suffix not in (".csv", ".jsonl"):
            raise InputError(f"--out {self.table}: give a file that ends in .csv or .jsonl")
        # Labels take hours.
        if self.table != self.labels and self.table.exists():
            raise InputError(
                f"--out {self.table}: it exists, and may have labels; give it as --labels, or give another --out"
            )

    @property
    def source(self) -> Source:
        """Where the answers come from."""
        return "logs" if self.logs else "models"

    @property
    def table(self) -> Path:
        """The file that is written."""
        return self.out or self.labels or Path("labels.csv")

    @property
    def of_select(self) -> SelectOptions:
        """The same options of ``select``."""
        return SelectOptions(**{**self.shared(SelectOptions), "out": None})


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
        TaskOptions, "allow_code_execution", help="Run the programs of the data to score its references."
    )


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(CacheOptions, TaskOptions, PoolOptions):
    """Show the machine, versions, the hub, the cache, and with --pool which models fit. Status 1 if one cannot run."""

    max_models: int = changed(LimitsOptions, "max_models")
    max_new_tokens: int | None = changed(InferenceOptions, "max_new_tokens")
    device: str = changed(InferenceOptions, "device")
    dtype: str = changed(InferenceOptions, "dtype")
    as_json: bool = changed(OutputOptions, "as_json")
