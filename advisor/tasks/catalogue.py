"""The built-in tasks: every YAML file in this folder is one.

>>> find_task("gsm8k")
(PosixPath('.../advisor/tasks/gsm8k.yaml'), None)
>>> find_task("my/refunds.yaml")
(PosixPath('my/refunds.yaml'), None)
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from advisor.tasks.definition import read_definition
from ensemble.errors import InputError

_FOLDER = Path(__file__).parent
_ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """A built-in task in a list: its name, its metric, one line about it, and its file."""

    name: str
    metric: str
    summary: str
    file: Path


def list_tasks() -> tuple[TaskSummary, ...]:
    """All built-in tasks, by name."""
    definitions = (read_definition(path) for path in sorted(_FOLDER.glob("*.yaml")))
    return tuple(TaskSummary(task.name, task.metric, task.summary, task.file) for task in definitions)


def find_task(name_or_path: str | Path) -> tuple[Path, str | None]:
    """The file of a task, and the variant that is asked for, as in ``mmlu:anatomy``.

    Args:
        name_or_path: A built-in task's name, or the path of a task file; ``:variant`` may follow.

    Raises:
        InputError: It is neither.
    """
    text = str(name_or_path)
    path = Path(text)
    if path.is_file() and path.suffix in _ENDINGS:
        return path, None
    base, colon, variant = text.rpartition(":")
    name = base if colon else text
    if name.endswith(_ENDINGS) or isinstance(name_or_path, Path) or os.sep in name:
        if not Path(name).is_file():
            raise InputError(
                f"there is no task file {name}; correct the path, or give a name that `advisor tasks` lists"
            )
        return Path(name), variant if colon else None
    names = [path.stem for path in sorted(_FOLDER.glob("*.yaml"))]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise InputError(
            f"there is no task '{name}'; {guess}`advisor tasks` lists them, FILE.yaml is a task of your own, and "
            "lm_eval:NAME one of lm-eval's"
        )
    return _FOLDER / f"{name}.yaml", variant if colon else None
