"""Best of n: one model answers several times, and the judge of the run takes the response that it grades best.

It is compared, and not run: the judge is there for the comparison only. It grades the response that it takes, so the
points are at most those that others would give.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from advisor.records import Profile
from advisor.strategies.self_consistency import SelfConsistency
from advisor.strategies.strategy import Flow, QuestionText, Replay, TrainingData
from ensemble.common.text import in_words
from ensemble.errors import InputError


@dataclass(frozen=True)
class BestOf(SelfConsistency):
    """The best of several responses of one model, by a judge."""

    KIND: ClassVar[str] = "best_of"
    SIMPLICITY: ClassVar[int] = 35
    COUNTS: ClassVar[bool] = False

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[BestOf]:  # noqa: ARG003
        """No best of n: its responses are asked where a run compares at equal cost."""
        yield from ()

    def flow(self, question: QuestionText) -> Flow:
        """Refuse: the judge is not here."""
        yield from ()
        raise InputError(
            f"{question.place}: only the judge of the run knows which response is the best; choose another strategy "
            "with --strategy"
        )

    def replay_graded(self, graded: Sequence[Profile]) -> Replay:
        """The best of the responses to each question, after the judge has graded them."""
        best = (max(own, key=lambda each: each.score) for own in zip(*(each.answers for each in graded), strict=True))
        return Replay(Profile(self.name, tuple(best)), calls=[(self.members, each, 0) for each in graded])

    def title(self, members: Sequence[str]) -> str:
        """See :meth:`Strategy.title`."""
        return f"Best of {self.draws} responses of {members[0]} by the judge"

    def describe(self) -> str:
        """See :meth:`Strategy.describe`."""
        return f"Ask {self._names} {self.draws} times, and take the response that the judge grades best (best of n)"

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        return f"Take the best of {in_words(self.draws)} responses of {self.members[0]}."
