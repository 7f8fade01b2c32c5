"""Response-level methods on stored answers: which answers are votes, what a method learns from, what it chooses."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.records import Profile
from advisor.statistics import check_same_questions
from advisor.tasks.task import Task
from ensemble.methods._response import ResponseMethod

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


def chosen(name: str, method: ResponseMethod, task: Task, profiles: Sequence[Profile]) -> tuple[Profile, list[int]]:
    """The answers that a method chooses, as a profile, and the number of the member that gave each of them.

    Raises:
        UniteError: Two members answered different questions.
    """
    _check_questions(profiles)
    picks = []
    for n, example in enumerate(task.examples):
        answers = [profile.answers[n] for profile in profiles]
        texts, extracted = [answer.text or "" for answer in answers], [answer.extracted for answer in answers]
        picks.append(method.choose(example.prompt, texts, extracted))
    return Profile(name, tuple(profiles[pick].answers[n] for n, pick in enumerate(picks))), picks


def _check_questions(profiles: Sequence[Profile]) -> None:
    for profile in profiles[1:]:
        check_same_questions(profiles[0], profile)
