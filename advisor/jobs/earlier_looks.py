"""The looks that an earlier run in the same folder has recorded."""

from __future__ import annotations

from pathlib import Path

from advisor.advice.sequential import Look
from advisor.progress import Progress
from advisor.runs.run import Run
from advisor.runs.schema.result import LookRecord
from ensemble.errors import InputError


def looks_or_note(folder: Path, progress: Progress) -> tuple[Look, ...]:
    """The looks that a run folder records; if they cannot be read, none, and a note that says why."""
    if not (folder / "result.json").is_file():
        return ()
    try:
        return tuple(map(_look, Run.open(folder, "its looks are not counted").result.looks))
    except InputError as error:
        # The new run replaces the file anyway.
        progress.say(str(error))
        return ()


def _look(record: LookRecord) -> Look:
    return Look(
        questions=record.questions,
        members=record.members,
        method=record.method,
        k=record.k,
        plan=record.plan,
        n=record.n,
        p_no_gain=record.p_no_gain,
        p_no_loss=record.p_no_loss,
        limit=record.limit,
        test=record.test,
    )
