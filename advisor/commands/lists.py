"""``advisor tasks`` and ``advisor methods``: lists of what is available."""

from __future__ import annotations

import shutil
import sys
import textwrap


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
