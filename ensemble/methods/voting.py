"""Voting: the answer that most members give.

The votes are the answers that the task's metric extracted, not the texts: "The answer is 7." and "7" are both votes for
7. A response without an answer has no vote. With two members the result is the primary's answer whenever it has one.

Ties: of several answers with the most votes, the one that the earliest member gave wins. So the answers A, B, B, C, C
give B. Members are in the order of their accuracy. The papers that vote for comparison take the primary's answer, A;
on real pools that is worse (docs/pools.md). All votes of this project follow this rule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ensemble.methods import Method
from ensemble.methods._response import Majority

Codes = NDArray[np.int32]
NONE = -1
"""The code of a missing answer."""
LONGEST_PLAIN = 200
"""Characters of an answer that is compared as it is."""


def answer_key(text: str) -> str:
    """What is compared of an answer: a digest of a long one, in which any white space is one blank."""
    if len(text) <= LONGEST_PLAIN:
        return text
    return hashlib.sha256(" ".join(text.split()).encode(errors="surrogatepass")).hexdigest()


def answer_codes(answers: Sequence[Sequence[str | None]]) -> Codes:
    """Numbers [members, questions] in place of answers, equal for answers with the same :func:`answer_key`."""
    numbers: dict[str, int] = {}
    codes: dict[str | None, int] = {None: NONE}
    # Most texts are those of many members and questions, so each is numbered once.
    for text in dict.fromkeys(chain.from_iterable(answers)):
        if text is not None:
            codes[text] = numbers.setdefault(answer_key(text), len(numbers))
    return np.array([[codes[text] for text in own] for own in answers], dtype=np.int32)


def count_votes(codes: Codes, weights: Sequence[float] | None = None) -> NDArray[np.float64]:
    """The votes [members, questions] for each member's answer, minus infinity for a missing one; None weighs by 1."""
    votes = np.zeros(codes.shape)
    # One member at a time: an array of members by members by questions may not fit in memory.
    for code, weight in zip(codes, np.ones(len(codes)) if weights is None else weights, strict=True):
        votes += weight * (codes == code)
    votes[codes == NONE] = -np.inf
    # In floating point the order of the sums must not decide a tie.
    rounded: NDArray[np.float64] = votes.round(9)
    return rounded


def vote(codes: Codes, weights: Sequence[float] | None = None) -> NDArray[np.intp]:
    """The number of the member whose response a vote takes, for each question: the first one that gave the winner.

    If no member has an answer, the first member's response is taken.
    """
    # argmax takes the first of several largest values.
    winners: NDArray[np.intp] = count_votes(codes, weights).argmax(axis=0)
    return winners


METHOD = Method(
    level="response",
    summary="the answer that most members give; of tied answers the one of the earliest member",
    when="three or more members, and short, fixed answers: numbers, letters, names",
)


def make(options: None) -> Majority:  # noqa: ARG001
    """Make the method; it has no options."""
    return Majority()
