"""One model that answers once. All other strategies are compared with the best one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from advisor.records import Profile
from advisor.strategies.strategy import Strategy, TrainingData
from advisor.tasks.task import Task

if TYPE_CHECKING:
    from advisor.running.asking import PromptCalls


@dataclass(frozen=True)
class Single(Strategy):
    """One model that answers once."""

    KIND: ClassVar[str] = "single"
    SIMPLICITY: ClassVar[int] = 0
    IS_SINGLE: ClassVar[bool] = True
    ROLE: ClassVar[str] = "single model"
    MEMBERS: ClassVar[tuple[int, int]] = (1, 1)

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[Single]:
        """See :meth:`Strategy.learn`."""
        yield cls((given.best,))

    def picks(self, responses: Sequence[Profile], task: Task) -> Sequence[int]:  # noqa: ARG002
        """See :meth:`Strategy.picks`."""
        return [0] * len(responses[0].answers)

    async def ask(self, calls: PromptCalls) -> int:
        """See :meth:`Strategy.ask`."""
        return await calls.until_answered([0])

    def title(self, members: Sequence[str]) -> str:
        """See :meth:`Strategy.title`."""
        return f"{members[0]} alone"

    def describe(self) -> str:
        """See :meth:`Strategy.describe`."""
        return f"Use {self._names} alone"

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        return f"Use {self.members[0]} alone."
