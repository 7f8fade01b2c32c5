"""A plan with nothing but candidates and questions, for what is measured below the command line."""

from __future__ import annotations

from pathlib import Path

from advisor.config import InferenceConfig, RunConfig
from advisor.pool.pool_file import PoolEntry
from advisor.profile.loader import Decoding
from advisor.records import Rules
from advisor.tasks import Task


def plain_plan(
    candidates: tuple[PoolEntry, ...],
    dev: Task,
    cache_dir: Path,
    command: str,
    inference: InferenceConfig | None = None,
) -> RunConfig:
    """A plan without a held-out split; everything that is not given is as a run without options has it."""
    return RunConfig(
        candidates=candidates,
        dev=dev,
        held_out=None,
        rules=Rules(),
        inference=inference or InferenceConfig(),
        decoding=Decoding(),
        seed=0,
        cache_dir=cache_dir,
        command=command,
    )
