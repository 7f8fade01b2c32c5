"""Response-level methods on stored answers: what a method takes, writes and reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from advisor.records import Profile
from advisor.response_cache import ResponseCache, key_of
from advisor.statistics import check_same_questions
from advisor.strategies.ballot import Ballot
from advisor.strategies.fusion import check_prompt
from advisor.strategies.strategy import written_answer
from advisor.tasks.task import Task
from ensemble.common.files import remembered_sha256
from ensemble.errors import InputError
from ensemble.methods import plugins
from ensemble.methods._response import Aggregation, ResponseMethod
from ensemble.models.fingerprint import files_of
from ensemble.models.hub import commit_of
from ensemble.models.spec import Checkpoint, resolve_device

_ONLY_OPTIONS = "it writes a text, and here options are chosen by their likelihood"


class StoredChoices:
    """A method that asks a model, with its results in the cache, so that a second evaluation need not ask again.

    Args:
        method: The method.
        key: What determines its results besides the responses: its options and its models.
        cache: The response cache.
    """

    def __init__(self, method: ResponseMethod, key: Mapping[str, Any], cache: ResponseCache) -> None:
        self._method, self._key, self._cache = method, key, cache

    def choose(self, prompt: str, texts: Sequence[str], answers: Sequence[str | None]) -> int | str:
        """See :class:`ensemble.methods._response.ResponseMethod`."""
        key = key_of({**self._key, "prompt": prompt, "texts": list(texts), "answers": list(answers)})
        stored: int | str | None = self._cache.value(
            key, lambda value: isinstance(value, str) or (type(value) is int and 0 <= value < len(texts))
        )
        if stored is None:
            stored = self._method.choose(prompt, texts, answers)
            self._cache.keep(key, stored)
        return stored


class FieldVoting:
    """The method ``voting``, field by field: for a task with ``compare: fields``."""

    def choose(self, prompt: str, texts: Sequence[str], answers: Sequence[str | None]) -> int | str:  # noqa: ARG002
        """See :class:`ensemble.methods._response.ResponseMethod`."""
        return Ballot(answers, by_field=True).taken()


def models_key(places: Sequence[str], device: str) -> dict[str, Any]:
    """What decides the outputs of models that a response-level method asks, for the key of its results.

    Args:
        places: Folders, or ids on the hub.
        device: The device that they run on, or ``auto``.

    Raises:
        InputError: A model on the hub cannot be found.
    """
    models = []
    for checkpoint in map(Checkpoint, places):
        files = {path.name: remembered_sha256(path) for path in files_of(checkpoint)}
        models.append(
            files if checkpoint.is_local else {"hub_id": checkpoint.path_or_id, "commit": commit_of(checkpoint)}
        )
    # Devices add up in another order, so outputs may differ.
    return {"models": models, "device": resolve_device(device).partition(":")[0]}


def chosen(
    name: str, method: ResponseMethod, task: Task, profiles: Sequence[Profile]
) -> tuple[Profile, list[int | None]]:
    """The answers that a method chooses or writes, as a profile.

    Returns:
        The profile, and for each question the number of the member that gave the answer; None if the method wrote it.

    Raises:
        InputError: The method writes texts, and the task's options are chosen by their likelihood; or it is of another
            package, and it failed or gave neither a text nor the index of a response.
        UniteError: Two members answered different questions.
    """
    check_same_questions(*profiles)
    picks: list[int | None] = []
    written: dict[int, str] = {}
    for n, example in enumerate(task.examples):
        answers = [profile.answers[n] for profile in profiles]
        texts, extracted = [answer.text or "" for answer in answers], [answer.extracted for answer in answers]
        with plugins().running(name):
            taken = method.choose(example.prompt, texts, extracted)
        if isinstance(taken, str):
            if task.metric == "choice":
                raise InputError(_ONLY_OPTIONS, of=f"method {name}")
            picks.append(None)
            written[n] = taken
        # -1 would be the last response, and True the second.
        elif type(taken) is int and 0 <= taken < len(texts):
            picks.append(taken)
        else:
            raise InputError(
                f"question {example.id}: it chose {taken!r}; it must give the number "
                f"of a response, from 0 to {len(texts) - 1}, or a text",
                of=f"method {plugins().label(name)}",
            )
    # All at once: a task whose answers are programs runs them in parallel.
    scores = iter(task.score_all([(task.examples[n], text) for n, text in written.items()]))
    graded = {n: written_answer(task.examples[n], text, next(scores)) for n, text in written.items()}
    answers = [graded[n] if pick is None else profiles[pick].answers[n] for n, pick in enumerate(picks)]
    return Profile(name, tuple(answers)), picks


def check_aggregation(name: str, aggregation: Aggregation, task: Task, members: Sequence[str]) -> None:
    """Check, before any model runs, that a member of the set can read responses and write an answer.

    Args:
        name: The method's name.
        aggregation: What it does.
        task: The questions.
        members: The names of the set's members.

    Raises:
        InputError: The task chooses options, the aggregator is no member, or the template cannot be used.
    """
    if task.metric == "choice":
        raise InputError(_ONLY_OPTIONS, of=f"method {name}")
    if aggregation.aggregator is not None and aggregation.aggregator not in members:
        raise InputError(
            f"{aggregation.aggregator!r} is not a member of the set; name one of {', '.join(members)}",
            of=f"method {name}",
        )
    check_prompt(aggregation.template, aggregation.file, ("prompt", "question"))
