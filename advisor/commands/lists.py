"""``advisor tasks`` and ``advisor methods``: lists of what is available."""

from __future__ import annotations

import sys


def tasks() -> None:
    """List the tasks, one per line."""
    from advisor.tasks import list_tasks

    for task in list_tasks():
        print(f"{task.name:16} {task.metric:12} {task.summary}")


def methods() -> None:
    """List the methods of ensembling, one per line."""
    from ensemble.methods import list_methods, plugins

    for name, method in list_methods().items():
        package = "" if method.package is None else f" ({method.package})"
        print(f"{name:16} {method.level:9} {method.summary}; {method.when}{package}")
    # The others work, so this is not an error.
    for problem in plugins().problems.values():
        print(f"advisor: {problem}", file=sys.stderr)
