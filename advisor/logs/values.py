"""Values of untrusted logs: what can be used of them, and which score counts if there are several."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from advisor.tasks.tables.streams import Notes, json_object
from ensemble.common.text import first_of, shortened, visible
from ensemble.errors import InputError

LONGEST_NAME = 500
"""Characters of a model's name."""
# Floats hold every whole number up to here.
_LARGEST = 2**53
_MOST, _LONGEST = 20, 80
"""Names in a message, and characters of a name."""


def count_of(value: object) -> int | None:
    """A whole number of at least 0, also as text; None for anything else."""
    amount = amount_of(value)
    return int(amount) if amount is not None and amount.is_integer() else None


def amount_of(value: object) -> float | None:
    """A time or a sum of at least 0, also as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        amount = float(value)
    except (ValueError, OverflowError):
        return None
    return amount if 0 <= amount < _LARGEST else None


def object_at(value: object, key: str) -> dict[str, Any]:
    """The object that an object has under a key; empty if one of the two is something else."""
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def check_name(name: str, place: str) -> str:
    """A model's name, after a check that it can be printed and is neither empty nor too long."""
    if not name.strip() or not name.isprintable() or len(name) > LONGEST_NAME:
        raise InputError(
            f"{place}: the model's name {name[:50]!a} is not a printable text of 1 to {LONGEST_NAME} characters; "
            "correct the log"
        )
    return name


def companion_object(paths: Sequence[Path], notes: Notes) -> dict[str, Any]:
    """The object in the first file that can be read of those that lie beside a log; empty without one."""
    for path in paths:
        try:
            return json_object(path)
        except InputError as error:
            notes.append(f"{error}; it was not used")
    return {}


def choose_score(names: Sequence[str], wanted: str | None, path: Path) -> str:
    """The name of the score that counts: the one that the user wants, or else the first of at least one."""
    if wanted is None or wanted in names:
        return wanted or names[0]
    raise no_score(wanted, names, path)


def no_score(wanted: str, names: Iterable[str], path: Path) -> InputError:
    """The error that a log has no score of the name that the user gave."""
    return InputError(f"--column score={wanted}: {path} has no such score; it has {listed(names) or 'none'}")


def note_others(chosen: str, names: Collection[str], wanted: str | None, path: Path, notes: Notes) -> None:
    """Say which other scores a log has, if the user chose none; an error if it has only others (`chosen` is empty)."""
    if names and wanted is not None and not chosen:
        raise no_score(wanted, names, path)
    if chosen and wanted is None and (others := listed(name for name in names if name != chosen)):
        notes.append(
            f"{path}: the score is {listed([chosen])}; the log also has {others} (choose with --column score=NAME)"
        )


def listed(names: Iterable[str]) -> str:
    """Names of a log, which are a part of one line: the first 20, and how many more there are."""
    return first_of([shortened(visible(name), _LONGEST) for name in dict.fromkeys(names)], _MOST)
