"""Profiling: a model's, or an ensemble's, graded answers to a task's questions, from the store or computed.

A response is kept the moment it exists; what the store has is not computed again, and where it has all, no model is
loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from advisor.config import InferenceConfig
from advisor.records import Answer, Profile
from advisor.response_cache import Response, Store, key_of
from advisor.tasks.task import Example, Score, Task
from ensemble.errors import MemberError

Advance = Callable[[int], None]
_DECODING = 2
"""Part of every key; raised by a change of the decoder after which the same models write something else."""


class Answerer(Protocol):
    """Who answers questions: models in this process, or somewhere else."""

    @property
    def peak_memory(self) -> int | None:
        """The most memory that the answers took, in bytes; None where it is not known, or nothing was answered."""
        ...

    def answer(
        self, asked: Mapping[int, Example], task: Task, inference: InferenceConfig
    ) -> Iterator[tuple[int, Response]]:
        """Answer questions; whatever is loaded for that is loaded now, and given back at the end.

        Args:
            asked: The questions, by number.
            task: What they belong to.
            inference: How to generate.

        Yields:
            Number and response of each question, as they are finished; one that cannot be answered has an error.

        Raises:
            MemberError: Nobody is there who answers, or whatever is asked fails.
        """
        ...


@dataclass(frozen=True, slots=True)
class Cost:
    """What a profile's responses took when they were computed.

    Attributes:
        seconds: In all.
        tokens: That were emitted.
        steps: Choices that were made, that of EOS included; see :class:`ensemble.decode.sequences.Counts`.
        combined: Steps in which several members decided.
        handled: Entries whose probabilities were looked at, over all steps.
        peak_memory: Bytes, see :func:`advisor.profile.memory.peak`; None where it is not known.
    """

    seconds: float
    tokens: int
    steps: int = 0
    combined: int = 0
    handled: int = 0
    peak_memory: int | None = None


class Sheet:
    """The answers to a task's questions in the making: what the store has, and what comes in.

    Args:
        name: Whose profile it is.
        key: What decides the responses besides the question: the models and the method.
        task: The questions.
        inference: How to generate.
        store: Where responses are looked up and kept.

    Attributes:
        stored: How many questions had a response already.
        missing: The others, by number.

    Raises:
        InputError: The task runs programs that models wrote, and the user has not allowed that.
        UniteError: The store failed.
    """

    def __init__(self, name: str, key: Mapping[str, Any], task: Task, inference: InferenceConfig, store: Store) -> None:
        task.check_allowed()
        self._name, self._task, self._store = name, task, store
        self._keys = [question_key(key, example, task, inference) for example in task.examples]
        kept = store.get(self._keys)
        self._responses = {n: kept[one] for n, one in enumerate(self._keys) if one in kept}
        self.stored = len(self._responses)
        self.missing = {n: example for n, example in enumerate(task.examples) if n not in self._responses}

    def take(self, n: int, response: Response) -> None:
        """Take a response in, and keep it.

        Raises:
            UniteError: The store failed.
        """
        self._responses[n] = response
        if response.settled:
            self._store.put(self._keys[n], response)

    def close(self, peak_memory: int | None) -> tuple[Profile, Cost]:
        """Grade the answers; all questions must have one.

        Args:
            peak_memory: The most memory that they took, in bytes; None for what was kept of that.

        Raises:
            MemberError: No question could be answered.
            UniteError: The store failed.
        """
        key = key_of({"peak_memory": _DECODING, "of": self._keys})
        if peak_memory is not None:
            self._store.keep(key, peak_memory)
        complete = [self._responses[n] for n in range(len(self._keys))]
        if all(response.error is not None for response in complete):
            raise MemberError(f"{self._name}: no question could be answered; the first: {complete[0].error}")
        return Profile(self._name, _graded(self._task, complete)), _cost(complete, self._store.value(key))


def profile(
    name: str,
    key: Mapping[str, Any],
    answerer: Answerer,
    task: Task,
    inference: InferenceConfig,
    store: Store,
    advance: Advance,
) -> tuple[Profile, Cost]:
    """Answer a task's questions and grade the answers.

    Args:
        name: Whose profile it is.
        key: What decides the responses besides the question: the models and the method.
        answerer: Who answers; asked only where a response is missing.
        task: The questions.
        inference: How to generate.
        store: Where responses are looked up and kept.
        advance: Called with the number of questions that are done.

    Raises:
        InputError: The task runs programs that models wrote, and the user has not allowed that.
        MemberError: Loading failed, or no question could be answered.
        UniteError: The store failed.
    """
    sheet = Sheet(name, key, task, inference, store)
    advance(sheet.stored)
    if sheet.missing:
        for n, response in answerer.answer(sheet.missing, task, inference):
            sheet.take(n, response)
            advance(1)
    return sheet.close(answerer.peak_memory)


def _cost(responses: Sequence[Response], peak_memory: int | None) -> Cost:
    return Cost(
        seconds=sum(response.seconds for response in responses),
        tokens=sum(response.tokens for response in responses),
        steps=sum(response.steps for response in responses),
        combined=sum(response.combined for response in responses),
        handled=sum(response.handled for response in responses),
        peak_memory=peak_memory,
    )


def question_key(key: Mapping[str, Any], example: Example, task: Task, inference: InferenceConfig) -> str:
    """The key of a response: what answers, the question, and how it is asked."""
    question: dict[str, Any] = {**key, "decoding": _DECODING, "prompt": example.prompt}
    if example.source is not None and any("encoder" in member for member in key.get("members", ())):
        question["source"] = example.source
    if task.metric == "choice":
        return key_of({**question, "choices": [f"{task.delimiter}{choice}" for choice in example.choices]})
    if inference.temperature:
        question |= {"temperature": inference.temperature, "seed": inference.seed}
    return key_of({**question, "max_new_tokens": inference.limit(task), "stop": list(task.stop)})


def _graded(task: Task, responses: Sequence[Response]) -> tuple[Answer, ...]:
    pairs = list(zip(task.examples, responses, strict=True))
    scores = iter(task.score_all([(example, one.text) for example, one in pairs if one.error is None]))
    return tuple(_answer(example, one, next(scores) if one.error is None else None) for example, one in pairs)


def _answer(example: Example, response: Response, score: Score | None) -> Answer:
    if score is None:
        return Answer(example.id, "", None, 0.0, "error", response.error, group=example.group)
    return Answer(
        example.id,
        response.text,
        score.extracted,
        score.value,
        response.finish_reason,
        options=response.options,
        group=example.group,
    )
