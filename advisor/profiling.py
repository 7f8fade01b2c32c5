"""Profiling: a model's, or an ensemble's, graded answers to a task's questions, from the store or computed.

A response is kept the moment it exists; what the store has is not computed again, and where it has all, no model is
loaded.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.loading import Model
from advisor.pool import Candidate
from advisor.records import Answer, Profile
from advisor.store import Response, Store, key_of
from advisor.tasks.values import Example, Task
from ensemble.checkpoint import ChatTemplate, check, first_line
from ensemble.errors import InputError, MemberError

if TYPE_CHECKING:
    from ensemble.ensemble import Ensemble

Advance = Callable[[int], None]
_HASHED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model")
_BATCH = 64
"""Prompts at a time where the run leaves it open; halved when memory runs out."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a run loads its models and generates.

    Attributes:
        device: For candidates that name none.
        dtype: For candidates that name none.
        chat_template: For candidates that name none.
        max_new_tokens: Tokens after which a response is cut off; None for the task's own.
        batch_size: Prompts at a time; None to begin with a usual one, and halve it when memory runs out.
    """

    device: str = "cpu"
    dtype: str = "auto"
    chat_template: ChatTemplate = "auto"
    max_new_tokens: int | None = None
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """What decides a model's responses.

    Attributes:
        revision: The hub's commit; None for a local folder.
        files: Name and SHA-256 of a local folder's files.
        dtype: The numeric type that it is run in.
        chat_template: Whether its prompts go through a chat template.
    """

    revision: str | None
    files: tuple[tuple[str, str], ...]
    dtype: str
    chat_template: str

    def key(self) -> dict[str, Any]:
        """As part of a response's key."""
        return {
            "revision": self.revision,
            "files": dict(self.files),
            "dtype": self.dtype,
            "chat_template": self.chat_template,
        }


@dataclass(frozen=True, slots=True)
class Cost:
    """What a profile's responses took when they were computed: seconds, and tokens emitted."""

    seconds: float
    tokens: int


def identify(candidate: Candidate, setting: Setting, store: Store) -> Identity:
    """Find out what decides a candidate's responses, reading no weights but to hash them.

    Raises:
        InputError: The candidate cannot be used; names its line in the pool file.
    """
    try:
        config = check(candidate.checkpoint)
    except InputError as error:
        raise InputError(f"{candidate.place}: {error}") from error
    dtype = candidate.dtype or setting.dtype
    if dtype == "auto":
        dtype = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    template = candidate.chat_template or setting.chat_template
    if not candidate.checkpoint.is_local:
        revision = getattr(config, "_commit_hash", None) or candidate.checkpoint.revision
        return Identity(f"{candidate.checkpoint.path_or_id}@{revision}", (), dtype, template)
    folder = Path(candidate.checkpoint.location)
    paths = sorted({path for pattern in _HASHED for path in folder.glob(pattern)})
    return Identity(None, tuple((path.name, store.sha256(path)) for path in paths), dtype, template)


def model_of(candidate: Candidate, setting: Setting) -> Model:
    """A candidate as it is to be loaded: its own options, and the run's where it has none."""
    return Model(
        candidate.name,
        candidate.checkpoint,
        candidate.device or setting.device,
        candidate.dtype or setting.dtype,
        candidate.chat_template or setting.chat_template,
    )


def profile(
    name: str,
    key: Mapping[str, Any],
    make: Callable[[], Ensemble],
    task: Task,
    setting: Setting,
    store: Store,
    advance: Advance,
) -> tuple[Profile, Cost]:
    """Answer a task's questions and grade the answers.

    Args:
        name: Whose profile it is.
        key: What decides the responses besides the question: the models and the method.
        make: Loads what answers; called only where a response is missing.
        task: The questions.
        setting: How to generate.
        store: Where responses are looked up and kept.
        advance: Called with the number of questions that are done.

    Raises:
        MemberError: Loading failed, or no question could be answered.
    """
    limit = setting.max_new_tokens or task.max_new_tokens
    keys = [_question_key(key, example, task, limit) for example in task.examples]
    found = store.get(keys)
    responses = [found.get(one) for one in keys]
    advance(sum(response is not None for response in responses))
    missing = [n for n, response in enumerate(responses) if response is None]
    if missing:
        ensemble = make()
        for number, response in _respond(ensemble, [task.examples[n] for n in missing], task, limit, setting):
            n = missing[number]
            responses[n] = response
            if response.error is None:
                store.put(keys[n], response)
            advance(1)
        del ensemble
        free_memory()
    complete = [response for response in responses if response is not None]
    if all(response.error is not None for response in complete):
        raise MemberError(f"{name}: no question could be answered; the first: {complete[0].error}")
    answers = tuple(_grade(task, *pair) for pair in zip(task.examples, complete, strict=True))
    return Profile(name, answers), Cost(sum(r.seconds for r in complete), sum(r.tokens for r in complete))


def free_memory() -> None:
    """Give back what a model held, before the next one is loaded."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _question_key(key: Mapping[str, Any], example: Example, task: Task, limit: int) -> str:
    question: dict[str, Any] = {**key, "prompt": example.prompt}
    if task.metric == "choice":
        return key_of({**question, "choices": list(example.choices)})
    return key_of({**question, "max_new_tokens": limit, "stop": list(task.stop)})


def _respond(
    ensemble: Ensemble, examples: Sequence[Example], task: Task, limit: int, setting: Setting
) -> Iterator[tuple[int, Response]]:
    """Number and response of each question, as they are finished; one that cannot be asked gets an error instead."""
    encoded: dict[int, list[list[int]]] = {}
    for number, example in enumerate(examples):
        try:
            encoded[number] = ensemble.encode(example.prompt)
        except InputError as error:
            yield number, Response("", 0, "error", 0.0, str(error))
    if task.metric == "choice":
        for number in encoded:
            yield number, _choose(ensemble, examples[number])
    else:
        yield from _generate(ensemble, encoded, task.stop, limit, setting.batch_size)


def _generate(
    ensemble: Ensemble, encoded: dict[int, list[list[int]]], stop: tuple[str, ...], limit: int, batch_size: int | None
) -> Iterator[tuple[int, Response]]:
    """Generate in batches; where memory runs out, go on with half as many prompts at a time."""
    import torch

    from ensemble.decoder import Settings

    size = batch_size or _BATCH
    left = dict(encoded)
    while left:
        numbers = list(left)
        settings = Settings(max_new_tokens=limit, stop=stop, batch_size=size)
        last = time.perf_counter()
        try:
            for n, generation in ensemble.generate_each([left[number] for number in numbers], settings):
                now = time.perf_counter()
                reason = generation.finish_reason
                yield numbers[n], Response(generation.text, len(generation.tokens), reason, now - last)
                last = now
                del left[numbers[n]]
        except torch.OutOfMemoryError as error:
            if size == 1:
                names = ", ".join(member.name for member in ensemble.members)
                raise MemberError(f"{names}: not enough memory for a single prompt ({first_line(error)})") from error
            size //= 2
            free_memory()


def _choose(ensemble: Ensemble, example: Example) -> Response:
    """The likeliest of a question's options."""
    start = time.perf_counter()
    scores = ensemble.score(example.prompt, [f" {choice}" for choice in example.choices])
    best = max(range(len(scores)), key=scores.__getitem__)
    return Response(example.choices[best], 0, "eos", time.perf_counter() - start)


def _grade(task: Task, example: Example, response: Response) -> Answer:
    if response.error is not None:
        return Answer(example.id, "", None, 0.0, "error", response.error)
    score = task.score(example, response.text)
    return Answer(example.id, response.text, score.extracted, score.value, response.finish_reason)
