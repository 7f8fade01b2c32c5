"""Voting: the answer that most members give.

The votes are the answers that the task's metric extracted, not the texts: "The answer is 7." and "7" are both votes for
7. A response without an answer has no vote. If several answers have the most votes, the earliest member that gave one
of them decides, so the primary wins ties. With two members the result is the primary's answer whenever it has one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ensemble.methods import Method
from ensemble.methods._response import ResponseMethod

METHOD = Method(
    level="response",
    summary="the answer that most members give; ties go to the primary",
    when="three or more members, and short, fixed answers: numbers, letters, names",
)


class Voting:
    """A vote among the members' answers."""

    def choose(self, prompt: str, texts: Sequence[str], answers: Sequence[str | None]) -> int:  # noqa: ARG002
        """See :class:`ensemble.methods._response.ResponseMethod`."""
        votes = Counter(answer for answer in answers if answer is not None)
        most = max(votes.values(), default=0)
        # Members are ordered by their accuracy, so the first member with the most votes is the best of them.
        return next((n for n, answer in enumerate(answers) if answer is not None and votes[answer] == most), 0)


def make(prompts: Sequence[str], scores: Sequence[Sequence[float]], options: None) -> ResponseMethod:  # noqa: ARG001
    """Make the method; it learns nothing and has no options."""
    return Voting()
