"""The looks that an earlier run in the same folder has recorded."""

from __future__ import annotations

from pathlib import Path

from advisor.advice.sequential import Look
from advisor.progress import Progress
from advisor.runs.run import Run
from ensemble.errors import InputError


def looks_or_note(folder: Path, progress: Progress) -> tuple[Look, ...]:
    """The looks that a run folder records; if they cannot be read, none, and a note that says why."""
    if not (folder / "result.json").is_file():
        return ()
    try:
        recorded = Run.open(folder, "its looks are not counted").result.looks
    except InputError as error:
        # The new run replaces the file anyway.
        progress.say(str(error))
        return ()
    return tuple(Look(**dict(record)) for record in recorded)
