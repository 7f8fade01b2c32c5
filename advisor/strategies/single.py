"""One model that answers once. All other strategies are compared with the best one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from advisor.strategies.strategy import Call, Flow, QuestionText, Strategy, TrainingData


@dataclass(frozen=True)
class Single(Strategy):
    """One model that answers once."""

    KIND: ClassVar[str] = "single"
    SIMPLICITY: ClassVar[int] = 0
    ROLE: ClassVar[str] = "single model"
    MEMBERS: ClassVar[tuple[int, int]] = (1, 1)

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[Single]:
        """See :meth:`Strategy.learn`."""
        yield cls((given.best,))

    def flow(self, question: QuestionText) -> Flow:  # noqa: ARG002
        """See :meth:`Strategy.flow`."""
        yield [Call((0,))]
        return 0

    def title(self, members: Sequence[str]) -> str:
        """See :meth:`Strategy.title`."""
        return f"{members[0]} alone"

    def describe(self) -> str:
        """See :meth:`Strategy.describe`."""
        return f"Use {self._names} alone"

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        return f"Use {self.members[0]} alone."
