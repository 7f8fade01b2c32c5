"""What the commands write to standard output, and the line they were called by."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any


def command_line() -> str:
    """The command as it was typed, for the record."""
    return shlex.join(["advisor", *sys.argv[1:]])


def for_output(text: str) -> str:
    """A model's text: as it is for a file or a program, but a terminal obeys no command in it."""
    from reports.text import visible

    return visible(text, keep_lines=True) if sys.stdout.isatty() else text


def print_json(value: Any) -> None:
    """A result, and nothing else."""
    print(json.dumps(value, indent=2, ensure_ascii=True))
