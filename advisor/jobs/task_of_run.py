"""The task of a run, for the commands that ask its models again."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from advisor.options.shared import QuestionOptions
from advisor.runs.run import Run
from advisor.tasks.lm_eval_tasks.load import PREFIX
from ensemble.errors import InputError

_Options = TypeVar("_Options", bound=QuestionOptions)


def with_task_of(run: Run, options: _Options) -> _Options:
    """The options with the task of the run where they name none.

    Raises:
        InputError: The run does not say which task and data it had, or they are only read if the user names them.
    """
    if options.task is not None:
        return options
    settings = run.result.provenance.settings or {}
    task, data = settings.get("task"), settings.get("data")
    if not isinstance(task, str):
        raise InputError(f"--task is missing, and {run.place} does not say which task it had; give --task")
    # The folder may come from a stranger: a task of lm-eval may run code, and any folder may be named as data.
    if task.startswith(PREFIX):
        raise InputError(f"--task is missing; give --task {task} to load the task of the run, which may run code")
    if data is not None and options.data is None:
        raise InputError(f"--data is missing: the run read {task} from {data}; give this folder, or one with new data")
    return replace(options, task=task)
