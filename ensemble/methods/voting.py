"""Voting: the answer that most members give.

What is counted are answers, as the task's metric read them, not wordings: "The answer is 7." and "7" are both for 7.
A response that holds no answer has no vote. Where several answers have as many votes, the primary's is taken if it is
one of them, else that of the earliest member who gave one of them; among those who gave the answer, the earliest
member's response is taken. With two members that is the primary's answer whenever it has one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ensemble.methods import Method, NoOptions
from ensemble.methods._response import Answered, ResponseMethod, ResponseSetup

METHOD = Method(
    level="response",
    summary="the answer that most members give; ties go to the primary",
    when="three or more members, and answers that are short and fixed: numbers, letters, names",
)


@dataclass(frozen=True, slots=True)
class Voting:
    """A vote among the members' answers."""

    def choose(self, question: Answered) -> int:
        """See :class:`ensemble.methods._response.ResponseMethod`."""
        answers = [response.answer for response in question.responses]
        votes = Counter(answer for answer in answers if answer is not None)
        # The members stand in the order of their accuracy, so the first of those with most votes is the best of them.
        most = max(votes.values(), default=0)
        return next((n for n, answer in enumerate(answers) if answer is not None and votes[answer] == most), 0)


def make(setup: ResponseSetup, options: NoOptions) -> ResponseMethod:  # noqa: ARG001  # the protocol's; it has none
    """A vote for some members."""
    return Voting()
