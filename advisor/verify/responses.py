"""Response-level methods on stored answers: which answers are votes, what a method learns from, what it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from advisor.records import Answer, Profile
from advisor.response_cache import ResponseCache, key_of
from advisor.statistics import check_same_questions
from advisor.tasks.task import Example, Score, Task
from ensemble.errors import InputError
from ensemble.methods._response import ResponseMethod
from ensemble.models.fingerprint import files_of
from ensemble.models.hub import commit_of
from ensemble.models.spec import Checkpoint, resolve_device

VOTE_METRICS = ("exact_match", "number", "choice")
"""Metrics that read a short, fixed answer without looking at the reference. `contains` searches for the reference, so
its answers would tell the vote which one is right."""


def can_vote(task: Task) -> bool:
    """Whether the answers that the task's metric reads can be counted as votes."""
    return task.metric in VOTE_METRICS and task.scorer is None


def dev_scores(task: Task, profiles: Sequence[Profile]) -> tuple[list[str], list[list[float]]]:
    """What a response-level method learns from: the prompts, and for each prompt the score of every member.

    Args:
        task: The dev questions.
        profiles: The members' answers to them, the primary's first.

    Raises:
        UniteError: Two members answered different questions.
    """
    _check_questions(profiles)
    # The router compares prompts, and never sees the references of the held-out questions.
    prompts = [example.prompt for example in task.examples]
    return prompts, [[profile.answers[n].score for profile in profiles] for n in range(len(prompts))]


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


def models_key(places: Sequence[str], device: str, cache: ResponseCache) -> dict[str, Any]:
    """What decides the outputs of models that a response-level method asks, for the key of its results.

    Args:
        places: Folders, or ids on the hub.
        device: The device that they run on, or ``auto``.
        cache: Keeps the hashes of files.

    Raises:
        InputError: A model on the hub cannot be found.
    """
    models = []
    for checkpoint in map(Checkpoint, places):
        files = {path.name: cache.sha256(path) for path in files_of(checkpoint)}
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
        InputError: The method writes texts, and the task's options are chosen by their likelihood.
        UniteError: Two members answered different questions.
    """
    _check_questions(profiles)
    picks: list[int | None] = []
    written: dict[int, str] = {}
    for n, example in enumerate(task.examples):
        answers = [profile.answers[n] for profile in profiles]
        texts, extracted = [answer.text or "" for answer in answers], [answer.extracted for answer in answers]
        taken = method.choose(example.prompt, texts, extracted)
        picks.append(taken if isinstance(taken, int) else None)
        if isinstance(taken, str):
            if task.metric == "choice":
                raise InputError(f"method {name}: it writes a text, and here options are chosen by their likelihood")
            written[n] = taken
    # All at once: a task whose answers are programs runs them in parallel.
    scores = iter(task.score_all([(task.examples[n], text) for n, text in written.items()]))
    graded = {n: _graded(task.examples[n], text, next(scores)) for n, text in written.items()}
    answers = [graded[n] if pick is None else profiles[pick].answers[n] for n, pick in enumerate(picks)]
    return Profile(name, tuple(answers)), picks


def _graded(example: Example, text: str, score: Score) -> Answer:
    return Answer(example.id, text, score.extracted, score.value, "unknown", group=example.group)


def _check_questions(profiles: Sequence[Profile]) -> None:
    for profile in profiles[1:]:
        check_same_questions(profiles[0], profile)
