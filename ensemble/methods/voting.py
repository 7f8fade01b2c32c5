"""Voting: the answer that most members give.

The votes are the answers that the task's metric extracted, not the texts: "The answer is 7." and "7" are both votes for
7. A response without an answer has no vote. With two members the result is the primary's answer whenever it has one.

Ties: of several answers with the most votes, the one that the earliest member gave wins. So the answers A, B, B, C, C
give B. Members are in the order of their accuracy. The papers that vote for comparison take the primary's answer, A;
on real pools that is worse (docs/pools.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from ensemble.methods import Method
from ensemble.methods._response import ResponseMethod
from ensemble.methods._votes import answer_codes, vote

METHOD = Method(
    level="response",
    summary="the answer that most members give; of tied answers the one of the earliest member",
    when="three or more members, and short, fixed answers: numbers, letters, names",
)


class Voting:
    """A vote among the members' answers."""

    def choose(self, prompt: str, texts: Sequence[str], answers: Sequence[str | None]) -> int:  # noqa: ARG002
        """See :class:`ensemble.methods._response.ResponseMethod`."""
        return int(vote(answer_codes([[answer] for answer in answers]))[0])


def make(options: None) -> ResponseMethod:  # noqa: ARG001
    """Make the method; it learns nothing."""
    return Voting()
