"""Scores the responses of logs again: by a metric and a pattern, or as a task file does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from advisor.tasks.load import find_task
from advisor.tasks.metrics import metric_names, plugins, runs_code
from advisor.tasks.task import JUDGE
from advisor.tasks.task_file import read_definition
from advisor.tasks.templates import check_pattern
from ensemble.errors import InputError


@dataclass(frozen=True, slots=True)
class Scoring:
    """A metric that reads an answer from a response and compares it with the reference."""

    metric: str  # the name of the metric; the options of a choice question are compared by their letters
    extract: str | None = None  # see :class:`advisor.tasks.task.Task`

    def __post_init__(self) -> None:
        plugins().check(self.metric)
        if self.metric not in metric_names() or _needs_more(self.metric):
            # A plug-in is named without being loaded: only the one that is used may fail.
            names = [name for name in metric_names() if name in plugins() or not _needs_more(name)]
            raise InputError(f"--metric {self.metric}: not one of {', '.join(map(plugins().label, names))}")
        if self.extract is not None and (problem := check_pattern(self.extract)) is not None:
            raise InputError(f"--metric {self.metric}:{self.extract}: {problem}")

    @classmethod
    def of_text(cls, text: str) -> Scoring:
        """Read ``METRIC`` or ``METRIC:PATTERN``."""
        metric, colon, pattern = text.partition(":")
        if colon and not pattern:
            raise InputError(f"--metric {text}: give a pattern behind the colon, or leave out the colon")
        return cls(metric, pattern or None)

    @classmethod
    def of_task(cls, name_or_path: str | Path) -> Scoring:
        """The metric and the pattern of a built-in task or a task file. Its data is not read."""
        path, variant = find_task(name_or_path)
        definition = read_definition(path, variant)
        if _needs_more(definition.metric):
            what = "asks a model" if definition.metric == JUDGE else "runs code"
            raise InputError(
                f"{path}: its metric {definition.metric} {what}, and does not score logs; give another task"
            )
        return cls(definition.metric, definition.extract)


def _needs_more(metric: str) -> bool:
    """Whether a metric needs more than texts: a sandbox, or a judge."""
    return metric == JUDGE or runs_code(metric)
