"""A run, as it was asked for and checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from advisor.pool.pool_file import Candidate
from advisor.profile.loader import Decoding
from advisor.records import LEVEL, Rules
from advisor.setting import Setting
from advisor.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does.

    Attributes:
        candidates: The pool.
        dev: The questions that candidates are profiled on.
        held_out: The questions that the chosen set is verified on; None to leave it unverified.
        rules: The limits.
        setting: How models are loaded and generate.
        decoding: How the set decodes.
        seed: Of every draw and resampling.
        cache_dir: Where responses and tables are kept.
        command: The command line, for the record.
        race: Accepted chance that a race changes the selection, between 0 and 1; None to ask everybody everything.
        level: Accepted chance of advising an ensemble that gains nothing, between 0 and 1.
        search: Sets to decode on the dev questions, at least 1; None to take what the rules choose.
    """

    candidates: tuple[Candidate, ...]
    dev: Task
    held_out: Task | None
    rules: Rules
    setting: Setting
    decoding: Decoding
    seed: int
    cache_dir: Path
    command: str
    race: float | None = None
    level: float = LEVEL
    search: int | None = None
