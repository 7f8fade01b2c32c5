"""``advisor tasks``, ``methods`` and ``schema``: lists of what is available, and the schemas of files."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from importlib import import_module
from typing import Annotated

import typer

from ensemble.errors import InputError


def tasks() -> None:
    """List the tasks, one per line."""
    from advisor.tasks import list_tasks

    for task in list_tasks():
        _print_entry(f"{task.name:16} {task.metric:12} ", task.summary)


def methods() -> None:
    """List the methods of ensembling, one per line."""
    from ensemble.methods import list_methods, plugins

    for name, method in list_methods().items():
        package = "" if method.package is None else f" ({method.package})"
        _print_entry(f"{name:16} {method.level:9} ", f"{method.summary}; {method.when}{package}")
    # The others work, so this is not an error.
    for problem in plugins().problems.values():
        print(f"advisor: {problem}", file=sys.stderr)


def _print_entry(name: str, words: str) -> None:
    """Print an entry on one line, for programs; on a terminal the words are wrapped beside the name."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        words = f"\n{' ' * len(name)}".join(textwrap.wrap(words, max(width - len(name), 20)))
    print(f"{name}{words}")


SCHEMAS = {
    "result": "advisor.run.result:Result",
    "samples": "advisor.run.figures:Sample",
    "labels": "advisor.run.figures:LabelRow",
    "evaluation": "advisor.run.evaluation:Evaluation",
    "ensemble": "ensemble.saved.ensemble_json:SavedEnsemble",
    "strategy": "advisor.strategies.schema:StrategyFile",
    "pool": "ensemble.models.spec:PoolLine",
    "task": "advisor.tasks.schema:TaskFile",
}
"""Module and class of each file's model, imported when it is asked for."""


def schema(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"A file: {', '.join(SCHEMAS)}.")],
) -> None:
    """Print the JSON Schema of a file; those of samples, labels and the pool are of one line."""
    if name not in SCHEMAS:
        raise InputError(f"schema {name}: no schema has this name; give one of {', '.join(SCHEMAS)}")
    module, _, model = SCHEMAS[name].partition(":")
    print(json.dumps(getattr(import_module(module), model).model_json_schema(), indent=2))
