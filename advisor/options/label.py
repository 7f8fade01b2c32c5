"""The options of ``advisor label``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from advisor.options.option import Range, Source, changed, option
from advisor.options.select import LogChoiceOptions, SelectOptions
from advisor.options.shared import (
    MEANS,
    CacheOptions,
    InferenceOptions,
    LabelsOptions,
    LimitsOptions,
    LogsOptions,
    OutputOptions,
    PoolOptions,
    QuestionOptions,
    SeedOptions,
)
from ensemble.errors import InputError


@dataclass(frozen=True, kw_only=True)
class TableOptions(LabelsOptions, panel="Files and output"):
    """The table, and what is in it."""

    labels: Path | None = changed(
        LabelsOptions,
        "labels",
        help="A table of an earlier call with labels of the round `choose`: add the round `verify`.",
    )
    accuracy: int = option(
        0,
        "Also this many of the questions on which the answers agree, without which no accuracy is known.",
        panel="Choosing and verifying",
        needs=("labels", ()),
        within=Range(least=0),
    )
    out: Path | None = option(
        None, "The table, .csv or .jsonl.", metavar="FILE", shown_default="labels.csv, or --labels", **MEANS
    )


@dataclass(frozen=True, kw_only=True)
class LabelOptions(
    OutputOptions,
    CacheOptions,
    TableOptions,
    InferenceOptions,
    LimitsOptions,
    LogChoiceOptions,
    LogsOptions,
    SeedOptions,
    QuestionOptions,
    PoolOptions,
):
    """Of ``advisor label``."""

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
        names = {field.name for field in fields(self)} & {field.name for field in fields(SelectOptions)} - {"out"}
        return SelectOptions(**{name: getattr(self, name) for name in names})
