"""``advisor schema``: the JSON Schema of a file that this program reads or writes."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Annotated

import typer

from ensemble.errors import InputError

SCHEMAS = {
    "result": "advisor.runs.schema.result:Result",
    "samples": "advisor.runs.schema.samples:Sample",
    "labels": "advisor.runs.schema.labels:LabelRow",
    "evaluation": "advisor.runs.schema.evaluation:Evaluation",
    "ensemble": "ensemble.saved.schema:SavedEnsemble",
    "strategy": "advisor.strategies.schema:StrategyFile",
    "pool": "ensemble.models.pool_line:PoolLine",
    "task": "advisor.tasks.schema:TaskFile",
}
"""Module and class of each file's model, imported when it is asked for."""


def schema(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"A file: {', '.join(SCHEMAS)}.")],
) -> None:
    """Print the JSON Schema of a file; those of samples, labels and the pool are of one line."""
    if name not in SCHEMAS:
        raise InputError(f"schema {name}: no schema has this name; give one of {', '.join(SCHEMAS)}")
    from ensemble.common.schema import json_schema

    module, _, model = SCHEMAS[name].partition(":")
    print(json.dumps(json_schema(getattr(import_module(module), model)), indent=2))
