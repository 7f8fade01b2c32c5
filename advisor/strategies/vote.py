"""A vote: the answer that most members give is taken.

Members are asked in their order, until the rest cannot change the winner. So the answers are those of a vote of all
members, with fewer calls. :mod:`ensemble.methods.voting` counts the votes and decides ties.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from advisor.records import Profile
from advisor.strategies.replay import codes_of
from advisor.strategies.strategy import FEWEST_VOTERS, Call, Flow, QuestionText, Reply, Strategy, TrainingData
from advisor.tasks.metrics import LETTERS_ALONE, get_metric
from advisor.tasks.task import MAX_RESPONSE, Task, read_answer
from advisor.tasks.templates import check_pattern
from ensemble.errors import InputError
from ensemble.methods.voting import NONE, Codes, answer_codes, count_votes, vote

_SLACK = 1e-6
"""By how much more votes a vote with weights must be decided."""


@dataclass(frozen=True)
class Vote(Strategy):
    """A vote in which all members have the same weight."""

    KIND: ClassVar[str] = "vote"
    SIMPLICITY: ClassVar[int] = 40
    COUNTS: ClassVar[bool] = True
    ROLE: ClassVar[str] = "voter {n}"
    REST: ClassVar[float] = 1.0
    """The share of the votes to come that must not be enough to change the winner, so that no more are asked for."""

    @property
    def vote_weights(self) -> Sequence[float] | None:
        """The weight of each member's vote, at least 0; None for 1 each."""
        return None

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[Vote]:
        """See :meth:`Strategy.learn`."""
        if given.can_vote and len(given.voters) >= FEWEST_VOTERS:
            # The smallest vote, and that of all who fit. Between them lie gain and cost.
            for size in sorted({FEWEST_VOTERS, len(given.voters)}):
                yield cls(given.voters[:size])

    def flow(self, question: QuestionText) -> Flow:  # noqa: ARG002
        """Ask members until the vote is decided; those at once that are asked even if they all agree."""
        members, weights = len(self.members), self.vote_weights
        replies: list[Reply] = []
        asked = self._asked_at_once
        while True:
            replies += yield [Call((member,)) for member in range(len(replies), asked)]
            codes = votes_of(replies)
            if asked == members or is_decided(codes, members - asked, weights, self.REST)[0]:
                return int(vote(codes, None if weights is None else weights[:asked])[0])
            asked += 1

    @property
    def _asked_at_once(self) -> int:
        """The members that decide the vote if they all agree."""
        agreed = np.zeros((len(self.members), 1), dtype=np.int32)
        return int(asked_until_decided(agreed, self.vote_weights, self.REST)[0])

    def replay_votes(self, codes: Codes) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """See :meth:`Strategy.replay_votes`."""
        members = np.arange(len(codes))[:, None]
        is_asked = members < asked_until_decided(codes, self.vote_weights, self.REST)
        steps = np.where(is_asked, np.maximum(members - self._asked_at_once + 1, 0), -1)
        return vote(np.where(is_asked, codes, NONE), self.vote_weights), steps

    def title(self, members: Sequence[str]) -> str:  # noqa: ARG002
        """See :meth:`Strategy.title`."""
        return f"Vote, {self._models}"

    def describe(self) -> str:
        """See :meth:`Strategy.describe`."""
        return (
            f"Ask {self._names} in this order, stop as soon as the rest cannot change the winner, and take the answer "
            "that most of them give (a vote)"
        )

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        return f"Take a vote of {self._count} models."

    def list_members(self, names: Sequence[str]) -> str:
        """The members in the order in which they are asked."""
        return ", then ".join(names)


def votes_of(replies: Sequence[Reply]) -> Codes:
    """The votes of replies to one question."""
    return answer_codes([[reply.answer] for reply in replies])


def is_decided(codes: Codes, left: int, weights: Sequence[float] | None = None, rest: float = 1.0) -> NDArray[np.bool_]:
    """Whether a vote is decided, for each question, before the `left` last models are asked.

    `codes` are the answers so far, models by questions. `weights` are those of all models, at least 0; None for 1 each.
    `rest` is :attr:`Vote.REST`.
    """
    asked = len(codes)
    votes = count_votes(codes, None if weights is None else weights[:asked])
    more = rest * float(left if weights is None else sum(weights[asked:]))
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


def asked_until_decided(codes: Codes, weights: Sequence[float] | None = None, rest: float = 1.0) -> NDArray[np.intp]:
    """The number of members that a vote asks, for each question; see :func:`is_decided` for the arguments."""
    models, questions = codes.shape
    calls = np.full(questions, models)
    # Decided questions are not looked at again, which saves most of the time.
    open_questions = np.arange(questions)
    for asked in range(1, models):
        decided = is_decided(codes[:asked, open_questions], models - asked, weights, rest)
        calls[open_questions[decided]] = asked
        open_questions = open_questions[~decided]
    return calls


NEAR_COPY = 0.95
"""The share of equal answers from which on two models count as one voter. On real pools no two different models agree
so much, but for models that are hardly ever wrong, whose second vote changes nothing."""
_FEWEST_ANSWERS = 30
"""With fewer, two models may agree by chance."""


def near_copies(profiles: Sequence[Profile]) -> dict[str, tuple[str, float]]:
    """The models that answer nearly always as one before them does, right and wrong answers alike, by name.

    Each with that model, and the share of their answers that are equal.
    """
    codes, found = codes_of(profiles), dict[str, tuple[str, float]]()
    for row, own in enumerate(codes[1:], start=1):
        either = (own != NONE) | (codes[:row] != NONE)
        equal = ((own == codes[:row]) & either).sum(axis=1)
        shares = equal / np.maximum(either.sum(axis=1), _FEWEST_ANSWERS)
        # Also of a copy: two copies of one model differ more from each other than from that model.
        if shares.max() >= NEAR_COPY:
            found[profiles[row].model] = profiles[int(shares.argmax())].model, float(shares.max())
    return found


VOTE_METRICS = (
    *("exact_match", "number", "number_comma", "choice"),
    *("json", "json_fields", "tool_call", "exact_match_squad"),
)
"""Metrics that read an answer in one spelling, and without the reference. `contains` searches for the reference, so its
answers would tell the vote which one is right."""
_LONGEST_PATTERN = 10_000


def can_vote(task: Task) -> bool:
    """Whether the answers that the task's metric reads can be counted as votes."""
    return task.metric in VOTE_METRICS and task.scorer is None


class VoteReader:
    """Reads the answer of a response, for a vote."""

    def __init__(self, metric: object, extract: object, place: str) -> None:
        if not isinstance(metric, str) or metric not in VOTE_METRICS:
            shown = f"{metric[:60]!r}" if isinstance(metric, str) else "not a name"
            raise InputError(
                f"{place}: metric is {shown}, and votes are read by {', '.join(VOTE_METRICS)}; run `advisor select` "
                "again with one of these, or choose another strategy with --strategy"
            )
        if extract is not None:
            if not isinstance(extract, str) or len(extract) > _LONGEST_PATTERN:
                raise InputError(
                    f"{place}: extract should be a text of at most {_LONGEST_PATTERN:,} characters; run `advisor "
                    "select` again with a shorter one"
                )
            if (problem := check_pattern(extract)) is not None:
                raise InputError(f"{place}: extract cannot be used ({problem}); run `advisor select` again")
        self.metric, self.extract = metric, extract

    def problem(self, text: str) -> str | None:
        """Why a response has no answer, where JSON was looked for."""
        return read_answer(self.metric, self.extract, text[:MAX_RESPONSE])[1]

    def read(self, text: str) -> str | None:
        """The answer in a response, in one spelling (for ``choice`` the letter that it names); None if it has none."""
        answer, _ = read_answer(self.metric, self.extract, text[:MAX_RESPONSE])
        if answer is None:
            return None
        _, extracted = get_metric(self.metric).score(answer, (), LETTERS_ALONE if self.metric == "choice" else ())
        return extracted
