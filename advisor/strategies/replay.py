"""Replays strategies: drives their flows with stored replies, and counts what the calls took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from advisor.records import AMOUNTS, Amount, Answer, Profile
from advisor.statistics import Floats
from advisor.strategies.strategy import AnsweredSplit, Call, Choice, QuestionText, Replay, Reply, Strategy, WritingFlow
from advisor.tasks.task import Example
from ensemble.errors import UniteError
from ensemble.methods.voting import Codes, answer_codes
from ensemble.models.spec import Price

R = TypeVar("R")
Ask = Callable[[Sequence[tuple[int, Call]]], Sequence[Answer]]
"""Gives the replies to calls, each with the number of its question."""


class QuestionCalls(Generic[R]):
    """The way of one question through a flow, which is driven by making the open calls, as long as there are some."""

    def __init__(self, flow: WritingFlow) -> None:
        # `open` has the calls to make now, at the same time.
        self._flow, self.open = flow, next(flow)
        self.calls: list[Call] = []
        self.steps: list[int] = []  # of each call, in which step it was made, from 0
        self.replies: list[R] = []
        self._failed: list[bool] = []
        self.taken = 0  # the number of the reply that is the answer
        self.text: str | None = None  # the answer, where the flow wrote it

    def answer(self, replies: Sequence[R], read: Sequence[Reply]) -> None:
        """Take the replies to the open calls, and what the flow is to know of them."""
        self.calls += self.open
        self.steps += [self.steps[-1] + 1 if self.steps else 0] * len(self.open)
        self.replies += replies
        self._failed += [reply.failed for reply in read]
        try:
            self.open = self._flow.send(read)
        except StopIteration as end:
            self.open = ()
            if isinstance(end.value, str):
                self.text = end.value
            else:
                self.taken = answered(end.value, self._failed)


def codes_of(profiles: Sequence[Profile]) -> Codes:
    """The numbers of the answers of profiles, in their order; see :func:`ensemble.methods.voting.answer_codes`."""
    return answer_codes([[answer.extracted for answer in profile.answers] for profile in profiles])


def question_of(example: Example) -> QuestionText:
    """What a strategy knows of a question of a task."""
    return QuestionText(example.prompt, example.question, example.group, f"question {example.id}")


def play(
    flow: Callable[[QuestionText], WritingFlow], questions: Sequence[QuestionText], ask: Ask
) -> list[QuestionCalls[Answer]]:
    """Drive the flows of all questions, step by step, so that calls of many questions are made at the same time."""
    ways = [QuestionCalls[Answer](flow(question)) for question in questions]
    while waiting := [(n, way) for n, way in enumerate(ways) if way.open]:
        answers = iter(ask([(n, call) for n, way in waiting for call in way.open]))
        for _, way in waiting:
            new = [next(answers) for _ in way.open]
            way.answer(new, [reply_of(answer) for answer in new])
    return ways


def reply_of(answer: Answer) -> Reply:
    """A stored answer as a reply; one whose text a log does not have is no failure."""
    return Reply(None, None) if answer.error is not None else Reply(answer.text or "", answer.extracted)


def answered(taken: int, failed: Sequence[bool]) -> int:
    """The number of the reply that is taken: another one if it failed, the first that did not."""
    return next((n for n, each in enumerate(failed) if not each), taken) if failed[taken] else taken


class _NotStoredError(Exception):
    """A call that no stored reply answers: it has a new prompt, or its members decode together."""


def replay(strategy: Strategy, split: AnsweredSplit) -> Replay | None:
    """The answers of a strategy by the stored replies of a split; None if it needs one that is not there."""
    if strategy in split.written:
        return split.written[strategy]
    draws = [None] if strategy.responses_per_member == 1 else range(strategy.responses_per_member)
    choices: list[Choice] = [(name, draw) for name in strategy.members for draw in draws]
    stored = [profile for choice in choices if (profile := split.replies(*choice)) is not None]
    if len(stored) < len(choices):
        return None
    if strategy.COUNTS and (votes := strategy.replay_votes(codes_of(stored))) is not None:
        return _replayed(strategy, choices, stored, *votes)
    rows = {choice: row for row, choice in enumerate(choices)}

    def row_of(call: Call) -> int:
        if call.prompt is not None or len(call.members) > 1:
            raise _NotStoredError
        return rows[strategy.members[call.members[0]], call.draw]

    try:
        played = play(
            strategy.flow,
            [question_of(example) for example in split.task.examples],
            lambda calls: [stored[row_of(call)].answers[n] for n, call in calls],
        )
    except _NotStoredError:
        return None
    steps = np.full((len(choices), len(played)), -1)
    for n, each in enumerate(played):
        steps[[row_of(call) for call in each.calls], n] = each.steps
    return _replayed(strategy, choices, stored, [row_of(each.calls[each.taken]) for each in played], steps)


def replay_all(strategy: Strategy, split: AnsweredSplit) -> Replay:
    """The same where all replies must be there."""
    found = replay(strategy, split)
    if found is None:
        raise UniteError(f"{strategy}: it cannot be applied to these questions")
    return found


def _replayed(
    strategy: Strategy,
    choices: Sequence[Choice],
    stored: Sequence[Profile],
    taken: Sequence[int] | NDArray[np.intp],
    steps: NDArray[np.intp],
) -> Replay:
    """The replay by the rows of stored replies that each question takes, and the steps in which it asks for them."""
    rows = [int(row) for row in taken]
    for n, row in enumerate(rows):
        if stored[row].answers[n].error is not None:
            own = np.flatnonzero(steps[:, n] >= 0).tolist()
            failed = [stored[each].answers[n].error is not None for each in own]
            rows[n] = own[answered(own.index(row), failed)]
    answers = tuple(stored[row].answers[n] for n, row in enumerate(rows))
    takes = tuple(choices[row] for row in rows)
    return Replay(Profile(strategy.name, answers), takes, dict(zip(choices, steps, strict=True)))


class Spent(NamedTuple):
    """What some calls of a model took together; None where it is not known."""

    tokens: float | None
    prompt_tokens: float | None
    seconds: float | None
    dollars: float | None = None

    @classmethod
    def of(cls, calls: Sequence[tuple[Profile, NDArray[np.bool_] | None]]) -> Spent:
        """That of replies to all questions, with those that asked for them; None for all."""

        def total(name: Amount) -> float | None:
            sums = []
            for profile, asked in calls:
                own = profile.amounts(name)
                if own is None:
                    return None
                sums.append(float(sum(own) if asked is None else np.array(own) @ asked))
            return sum(sums)

        return cls(*map(total, AMOUNTS))

    def price(self, price: Price | None) -> float | None:
        """Dollars, by the log or by the price of the tokens; None if neither is known."""
        if self.dollars is not None or price is None or self.prompt_tokens is None:
            return self.dollars
        return price.of(self.prompt_tokens, self.tokens or 0.0)


def spent_by_member(found: Replay, split: AnsweredSplit) -> dict[str, Spent]:
    """What the calls of a strategy took, by the names of the members that were asked."""
    calls: dict[str, list[tuple[Profile, NDArray[np.bool_] | None]]] = {}
    for choice, steps in found.steps.items():
        profile = split.replies(*choice)
        if profile is not None and (steps >= 0).any():
            calls.setdefault(choice[0], []).append((profile, steps >= 0))
    for names, profile, _ in found.calls:
        if len(names) > 1:
            return _spent_together(names, profile, split)
        calls.setdefault(names[0], []).append((profile, None))
    return {name: Spent.of(own) for name, own in calls.items()}


def question_seconds(found: Replay, split: AnsweredSplit) -> Floats | None:
    """The seconds of each question: of the calls of a step, which are made at the same time, those of the slowest.

    None if they are not known.
    """
    questions = {example.id: n for n, example in enumerate(split.task.examples)}
    every = np.arange(len(questions))
    calls: list[tuple[Profile | None, NDArray[np.intp], NDArray[np.intp]]] = [
        (split.replies(*choice), every, steps) for choice, steps in found.steps.items() if (steps >= 0).any()
    ]
    for _, profile, step in found.calls:
        own = np.array([questions[answer.id] for answer in profile.answers], dtype=np.intp)
        calls.append((profile, own, np.full(len(own), step)))
    slowest = np.zeros((2 + max((int(steps.max()) for *_, steps in calls), default=0), len(questions)))
    for replies, own, steps in calls:
        times = None if replies is None else replies.amounts("seconds")
        if times is None:
            return None
        # A step of -1 is the last row: it was not asked.
        np.maximum.at(slowest, (steps, own), times)
    seconds: Floats = slowest[:-1].sum(axis=0)
    return seconds


def _spent_together(names: Sequence[str], profile: Profile, split: AnsweredSplit) -> dict[str, Spent]:
    """What members took that decode together: each writes the whole answer, and reads what it reads alone."""
    count, cost = len(names), profile.cost
    tokens = cost.tokens_of_set(count) / count or None
    alone = {name: split.profiles.get(name) for name in names}
    return {
        name: Spent(
            tokens, None if own is None else Spent.of([(own, None)]).prompt_tokens, cost.seconds / count or None
        )
        for name, own in alone.items()
    }
