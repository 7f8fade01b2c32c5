"""Stored responses as response-level methods see them, and what they choose as a profile of their own."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.records import Profile
from advisor.statistics import check_same_questions
from advisor.tasks.task import Task
from ensemble.methods._response import Answered, Response, ResponseMethod

_FIXED = ("exact_match", "number", "choice")
"""Metrics that read a short, fixed answer from a response without looking at the reference. What `contains` read is the
reference itself where it was found, so that votes for it would be told what is right."""


def can_vote(task: Task) -> bool:
    """Whether the answers that a task's metric reads can be counted as votes."""
    return task.metric in _FIXED and task.scorer is None


def answered(task: Task, profiles: Sequence[Profile], *, scored: bool = False) -> tuple[Answered, ...]:
    """The task's questions with every member's response.

    Args:
        task: The questions.
        profiles: The members' answers to them, the primary's first.
        scored: Whether the responses have their scores, to learn from.

    Raises:
        UniteError: Two members were asked different questions.
    """
    for profile in profiles[1:]:
        check_same_questions(profiles[0], profile)
    return tuple(
        Answered(
            example.prompt,
            tuple(
                Response(answer.text, answer.extracted, answer.score if scored else None)
                for answer in (profile.answers[n] for profile in profiles)
            ),
        )
        for n, example in enumerate(task.examples)
    )


def chosen(name: str, method: ResponseMethod, task: Task, profiles: Sequence[Profile]) -> tuple[Profile, list[int]]:
    """What a method takes of the members' answers: a profile of that name, and whose answer each of them is.

    Raises:
        UniteError: Two members were asked different questions.
    """
    picks = [method.choose(question) for question in answered(task, profiles)]
    return Profile(name, tuple(profiles[pick].answers[n] for n, pick in enumerate(picks))), picks
