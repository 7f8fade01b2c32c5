"""Tasks: questions with references, and how a response is scored.

    >>> task = load_task("gsm8k", split="test", data_dir="../shared/data", shots=5, limit=20, seed=0)
    >>> task.score(task.examples[0], "16 - 3 - 4 = 9 eggs, so 9 * 2 = 18 dollars.")
    Score(value=1.0, extracted='18')

A task is one YAML file, also every built-in one; docs/how-to/own-task.md describes the format.
"""

from __future__ import annotations

from advisor.tasks.catalogue import TaskSummary, list_tasks
from advisor.tasks.loading import load_task
from advisor.tasks.values import Example, Score, Signature, Task

__all__ = ["Example", "Score", "Signature", "Task", "TaskSummary", "list_tasks", "load_task"]
