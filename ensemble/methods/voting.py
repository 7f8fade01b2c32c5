"""Voting: the answer that most members give.

The votes are the answers that the task's metric extracted, not the texts: "The answer is 7." and "7" are both votes for
7. A response without an answer has no vote. With two members the result is the primary's answer whenever it has one.

Ties, as in the papers that vote for comparison: if several answers have the most votes, the primary's answer is taken,
also where it is not one of them. With ``ties="first"`` the earliest member that gave one of these answers decides,
which is what the strategy ``vote`` of the advice does: the answers A, B, B, C, C give B, and by default A.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ensemble.errors import InputError
from ensemble.methods import Method
from ensemble.methods._response import ResponseMethod

METHOD = Method(
    level="response",
    summary="the answer that most members give; ties go to the primary",
    when="three or more members, and short, fixed answers: numbers, letters, names",
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of voting.

    Attributes:
        ties: ``primary`` or ``first``; see above.
    """

    ties: str = "primary"

    def __post_init__(self) -> None:
        if self.ties not in {"primary", "first"}:
            raise InputError(f"ties {self.ties!r}: give primary or first")


class Voting:
    """A vote among the members' answers.

    Args:
        options: How ties are decided.
    """

    def __init__(self, options: Options) -> None:
        self._primary_decides = options.ties == "primary"

    def choose(self, prompt: str, texts: Sequence[str], answers: Sequence[str | None]) -> int:  # noqa: ARG002
        """See :class:`ensemble.methods._response.ResponseMethod`."""
        votes = Counter(answer for answer in answers if answer is not None)
        most = max(votes.values(), default=0)
        winners = {answer for answer, count in votes.items() if count == most}
        if len(winners) > 1 and self._primary_decides and answers[0] is not None:
            return 0
        # Members are ordered by their accuracy, so the first member with the most votes is the best of them.
        return next((n for n, answer in enumerate(answers) if answer in winners), 0)


def make(prompts: Sequence[str], scores: Sequence[Sequence[float]], options: Options) -> ResponseMethod:  # noqa: ARG001
    """Make the method; it learns nothing."""
    return Voting(options)
