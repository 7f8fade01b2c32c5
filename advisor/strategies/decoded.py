"""A set that decodes together by a token-level or span-level method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from advisor.records import Profile
from advisor.strategies.strategy import Strategy, TrainingData
from advisor.tasks.task import Task
from ensemble.errors import InputError

if TYPE_CHECKING:
    from advisor.running.asking import PromptCalls


@dataclass(frozen=True)
class Decoded(Strategy):
    """A set that decodes together. It is run, and not learned from answers of single models.

    Attributes:
        method: The name of the method, which is the strategy's name.
    """

    method: str

    ASKS: ClassVar[bool] = False
    WRITES: ClassVar[bool] = True
    ROLE: ClassVar[str] = "member of the set"

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.method

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[Decoded]:  # noqa: ARG003
        """No set: :mod:`advisor.jobs.held_out` chooses and runs it."""
        yield from ()

    def picks(self, responses: Sequence[Profile], task: Task) -> Sequence[int]:  # noqa: ARG002
        """A set takes no response of a member.

        Raises:
            InputError: Always.
        """
        raise InputError(f"{self._names} decode together ({self.method}), and write a new text")

    async def ask(self, calls: PromptCalls) -> int:  # noqa: ARG002
        """A set is not asked model by model.

        Raises:
            InputError: Always.
        """
        raise InputError(f"{self._names} decode together ({self.method}), and are not asked one by one")

    def title(self, members: Sequence[str]) -> str:  # noqa: ARG002
        """See :meth:`Strategy.title`."""
        return f"{self.method}, {self._models} together"

    def describe(self) -> str:
        """See :meth:`Strategy.describe`."""
        return (
            f"Decode {self._names} together, in this order: at each word they vote on the next piece of text "
            f"({self.method})"
        )

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        return f"Decode these {self._count} models together."
