"""The configuration of a run, made once from a command's options and checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from advisor.pool.pool_file import Candidate
from advisor.records import LEVEL, Rules
from advisor.tasks.values import Task
from ensemble.models.spec import ChatTemplate

EngineName = Literal["local", "ray"]


@dataclass(frozen=True, slots=True)
class InferenceConfig:
    """How a run loads its models and generates.

    Attributes:
        device: For candidates that name none.
        dtype: For candidates that name none.
        chat_template: For candidates that name none.
        max_new_tokens: Tokens after which a response is cut off; None for the task's own.
        batch_size: Prompts at a time; None to begin with a usual one, and halve it when memory runs out.
        temperature: 0 for greedy decoding, else the temperature of the draws.
        seed: Of the draws.
        engine: Where candidates and sets answer: in this process, or on a Ray cluster.
        ray_address: The cluster's; see :func:`ensemble.distributed.ray_cluster.cluster`.
    """

    device: str = "cpu"
    dtype: str = "auto"
    chat_template: ChatTemplate = "auto"
    max_new_tokens: int | None = None
    batch_size: int | None = None
    temperature: float = 0.0
    seed: int = 0
    engine: EngineName = "local"
    ray_address: str | None = None

    def limit(self, task: Task) -> int:
        """Tokens after which a response to a task's question is cut off."""
        return self.max_new_tokens or task.max_new_tokens


@dataclass(frozen=True, slots=True)
class RunConfig:
    """What a run does.

    Attributes:
        candidates: The pool.
        dev: The questions that candidates are profiled on.
        held_out: The questions that the chosen set is verified on; None to leave it unverified.
        rules: The limits.
        inference: How models are loaded and generate.
        seed: Of every draw and resampling.
        cache_dir: Where responses and tables are kept.
        command: The command line, for the record.
        race: Accepted chance that a race changes the selection, between 0 and 1; None to ask everybody everything.
        level: Accepted chance of advising an ensemble that gains nothing, between 0 and 1.
        search: Sets to decode on the dev questions, at least 1; None to take what the rules choose.
        method: The token-level or span-level method of the set.
        k: Candidates that each member brings to the union.
    """

    candidates: tuple[Candidate, ...]
    dev: Task
    held_out: Task | None
    rules: Rules
    inference: InferenceConfig
    seed: int
    cache_dir: Path
    command: str
    race: float | None = None
    level: float = LEVEL
    search: int | None = None
    method: str = "unite"
    k: int = 10
