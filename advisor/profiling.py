"""Profiling: a model's, or an ensemble's, graded answers to a task's questions, from the store or computed.

A response is kept the moment it exists; what the store has is not computed again, and where it has all, no model is
loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from advisor.records import Answer, Profile
from advisor.setting import Setting
from advisor.store import Response, Store, key_of
from advisor.tasks.values import Example, Score, Task
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

    def answer(self, asked: Mapping[int, Example], task: Task, setting: Setting) -> Iterator[tuple[int, Response]]:
        """Answer questions; whatever is loaded for that is loaded now, and given back at the end.

        Args:
            asked: The questions, by number.
            task: What they belong to.
            setting: How to generate.

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
        steps: Choices that were made, that of EOS included; see :class:`ensemble.decoder.Counts`.
        combined: Steps in which several members decided.
        handled: Entries whose probabilities were looked at, over all steps.
        peak_memory: Bytes, see :func:`advisor.memory.peak`; None where it is not known.
    """

    seconds: float
    tokens: int
    steps: int = 0
    combined: int = 0
    handled: int = 0
    peak_memory: int | None = None


def profile(
    name: str,
    key: Mapping[str, Any],
    answerer: Answerer,
    task: Task,
    setting: Setting,
    store: Store,
    advance: Advance,
) -> tuple[Profile, Cost]:
    """Answer a task's questions and grade the answers.

    Args:
        name: Whose profile it is.
        key: What decides the responses besides the question: the models and the method.
        answerer: Who answers; asked only where a response is missing.
        task: The questions.
        setting: How to generate.
        store: Where responses are looked up and kept.
        advance: Called with the number of questions that are done.

    Raises:
        InputError: The task runs programs that models wrote, and the user has not allowed that.
        MemberError: Loading failed, or no question could be answered.
        UniteError: The store failed.
    """
    task.check_allowed()
    keys = [question_key(key, example, task, setting) for example in task.examples]
    kept = store.get(keys)
    responses = {n: kept[one] for n, one in enumerate(keys) if one in kept}
    advance(len(responses))
    missing = {n: example for n, example in enumerate(task.examples) if n not in responses}
    memory_key = key_of({"peak_memory": _DECODING, "of": keys})
    if missing:
        for n, response in answerer.answer(missing, task, setting):
            responses[n] = response
            if response.settled:
                store.put(keys[n], response)
            advance(1)
        if answerer.peak_memory is not None:
            store.keep(memory_key, answerer.peak_memory)
    complete = [responses[n] for n in range(len(keys))]
    if all(response.error is not None for response in complete):
        raise MemberError(f"{name}: no question could be answered; the first: {complete[0].error}")
    return Profile(name, _graded(task, complete)), _cost(complete, store.value(memory_key))


def _cost(responses: Sequence[Response], peak_memory: int | None) -> Cost:
    return Cost(
        seconds=sum(response.seconds for response in responses),
        tokens=sum(response.tokens for response in responses),
        steps=sum(response.steps for response in responses),
        combined=sum(response.combined for response in responses),
        handled=sum(response.handled for response in responses),
        peak_memory=peak_memory,
    )


def question_key(key: Mapping[str, Any], example: Example, task: Task, setting: Setting) -> str:
    """The key of a response: what answers, the question, and how it is asked."""
    question: dict[str, Any] = {**key, "decoding": _DECODING, "prompt": example.prompt}
    if example.source is not None and any("encoder" in member for member in key.get("members", ())):
        question["source"] = example.source
    if task.metric == "choice":
        return key_of({**question, "choices": [f"{task.delimiter}{choice}" for choice in example.choices]})
    if setting.temperature:
        question |= {"temperature": setting.temperature, "seed": setting.seed}
    return key_of({**question, "max_new_tokens": setting.limit(task), "stop": list(task.stop)})


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
