"""The built-in tasks, and the file of a task name.

>>> find_task("gsm8k")
(PosixPath('.../advisor/tasks/builtin/gsm8k.yaml'), None)
>>> find_task("my/refunds.yaml:spring")
(PosixPath('my/refunds.yaml'), 'spring')
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from advisor.tasks.data_files import TABLES, data_suffix
from advisor.tasks.task_file import read_mapping
from ensemble.common.text import did_you_mean
from ensemble.errors import InputError

_BUILTIN = Path(__file__).parent / "builtin"
# The demo's task is beside its data and not in `builtin`: the paths in a task file are part of the task's fingerprint.
_DEMO = Path(__file__).parents[1] / "demo" / "word_problems.yaml"
_ENDINGS = (".yaml", ".yml")
_FILE = re.compile(r"(.*\.ya?ml):([^/]*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """A built-in task in a list.

    Attributes:
        name: The task's name.
        metric: The metric's name.
        summary: One line about the task.
        file: The task file.
    """

    name: str
    metric: str
    summary: str
    file: Path


def list_tasks() -> tuple[TaskSummary, ...]:
    """All built-in tasks, by name."""
    # Only the texts: checking the templates would start a process, and the tests load every built-in task.
    files = [(path, read_mapping(path)) for path in _builtin_files().values()]
    return tuple(
        TaskSummary(str(values["name"]), str(values["metric"]), str(values.get("summary", "")), path)
        for path, values in files
    )


def find_task(name_or_path: str | Path) -> tuple[Path, str | None]:
    """The file of a task, and its variant and form, as in ``mmlu:anatomy:texts``.

    Args:
        name_or_path: A built-in task's name, or the path of a task file; ``:variant`` may follow.

    Raises:
        InputError: It is neither.
    """
    text = str(name_or_path)
    path = Path(text)
    # First, since a path may contain a colon.
    if path.suffix in _ENDINGS and _is_file(path):
        return path, None
    if data_suffix(path) in (*TABLES, ".jsonl") and _is_file(path):
        raise InputError(f"{path} is data and not a task file; write one with `advisor init {path}`")
    # For the same reason the variant of a file begins after its ending.
    file = _FILE.fullmatch(text)
    name, _, variant = (file[1], ":", file[2]) if file else text.partition(":")
    if name.endswith(_ENDINGS) or isinstance(name_or_path, Path) or os.sep in text:
        if not _is_file(Path(name)):
            raise InputError(
                f"there is no task file {name}; correct the path, or give a name that `advisor tasks` lists"
            )
        return Path(name), variant
    files = _builtin_files()
    if name not in files:
        raise InputError(
            f"there is no task '{name}'; {did_you_mean(name, files)}`advisor tasks` lists them; FILE.yaml is "
            "your own task, and lm_eval:NAME is a task of lm-eval"
        )
    return files[name], variant or None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long for a file system
        return False


def _builtin_files() -> dict[str, Path]:
    """The file of each built-in task, in the order of the names."""
    return {path.stem: path for path in sorted((*_BUILTIN.glob("*.yaml"), _DEMO), key=lambda path: path.stem)}
