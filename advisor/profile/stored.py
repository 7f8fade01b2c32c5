"""What the response cache has of a run's candidates, before the run: it is only read, and no model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from advisor.config import RunConfig
from advisor.pool.weights import EQUAL
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.response_cache import ResponseCache
from advisor.tasks.task import Task
from ensemble.errors import UniteError
from ensemble.models.spec import ModelSpec

Said = dict[str, str | None]
"""Responses by the ids of their questions; None for one that failed."""


def stored_responses(config: RunConfig, entries: Sequence[ModelSpec]) -> dict[str, tuple[Said, ...]]:
    """The responses of candidates that the cache has, by name: those to the dev questions, and to the held-out ones.

    Args:
        config: The run.
        entries: The candidates; those behind servers are left out, because what is stored of them depends on what the
            server says today, and it gets no request here.
    """
    here = [entry for entry in entries if not entry.is_remote]
    if not here or not (config.cache_dir / "responses.sqlite").is_file():
        return {}
    found: dict[str, tuple[Said, ...]] = {}
    try:
        with ResponseCache(config.cache_dir, read_only=True) as cache:
            for entry in here:
                # One by one: a candidate that cannot be used must not hide what is stored of the others.
                try:
                    alone = Profiler(replace(config, candidates=(entry,), weights=EQUAL), cache, Progress(quiet=True))
                except UniteError:
                    continue  # the check of the pool reports the problem
                found[entry.name] = tuple(alone.stored_alone(entry.name, task) for task in splits_of(config))
    except UniteError:
        return {}  # the run itself reports a cache that cannot be read, or replaces it
    return found


def is_profiled(config: RunConfig, entry: ModelSpec) -> bool:
    """Whether the cache has all responses of a candidate to the dev questions, so that a run can go on without it."""
    stored = stored_responses(config, [entry]).get(entry.name)
    return stored is not None and unanswered(config.dev, stored[0]) == 0


def unanswered(task: Task, said: Said) -> int:
    """How many questions of a task are still to be answered; none come after a response that failed."""
    ended: set[str | None] = {number for number, text in said.items() if text is None}
    left = 0
    for example in task.examples:
        if example.earlier is not None and example.earlier in ended:
            ended.add(example.id)
        else:
            left += example.id not in said
    return left


def splits_of(config: RunConfig) -> list[Task]:
    """The dev questions, and the held-out ones if the run has any."""
    return [config.dev, *([] if config.held_out is None else [config.held_out])]
