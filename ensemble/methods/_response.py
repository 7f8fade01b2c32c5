"""The protocol of response-level methods: of the members' stored responses one is taken; nothing is generated again.

A module's ``make(setup, options) -> ResponseMethod`` raises InputError where the members or their answers on the
questions to learn from do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Response:
    """What a member answered.

    Attributes:
        text: All that it wrote.
        answer: What the task's metric read from it; None where there was nothing to read.
        score: How good it is, from 0 to 1; None on a question that a method may not learn from.
    """

    text: str
    answer: str | None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """A question with every member's response, the primary's first."""

    prompt: str
    responses: tuple[Response, ...]


@dataclass(frozen=True, slots=True)
class ResponseSetup:
    """What a method is made from.

    Attributes:
        members: The members' names, the primary first.
        dev: Questions with scored responses to learn from.
        seed: Of draws.
    """

    members: tuple[str, ...]
    dev: Sequence[Answered] = ()
    seed: int = 0


class ResponseMethod(Protocol):
    """A response-level method, made for some members."""

    def choose(self, question: Answered) -> int:
        """The number of the member whose response is taken; the primary's, 0, where several are as good."""
        ...
