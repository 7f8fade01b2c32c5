"""A vote: all members answer, and the answer that most of them give is taken.

:mod:`ensemble.methods.voting` counts the votes and decides ties.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from advisor.records import Profile
from advisor.strategies.strategy import Strategy, TrainingData, vote_sizes
from advisor.tasks.task import Task
from ensemble.methods.voting import Codes, answer_codes, vote

if TYPE_CHECKING:
    from advisor.running.asking import PromptCalls


@dataclass(frozen=True)
class Vote(Strategy):
    """A vote in which all members have the same weight."""

    KIND: ClassVar[str] = "vote"
    SIMPLICITY: ClassVar[int] = 50
    COUNTS: ClassVar[bool] = True
    ROLE: ClassVar[str] = "voter"

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[Vote]:
        """See :meth:`Strategy.learn`."""
        for size in vote_sizes(given):
            yield cls(given.voters[:size])

    def picks(self, responses: Sequence[Profile], task: Task) -> Sequence[int]:  # noqa: ARG002
        """See :meth:`Strategy.picks`."""
        return winners(responses)

    async def ask(self, calls: PromptCalls) -> int:
        """See :meth:`Strategy.ask`."""
        await calls.together([(member, calls.settings) for member in range(len(self.members))])
        return calls.winner()

    def title(self, members: Sequence[str]) -> str:  # noqa: ARG002
        """See :meth:`Strategy.title`."""
        return f"Vote, {self._models}"

    def describe(self) -> str:
        """See :meth:`Strategy.describe`."""
        return f"Ask {self._names}, and take the answer that most of them give (a vote)"

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        return f"Take a vote of {self._count} models."


def codes_of(profiles: Sequence[Profile]) -> Codes:
    """The numbers of the answers of profiles, in their order; see :func:`ensemble.methods.voting.answer_codes`."""
    return answer_codes([[answer.extracted for answer in profile.answers] for profile in profiles])


def winners(responses: Sequence[Profile], weights: Sequence[float] | None = None) -> Sequence[int]:
    """The place of the response that a vote takes, for each question; see :func:`ensemble.methods.voting.vote`."""
    places: list[int] = vote(codes_of(responses), weights).tolist()
    return places
