"""Self-consistency: one model answers several times, and the answer that it gives most often is taken.

Wang et al., *Self-Consistency Improves Chain of Thought Reasoning in Language Models*, ICLR 2023.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from advisor.strategies.strategy import FEWEST_VOTERS, Call, Flow, QuestionText, Strategy, TrainingData
from advisor.strategies.vote import votes_of
from ensemble.common.text import counted, in_words
from ensemble.methods.voting import Codes, vote

if TYPE_CHECKING:
    from ensemble.decode.settings import Settings

TEMPERATURE = 0.7
"""The temperature of the draws, as in that paper."""
Draws = Annotated[
    int,
    Field(strict=True, ge=1, le=100, description="of self-consistency and fusion: how many responses a model writes"),
]


@dataclass(frozen=True)
class SelfConsistency(Strategy):
    """A vote of several responses of one model.

    Attributes:
        draws: How many responses it writes.
    """

    draws: Draws

    KIND: ClassVar[str] = "self_consistency"
    SIMPLICITY: ClassVar[int] = 30
    COUNTS: ClassVar[bool] = True
    MEMBERS: ClassVar[tuple[int, int]] = (1, 1)

    @property
    def responses_per_member(self) -> int:
        """See :attr:`Strategy.responses_per_member`."""
        return self.draws

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[SelfConsistency]:
        """See :meth:`Strategy.learn`."""
        # A run asks one model only, the best of all questions, which need not be the best of these.
        model = next(iter(given.draws)) if len(given.draws) == 1 else given.best
        draws = given.draws.get(model, 0)
        if given.can_vote and draws >= FEWEST_VOTERS:
            yield cls((model,), draws)

    def flow(self, question: QuestionText) -> Flow:  # noqa: ARG002
        """See :meth:`Strategy.flow`."""
        replies = yield [Call((0,), draw) for draw in range(self.draws)]
        return int(vote(votes_of(replies))[0])

    def replay_votes(self, codes: Codes) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """See :meth:`Strategy.replay_votes`."""
        return vote(codes), np.zeros(codes.shape, dtype=np.intp)

    def title(self, members: Sequence[str]) -> str:
        """See :meth:`Strategy.title`."""
        return f"{counted(self.draws, 'response')} of {members[0]}"

    def describe(self) -> str:
        """See :meth:`Strategy.describe`."""
        return f"Ask {self._names} {self.draws} times, and take the answer that it gives most often (self-consistency)"

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        return f"Take the majority of {in_words(self.draws)} responses of {self.members[0]}."


def drawn(settings: Settings, number: int) -> Settings:
    """How one of several responses of a model is drawn: at :data:`TEMPERATURE`, unless the settings draw already."""
    # With one seed all draws would be the same text.
    return replace(settings, temperature=settings.temperature or TEMPERATURE, seed=settings.seed + number)
