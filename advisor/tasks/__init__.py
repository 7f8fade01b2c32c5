"""Tasks: questions with references, and the score of a response.

    >>> task = load_task("gsm8k", split="test", data_dir="../shared/data", shots=5, limit=20, seed=0)
    >>> task.score(task.examples[0], "16 - 3 - 4 = 9 eggs, so 9 * 2 = 18 dollars.")
    Score(value=1.0, extracted='18')

A task is one YAML file. The built-in tasks are in `builtin/`, and the demo's is `advisor/demo/word_problems.yaml`.
docs/how-to/own-task.md describes the format. From the file to the prompts:

    task_file.py      reads and checks the file
    templates.py      compiles its Jinja templates and its regular expression
    data_sources.py   reads the records of a split: local files (data_files.py) or a data set of the hub
    questions.py      turns records into questions, and draws some of them
    load.py           does all of this for one task and gives a `Task` (task.py)
"""

from __future__ import annotations

from advisor.tasks.load import TaskSummary, list_tasks, load_task
from advisor.tasks.task import Example, Score, Task

__all__ = ["Example", "Score", "Task", "TaskSummary", "list_tasks", "load_task"]
