"""Values of untrusted logs: what can be used of them, and which score counts if there are several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from advisor.tables.streams import Notes
from ensemble.common.text import shortened, visible
from ensemble.errors import InputError

LONGEST_NAME = 500
"""Characters of a model's name."""
# Floats hold every whole number up to here.
_LARGEST = 2**53
_MOST, _LONGEST = 20, 80
"""Names in a message, and characters of a name."""


def count_of(value: object) -> int | None:
    """A whole number of at least 0; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _LARGEST:
        return None
    return int(value) if value == int(value) else None


def amount_of(value: object) -> float | None:
    """A time or a sum of at least 0; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _LARGEST:
        return None
    return float(value)


def object_at(value: object, key: str) -> dict[str, Any]:
    """The object that an object has under a key; empty if one of the two is something else."""
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def check_name(name: str, place: str) -> str:
    """Check a model's name.

    Raises:
        InputError: It is empty or too long, or has characters that cannot be printed.
    """
    if not name.strip() or not name.isprintable() or len(name) > LONGEST_NAME:
        raise InputError(
            f"{place}: the model's name {name[:50]!a} is not a printable text of 1 to {LONGEST_NAME} characters; "
            "correct the log"
        )
    return name


def choose_score(names: Sequence[str], wanted: str | None, path: Path) -> str:
    """The name of the score that counts.

    Args:
        names: All names, the one to take by default first; at least one.
        wanted: The name that the user gave; None for the default.
        path: The log, for the message.

    Raises:
        InputError: The log has no score of this name.
    """
    if wanted is None or wanted in names:
        return wanted or names[0]
    raise no_score(wanted, names, path)


def no_score(wanted: str, names: Iterable[str], path: Path) -> InputError:
    """The error that a log has no score of the name that the user gave."""
    return InputError(f"--column score={wanted}: {path} has no such score; it has {listed(names) or 'none'}")


def note_others(chosen: str, names: Iterable[str], wanted: str | None, path: Path, notes: Notes) -> None:
    """Say which other scores a log has, if the user chose none."""
    if wanted is None and (others := listed(name for name in names if name != chosen)):
        notes.append(
            f"{path}: the score is {listed([chosen])}; the log also has {others} (choose with --column score=NAME)"
        )


def listed(names: Iterable[str]) -> str:
    """Names of a log, which are a part of one line: the first 20, and how many more there are."""
    known = list(dict.fromkeys(names))
    more = f" and {len(known) - _MOST} more" if len(known) > _MOST else ""
    return ", ".join(shortened(visible(name), _LONGEST) for name in known[:_MOST]) + more
