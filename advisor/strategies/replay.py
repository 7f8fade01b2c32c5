"""Replays strategies: drives their flows with stored replies, and counts what the calls took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from advisor.records import AMOUNTS, Amount, Answer, Profile
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
        self.replies: list[R] = []
        self._failed: list[bool] = []
        self.taken = 0  # the number of the reply that is the answer
        self.text: str | None = None  # the answer, where the flow wrote it

    def answer(self, replies: Sequence[R], read: Sequence[Reply]) -> None:
        """Take the replies to the open calls, and what the flow is to know of them."""
        self.calls += self.open
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
    asked = np.zeros((len(choices), len(played)), dtype=np.bool_)
    for n, each in enumerate(played):
        asked[[row_of(call) for call in each.calls], n] = True
    return _replayed(strategy, choices, stored, [row_of(each.calls[each.taken]) for each in played], asked)


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
    asked: NDArray[np.bool_],
) -> Replay:
    """The replay by the rows of stored replies that each question takes and asks for."""
    rows = [int(row) for row in taken]
    for n, row in enumerate(rows):
        if stored[row].answers[n].error is not None:
            own = np.flatnonzero(asked[:, n]).tolist()
            failed = [stored[each].answers[n].error is not None for each in own]
            rows[n] = own[answered(own.index(row), failed)]
    answers = tuple(stored[row].answers[n] for n, row in enumerate(rows))
    takes = tuple(choices[row] for row in rows)
    return Replay(Profile(strategy.name, answers), takes, dict(zip(choices, asked, strict=True)))


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
    for choice, asked in found.asked.items():
        profile = split.replies(*choice)
        if profile is not None and asked.any():
            calls.setdefault(choice[0], []).append((profile, asked))
    for names, profile in found.calls:
        if len(names) > 1:
            return _spent_together(names, profile, split)
        calls.setdefault(names[0], []).append((profile, None))
    return {name: Spent.of(own) for name, own in calls.items()}


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
