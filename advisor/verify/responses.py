"""Stored responses as response-level methods see them, and what they choose as a profile of their own."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.records import Profile
from advisor.statistics import check_same_questions
from advisor.tasks.task import Task
from ensemble.methods._response import ResponseMethod

_FIXED = ("exact_match", "number", "choice")
"""Metrics that read a short, fixed answer from a response without looking at the reference. What `contains` read is the
reference itself where it was found, so that votes for it would be told what is right."""


def can_vote(task: Task) -> bool:
    """Whether the answers that a task's metric reads can be counted as votes."""
    return task.metric in _FIXED and task.scorer is None


def dev_scores(task: Task, profiles: Sequence[Profile]) -> tuple[list[str], list[list[float]]]:
    """The questions that a response-level method learns from: their prompts, and for each one every member's score.

    Args:
        task: The questions.
        profiles: The members' answers to them, the primary's first.

    Raises:
        UniteError: Two members have answers to different questions.
    """
    _check_questions(profiles)
    prompts = [example.prompt for example in task.examples]
    return prompts, [[profile.answers[n].score for profile in profiles] for n in range(len(prompts))]


def chosen(name: str, method: ResponseMethod, task: Task, profiles: Sequence[Profile]) -> tuple[Profile, list[int]]:
    """The answers that a method takes of the members' answers: a profile of that name, and each answer's member.

    Raises:
        UniteError: Two members have answers to different questions.
    """
    _check_questions(profiles)
    picks = []
    for n, example in enumerate(task.examples):
        answers = [profile.answers[n] for profile in profiles]
        texts, extracted = [answer.text for answer in answers], [answer.extracted for answer in answers]
        picks.append(method.choose(example.prompt, texts, extracted))
    return Profile(name, tuple(profiles[pick].answers[n] for n, pick in enumerate(picks))), picks


def _check_questions(profiles: Sequence[Profile]) -> None:
    for profile in profiles[1:]:
        check_same_questions(profiles[0], profile)
