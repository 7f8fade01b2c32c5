"""What every engine is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from advisor.config import InferenceConfig
from advisor.pool.resources import Resources
from advisor.profile.loader import Decoding
from advisor.profile.sheet import Answerer
from advisor.response_cache import Response
from advisor.tasks.task import Example, Task
from ensemble.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Job:
    """Questions for one model, or for several that decode together.

    Attributes:
        name: Whose responses they will be; unique among the jobs of a run.
        answerer: Who answers in this process.
        models: The models, the primary first, for who loads them elsewhere; empty where nobody else can.
        needs: What each of them asks of a node of a cluster.
        decoding: How they decode together.
        asked: The questions that there is no response to yet, by number; no model is loaded where there are none.
        task: What they belong to.
        inference: How to generate.
    """

    name: str
    answerer: Answerer
    models: tuple[ModelSpec, ...]
    needs: tuple[Resources, ...]
    decoding: Decoding
    asked: Mapping[int, Example]
    task: Task
    inference: InferenceConfig


@dataclass(frozen=True, slots=True)
class Begun:
    """A job has begun."""

    job: str


@dataclass(frozen=True, slots=True)
class Answered:
    """A question of a job has a response."""

    job: str
    number: int
    response: Response


@dataclass(frozen=True, slots=True)
class Ended:
    """A job has ended.

    Attributes:
        job: Its name.
        peak_memory: The most memory that it took, in bytes; None where it is not known, or nothing was asked.
        error: One line of why it ended before its last question; None where all was well.
    """

    job: str
    peak_memory: int | None = None
    error: str | None = None


Event: TypeAlias = Begun | Answered | Ended


class Engine(Protocol):
    """Has questions answered."""

    def run(self, jobs: Iterable[Job]) -> Generator[Event, None, None]:
        """Do some jobs; where one fails, the others go on.

        Yields:
            What happens, as it happens: each job begins, then its questions are answered, in any order, then it ends.
            The jobs may do so side by side.
        """
        ...
