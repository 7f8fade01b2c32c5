"""A vote in which each member's answer counts as much as its accuracy on the dev questions says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field

from advisor.records import Profile
from advisor.statistics import scores
from advisor.strategies.ballot import Taken
from advisor.strategies.strategy import Strategy, TrainingData, vote_sizes
from advisor.strategies.vote import codes_of, winners
from advisor.tasks.task import Task
from ensemble.methods._votes import NONE

if TYPE_CHECKING:
    from advisor.running.asking import PromptCalls

_LARGEST = 1e6
Weight = Annotated[float, Field(strict=True, ge=0, le=_LARGEST)]


@dataclass(frozen=True)
class WeightedVote(Strategy):
    """A vote with weights.

    Attributes:
        weights: The weight of each member's vote.
    """

    weights: Annotated[
        tuple[Weight, ...], Field(description="of a weighted or learned vote: the weight of each member's vote")
    ]

    KIND: ClassVar[str] = "weighted_vote"
    SIMPLICITY: ClassVar[int] = 60
    COUNTS: ClassVar[bool] = True
    ROLE: ClassVar[str] = "voter"
    LEARNS: ClassVar[bool] = True

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[WeightedVote]:
        """See :meth:`Strategy.learn`."""
        if vote_sizes(given):
            yield cls(given.voters, vote_weights(given.profiles(given.voters)))

    def problem(self) -> tuple[str, str] | None:
        """See :meth:`Strategy.problem`."""
        count = len(self.members)
        return None if len(self.weights) == count else ("weights", f"{count} numbers from 0 to {_LARGEST:g}")

    def picks(self, responses: Sequence[Profile], task: Task) -> Sequence[Taken]:
        """See :meth:`Strategy.picks`."""
        return winners(responses, task, self.weights)

    async def ask(self, calls: PromptCalls) -> Taken:
        """See :meth:`Strategy.ask`."""
        await calls.together([(member, calls.settings) for member in range(len(self.members))])
        return calls.winner(self.weights)

    def title(self, members: Sequence[str]) -> str:  # noqa: ARG002
        """See :meth:`Strategy.title`."""
        return f"Weighted vote, {self._models}"

    def describe(self) -> str:
        """See :meth:`Strategy.describe`."""
        return f"Ask {self._names}, and take the answer with the most weight (a vote, weighted by accuracy)"

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        return f"Take a weighted vote of {self._count} models."

    def list_members(self, names: Sequence[str]) -> str:
        """The members with the weights of their votes."""
        # There may be more weights than names to show.
        return ", ".join(f"{name} ({weight:.1f})" for name, weight in zip(names, self.weights, strict=False))


def vote_weights(profiles: Sequence[Profile]) -> tuple[float, ...]:
    """The weights of a weighted vote: how much more likely an answer becomes if a model gives it, as a logarithm.

    For a model that is right with probability p, and wrong answers that agree with probability c, the weight is
    log(p / (1 - p)) - log(c), at least 0: the optimal weight of independent voters with 1 / c equally likely wrong
    answers (for two answers Nitzan and Paroush 1982). Without c, the log odds of a model below 50% would be negative
    although its answer is evidence.

    Args:
        profiles: The models' answers to the dev questions, scored 0 or 1, at least two models.
    """
    graded = np.stack([scores(profile) for profile in profiles])
    codes = codes_of(profiles)
    wrong = ((graded < 1) & (codes != NONE)).astype(float)
    both_wrong = wrong @ wrong.T
    same = np.stack([((own == codes) & (own != NONE) & (graded < 1)).sum(axis=1) for own in codes])
    upper = np.triu_indices(len(profiles), 1)
    # Half a question is added to each count, so that no weight is infinite.
    agreement = (float(same[upper].sum()) + 0.5) / (float(both_wrong[upper].sum()) + 1)
    right = graded.sum(axis=1)
    odds = (right + 0.5) / (graded.shape[1] - right + 0.5)
    return tuple(np.maximum(np.log(odds) - np.log(agreement), 0.0).round(9).tolist())
