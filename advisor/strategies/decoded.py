"""A set that decodes together by a token-level or span-level method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from advisor.strategies.strategy import Call, Flow, QuestionText, Strategy, TrainingData


@dataclass(frozen=True)
class Decoded(Strategy):
    """A set that decodes together. It is run, and not learned from answers of single models.

    Attributes:
        method: The name of the method, which is the strategy's name.
    """

    method: str

    ROLE: ClassVar[str] = "member of the set"

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.method

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[Decoded]:  # noqa: ARG003
        """No set: :mod:`advisor.jobs.held_out` chooses and runs it."""
        yield from ()

    def flow(self, question: QuestionText) -> Flow:  # noqa: ARG002
        """One call of all members."""
        yield [Call(tuple(range(len(self.members))))]
        return 0

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
