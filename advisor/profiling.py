"""Profiling: a model's, or an ensemble's, graded answers to a task's questions, from the store or computed.

A response is kept the moment it exists; what the store has is not computed again, and where it has all, no model is
loaded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.answering import answers, free_memory
from advisor.loading import Model
from advisor.memory import begin_peak, peak
from advisor.pool import Candidate
from advisor.records import Answer, Profile
from advisor.store import Response, Store, key_of
from advisor.tasks.values import Example, Score, Task
from ensemble.checkpoint import ChatTemplate, Checkpoint, check
from ensemble.errors import InputError, MemberError

if TYPE_CHECKING:
    from ensemble.ensemble import Ensemble

Advance = Callable[[int], None]
_DECIDING = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.py")
_DECODING = 2
"""Part of every key; raised by a change of the decoder after which the same models write something else."""


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
        hub_id: The hub's name of the model; None for a local folder.
        revision: The hub's commit; None for a local folder.
        files: Name and SHA-256 of a local folder's files.
        dtype: The numeric type that it is run in.
        chat_template: Whether its prompts go through a chat template.
    """

    hub_id: str | None
    revision: str | None
    files: tuple[tuple[str, str], ...]
    dtype: str
    chat_template: str

    def key(self) -> dict[str, Any]:
        """As part of a response's key."""
        return {
            "hub_id": self.hub_id,
            "revision": self.revision,
            "files": dict(self.files),
            "dtype": self.dtype,
            "chat_template": self.chat_template,
        }


@dataclass(frozen=True, slots=True)
class Cost:
    """What a profile's responses took when they were computed.

    Attributes:
        seconds: All of them together.
        tokens: Tokens emitted.
        peak_memory: Bytes, see :func:`advisor.memory.peak`; None where it is not known.
    """

    seconds: float
    tokens: int
    peak_memory: int | None = None


def files_of(checkpoint: Checkpoint) -> list[Path]:
    """The files of a local folder that decide what a model writes; none for a model on the hub, whose commit does."""
    if not checkpoint.is_local:
        return []
    folder = Path(checkpoint.location)
    return sorted({path for pattern in _DECIDING for path in folder.glob(pattern)})


def identify(candidate: Candidate, setting: Setting, store: Store) -> Identity:
    """Find out what decides a candidate's responses, reading no weights but to hash them.

    Raises:
        InputError: The candidate cannot be used; names its line in the pool file.
    """
    checkpoint = candidate.checkpoint
    try:
        config = check(checkpoint)
        files = tuple((path.name, store.sha256(path)) for path in files_of(checkpoint))
        commit = None if checkpoint.is_local else _commit_of(checkpoint)
    except (InputError, OSError) as error:
        raise InputError(f"{candidate.place}: {error}") from error
    dtype = candidate.dtype or setting.dtype
    if dtype == "auto":
        dtype = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    template = candidate.chat_template or setting.chat_template
    return Identity(None if commit is None else checkpoint.path_or_id, commit, files, dtype, template)


def _commit_of(checkpoint: Checkpoint) -> str:
    """The commit that a branch or tag of the hub stands for today: the folder in the cache that its files are in."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(checkpoint.path_or_id, "config.json", revision=checkpoint.revision)
    if not isinstance(config, str):
        name = checkpoint.path_or_id
        raise InputError(f"{name}: the hub names no commit of it; give one as {name}@COMMIT")
    return Path(config).parent.name


def model_of(candidate: Candidate, identity: Identity, setting: Setting) -> Model:
    """A candidate as it is to be loaded: its own options, and the run's where it has none."""
    # The commit that was found at the beginning: a branch may move while other candidates are run.
    revision = identity.revision or candidate.checkpoint.revision
    return Model(
        candidate.name,
        dataclasses.replace(candidate.checkpoint, revision=revision),
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
        InputError: The task runs programs that models wrote, and the user has not allowed that.
        MemberError: Loading failed, or no question could be answered.
        UniteError: The store failed.
    """
    task.check_allowed()
    limit = setting.max_new_tokens or task.max_new_tokens
    keys = [question_key(key, example, task, limit) for example in task.examples]
    kept = store.get(keys)
    responses = {n: kept[one] for n, one in enumerate(keys) if one in kept}
    advance(len(responses))
    missing = {n: example for n, example in enumerate(task.examples) if n not in responses}
    memory_key = key_of({"peak_memory": _DECODING, "of": keys})
    if missing:
        begin_peak()
        for n, response in answers(name, make, missing, task, limit, setting.batch_size):
            responses[n] = response
            if response.settled:
                store.put(keys[n], response)
            advance(1)
        if (used := peak()) is not None:
            store.keep(memory_key, used)
        free_memory()
    complete = [responses[n] for n in range(len(keys))]
    if all(response.error is not None for response in complete):
        raise MemberError(f"{name}: no question could be answered; the first: {complete[0].error}")
    cost = Cost(sum(r.seconds for r in complete), sum(r.tokens for r in complete), store.value(memory_key))
    return Profile(name, _graded(task, complete)), cost


def question_key(key: Mapping[str, Any], example: Example, task: Task, limit: int) -> str:
    """The key of a response: what answers, the question, and how it is asked."""
    question: dict[str, Any] = {**key, "decoding": _DECODING, "prompt": example.prompt}
    if task.metric == "choice":
        return key_of({**question, "choices": [f"{task.delimiter}{choice}" for choice in example.choices]})
    return key_of({**question, "max_new_tokens": limit, "stop": list(task.stop)})


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
