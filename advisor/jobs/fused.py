"""A fusion on questions: the writer reads drafts, and writes the answers. ``moa`` and ``self-moa`` are fusions, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from advisor.profile.profiler import Profiler
from advisor.records import Cost, Profile
from advisor.statistics import check_same_questions
from advisor.strategies.fusion import Fusion, prompt_template, with_drafts
from advisor.strategies.self_consistency import TEMPERATURE
from advisor.tasks.task import Task, fingerprint


class Fused(NamedTuple):
    """The answers of a fusion.

    Attributes:
        profile: The answers, with the cost of all calls. A judge has not scored them yet.
        calls: All calls: the name of each member, and its replies to all questions.
        unread: Why a model could not answer with the drafts in its prompt, for each such reply.
        readings: The replies to prompts with drafts.
    """

    profile: Profile
    calls: Sequence[tuple[str, Profile]]
    unread: Sequence[str]
    readings: int

    @property
    def spent(self) -> dict[str, Cost]:
        """What all calls of each member took, by its name."""
        costs: dict[str, list[Cost]] = {}
        for name, reply in self.calls:
            costs.setdefault(name, []).append(reply.cost)
        return {name: Cost.total(own) for name, own in costs.items()}


_MOST_DRAWS = 32
"""Responses of a model with the tokens of others; one that answers at once would have to write a hundred."""


def draws_worth(profiler: Profiler, model: str, task: Task, seed: int, budget: float) -> list[Profile]:
    """As many responses of a model as have a budget of tokens, to the nearest whole number, from 1 to 32.

    Args:
        profiler: Asks the model.
        model: The model.
        task: The questions.
        seed: Of the first response; the next one has the next seed, so that a repeated run finds both in the cache.
        budget: The tokens of all questions together.

    Raises:
        MemberError: The model failed.
    """
    drawn: list[Profile] = []
    spent = 0.0
    # Half a response more than the budget is as far from it as half a response less.
    while not drawn or (spent + spent / len(drawn) / 2 < budget and len(drawn) < _MOST_DRAWS):
        drawn.append(profiler.drawn(model, task, TEMPERATURE, seed + len(drawn)))
        spent += drawn[-1].cost.tokens
    return drawn


def fuse(
    profiler: Profiler,
    fusion: Fusion,
    task: Task,
    alone: Mapping[str, Profile],
    seed: int,
    name: str = "",
    *,
    keeps_order: bool = False,
) -> Fused:
    """Let the writer of a fusion answer the questions of a task. Stored replies are not asked for again.

    Args:
        profiler: Asks the models.
        fusion: The fusion.
        task: The questions.
        alone: What the models answer alone; the drafts, if each model of the panel writes one.
        seed: Of the first draft, where each model writes several.
        name: The name of the answers; empty for one that says who the writer is.
        keeps_order: See :func:`advisor.strategies.fusion.with_drafts`.

    Raises:
        InputError: The prompt's template fails on a question.
        MemberError: A model failed.
    """
    name = name or f"fusion by {fusion.writer}"
    if fusion.draws > 1:
        seeds = range(seed, seed + fusion.draws)
        calls = [(each, profiler.drawn(each, task, TEMPERATURE, own)) for each in fusion.panel for own in seeds]
    else:
        calls = [(each, alone[each]) for each in fusion.panel]
    read, drafts = [profile for _, profile in calls], len(calls)
    for number in range(2, fusion.rounds + 1):
        reading = reading_task(task, fusion.prompt, read, keeps_order=keeps_order)
        written = [profiler.reading(each, reading, f"{name}, round {number}: {each}") for each in fusion.panel]
        read = [answered(*pair) for pair in zip(written, read, strict=True)]
        calls += zip(fusion.panel, written, strict=True)
    reading = reading_task(task, fusion.prompt, read, keeps_order=keeps_order)
    calls.append((fusion.writer, profiler.reading(fusion.writer, reading, f"{name}: {fusion.writer}")))
    # Where the writer fails, the first draft is the best guess; where that failed, the next one.
    last = calls[-1][1]
    for draft in read:
        last = answered(last, draft)
    profile = Profile(name, last.answers, Cost.total([each.cost for _, each in calls]))
    replies = [answer.error for _, each in calls[drafts:] for answer in each.answers]
    return Fused(profile, calls, [each for each in replies if each is not None], len(replies))


def reading_task(task: Task, prompt: str, read: Sequence[Profile], *, keeps_order: bool = False) -> Task:
    """The questions of a task with drafts in their prompts, for a model that reads them.

    A draft that failed is left out. Encoder-decoder models read the whole prompt, since a source has no drafts.

    Args:
        task: The task.
        prompt: The template; see :class:`advisor.strategies.fusion.Fusion`.
        read: The drafts: one of each profile to each question.
        keeps_order: See :func:`advisor.strategies.fusion.with_drafts`.

    Raises:
        InputError: The template fails on a question.
        UniteError: Two profiles are of different questions.
    """
    check_same_questions(*read)
    template, examples = prompt_template(prompt), []
    for n, example in enumerate(task.examples):
        answers = [profile.answers[n] for profile in read]
        drafts = [None if answer.error is not None else answer.text or "" for answer in answers]
        text = with_drafts(
            template, example.prompt, example.question, drafts, f"question {example.id}", keeps_order=keeps_order
        )
        examples.append(replace(example, prompt=text, source=None))
    split = f"{task.split} with responses"
    return replace(
        task, split=split, examples=tuple(examples), fingerprint=fingerprint(task.fingerprint, split, examples)
    )


def answered(written: Profile, earlier: Profile) -> Profile:
    """The answers of a profile; where one failed, that of an earlier profile."""
    pairs = zip(written.answers, earlier.answers, strict=True)
    return replace(written, answers=tuple(old if answer.error is not None else answer for answer, old in pairs))
