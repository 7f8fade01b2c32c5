"""Which score of a log counts, if it has several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from advisor.logs.values import line_of
from advisor.tables.streams import Notes
from ensemble.errors import InputError

_MOST = 12
"""Names in a message."""


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
    return InputError(f"--column score={wanted}: {path} has no such score; it has {_listed(names) or 'none'}")


def note_others(chosen: str, names: Iterable[str], wanted: str | None, path: Path, notes: Notes) -> None:
    """Say which other scores a log has, if the user chose none."""
    if wanted is None and (others := _listed(name for name in names if name != chosen)):
        notes.append(
            f"{path}: the score is {_listed([chosen])}; the log also has {others} (choose with --column score=NAME)"
        )


def note_unscored(chosen: str | None, count: int, path: Path, notes: Notes) -> None:
    """Say how many records have no score that can be used; `chosen` is None if no record has any."""
    if count:
        what = "1 record has" if count == 1 else f"{count:,} records have"
        notes.append(f"{path}: {what} no score{f' {_listed([chosen])}' if chosen else ''} between 0 and 1")


def _listed(names: Iterable[str]) -> str:
    # The log gives the names: each is a part of one line.
    known = list(dict.fromkeys(line_of(name) or "''" for name in names))
    more = f" and {len(known) - _MOST} more" if len(known) > _MOST else ""
    return ", ".join(known[:_MOST]) + more
