"""A vote and a cascade: the answer that most members give is taken.

All members answer a vote. A cascade asks one after the other, and stops as soon as the rest cannot change the winner,
so its answers are those of the vote, with fewer calls. :mod:`ensemble.methods.voting` counts the votes and decides
ties.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from advisor.records import Profile
from advisor.strategies.strategy import Strategy, TrainingData, vote_sizes
from advisor.tasks.task import Task
from ensemble.methods.voting import NONE, Codes, answer_codes, count_votes, vote

if TYPE_CHECKING:
    from advisor.running.asking import PromptCalls
    from advisor.statistics import Floats

_SLACK = 1e-6
"""By how much more votes a learned vote must be decided."""


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


@dataclass(frozen=True)
class Cascade(Strategy):
    """A cascade; it asks its members in their order."""

    KIND: ClassVar[str] = "cascade"
    SIMPLICITY: ClassVar[int] = 40
    COUNTS: ClassVar[bool] = True
    ROLE: ClassVar[str] = "stage {n} of the cascade"

    @property
    def hypothesis(self) -> Strategy:
        """The vote of the same models, which gives the same answers."""
        return Vote(self.members)

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[Cascade]:
        """See :meth:`Strategy.learn`."""
        for size in vote_sizes(given):
            yield cls(given.voters[:size])

    def picks(self, responses: Sequence[Profile], task: Task) -> Sequence[int]:  # noqa: ARG002
        """See :meth:`Strategy.picks`."""
        return winners(responses)

    def calls(
        self,
        responses: Sequence[Profile],
        task: Task,  # noqa: ARG002
        picks: Sequence[int],  # noqa: ARG002
    ) -> Floats:
        """See :meth:`Strategy.calls`."""
        return asked_members(codes_of(responses))

    async def ask(self, calls: PromptCalls) -> int:
        """See :meth:`Strategy.ask`."""
        return await ask_until_decided(calls, len(self.members))

    def title(self, members: Sequence[str]) -> str:  # noqa: ARG002
        """See :meth:`Strategy.title`."""
        return f"Cascade, {self._models}"

    def describe(self) -> str:
        """See :meth:`Strategy.describe`."""
        return (
            f"Ask {self._names} in this order, stop as soon as the rest cannot change the majority, and take the "
            "answer that most of them give (a cascade)"
        )

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        return f"Run a cascade of {self._count} models."

    def list_members(self, names: Sequence[str]) -> str:
        """The members in the order in which they are asked."""
        return ", then ".join(names)


def codes_of(profiles: Sequence[Profile]) -> Codes:
    """The numbers of the answers of profiles, in their order; see :func:`ensemble.methods.voting.answer_codes`."""
    return answer_codes([[answer.extracted for answer in profile.answers] for profile in profiles])


def winners(responses: Sequence[Profile], weights: Sequence[float] | None = None) -> Sequence[int]:
    """The place of the response that a vote takes, for each question; see :func:`ensemble.methods.voting.vote`."""
    places: list[int] = vote(codes_of(responses), weights).tolist()
    return places


async def ask_until_decided(calls: PromptCalls, members: int, weights: Sequence[float] | None = None) -> int:
    """Ask members in their order until the rest cannot change the vote; the number of the call that wins.

    Args:
        calls: Asks the members.
        members: How many there are.
        weights: The weight of each member's vote; None for 1 each.
    """
    asked = 0
    while asked < members:
        await calls.one(asked, calls.settings)
        asked += 1
        # The function of the evaluation, so that a cascade stops where it stopped there.
        if is_decided(calls.codes(), members - asked, weights)[0]:
            break
    return calls.winner(None if weights is None else weights[:asked])


def is_decided(codes: Codes, left: int, weights: Sequence[float] | None = None) -> NDArray[np.bool_]:
    """Whether a vote is decided, for each question, before the rest of the models is asked.

    Args:
        codes: The answers so far, models by questions.
        left: Models that were not asked yet, at least 0.
        weights: The weight of each model's vote, also of those that were not asked yet, at least 0; None for 1 each.
    """
    asked = len(codes)
    votes = count_votes(codes, None if weights is None else weights[:asked])
    more = float(left if weights is None else sum(weights[asked:]))
    # Sums of weights have rounding errors, so what is nearly a tie is not decided.
    slack = 0.0 if weights is None else _SLACK
    winner = votes.argmax(axis=0)
    most = votes.max(axis=0)
    first = np.arange(asked)[:, None]
    # A rival that ties with the winner wins if a more accurate model gave it first.
    rival = (codes != np.take_along_axis(codes, winner[None], axis=0)) & (codes != NONE)
    beats = rival & ((votes + more > most - slack) | ((votes + more == most) & (first < winner)))
    # An answer that no model gave so far wins only with more votes than the winner has.
    decided: NDArray[np.bool_] = ~beats.any(axis=0) & (more <= np.where(np.isfinite(most), most, 0) - slack)
    return decided


def cascade_calls(codes: Codes, weights: Sequence[float] | None = None) -> NDArray[np.intp]:
    """The number of models that a cascade asks, for each question; see :func:`is_decided` for the arguments."""
    models, questions = codes.shape
    calls = np.full(questions, models)
    # Decided questions are not looked at again, which saves most of the time.
    open_questions = np.arange(questions)
    for asked in range(1, models):
        decided = is_decided(codes[:asked, open_questions], models - asked, weights)
        calls[open_questions[decided]] = asked
        open_questions = open_questions[~decided]
    return calls


def asked_members(codes: Codes, weights: Sequence[float] | None = None) -> Floats:
    """Whether a cascade asks each model, 1 or 0, models by questions; see :func:`is_decided` for the arguments."""
    asked: Floats = (np.arange(len(codes))[:, None] < cascade_calls(codes, weights)).astype(np.float64)
    return asked
