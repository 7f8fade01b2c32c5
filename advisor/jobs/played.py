"""Plays a strategy with models: its calls are asked, or found in the cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from advisor.models.profiler import Profiler
from advisor.records import Answer, Cost, Profile
from advisor.strategies.replay import QuestionCalls, play, question_of
from advisor.strategies.self_consistency import TEMPERATURE
from advisor.strategies.strategy import Call, QuestionText, Replay, WritingFlow
from advisor.strategies.vote import can_vote
from advisor.tasks.task import Example, Score, Task, fingerprint
from ensemble.errors import InputError, MemberError

ONLY_OPTIONS = "it writes a text, and here options are chosen by their likelihood"


class PlayedTask(NamedTuple):
    """A strategy on the questions of a task. A judge has not scored new texts yet.

    ``readings`` counts the replies to prompts with drafts, and ``unread`` says why a model could not answer some of
    them.
    """

    replay: Replay
    unread: Sequence[str]
    readings: int


def play_with_models(
    profiler: Profiler,
    members: Sequence[str],
    flow: Callable[[QuestionText], WritingFlow],
    task: Task,
    alone: Mapping[str, Profile],
    seed: int,
    name: str,
) -> PlayedTask:
    """Let a strategy answer the questions of a task. Stored replies are not asked for again.

    ``alone`` has what models answer alone, and ``seed`` is that of the first of several responses that are drawn.
    """
    asked = _Asked(profiler, members, task, alone, seed, name)
    played = play(flow, [question_of(example) for example in task.examples], asked)
    cost = Cost.total([profile.cost for _, profile, _ in asked.calls])
    return PlayedTask(
        Replay(Profile(name, _answers(name, task, played), cost), calls=asked.calls), asked.unread, asked.readings
    )


def _answers(name: str, task: Task, played: Sequence[QuestionCalls[Answer]]) -> tuple[Answer, ...]:
    """The replies that are taken, and the texts that were written, as the task scores them."""
    written = {n: each.text for n, each in enumerate(played) if each.text is not None}
    if written and task.metric == "choice":
        raise InputError(ONLY_OPTIONS, of=f"method {name}")
    # All at once: a task whose answers are programs runs them in parallel.
    scores = iter(task.score_all([(task.examples[n], text) for n, text in written.items()]))
    answers = [None if each.text is not None else each.replies[each.taken] for each in played]
    return tuple(
        _graded(example, written[n], next(scores)) if answer is None else answer
        for n, (example, answer) in enumerate(zip(task.examples, answers, strict=True))
    )


def _graded(example: Example, text: str, score: Score) -> Answer:
    return Answer(example.id, text, score.extracted, score.value, "unknown", group=example.group, problem=score.problem)


class _Asked:
    """Replies to calls; the same call of several questions is one job."""

    def __init__(
        self, profiler: Profiler, members: Sequence[str], task: Task, alone: Mapping[str, Profile], seed: int, name: str
    ) -> None:
        self._profiler, self._members, self._task, self._seed, self._name = profiler, members, task, seed, name
        self._alone = dict(alone)
        self.calls: list[tuple[tuple[str, ...], Profile, int]] = []
        self.unread: list[str] = []
        self.readings = 0

    def __call__(self, calls: Sequence[tuple[int, Call]]) -> list[Answer]:
        jobs: dict[Call, dict[int, Call]] = {}
        step = self.calls[-1][2] + 1 if self.calls else 0
        for n, call in calls:
            jobs.setdefault(call._replace(prompt=None if call.prompt is None else ""), {})[n] = call
        replies: dict[tuple[int, Call], Answer] = {}
        for job, own in jobs.items():
            names = tuple(self._members[member] for member in job.members)
            profile = self._profile(names, job, own)
            self.calls.append((names, profile, step))
            replies |= {(n, call): answer for (n, call), answer in zip(own.items(), profile.answers, strict=True)}
        return [replies[each] for each in calls]

    def _profile(self, names: tuple[str, ...], job: Call, own: Mapping[int, Call]) -> Profile:
        """The replies to one call of some questions."""
        if job.prompt is not None:
            task = reading_task(self._task, {n: call.prompt or "" for n, call in own.items()})
            read = self._profiler.reading(names[0], task, f"{self._name}: {names[0]}")
            self.readings += len(read.answers)
            self.unread += [answer.error for answer in read.answers if answer.error is not None]
            return read
        if len(names) > 1:
            whole = self._profiler.together(names, self._task)
        elif job.draw is not None:
            whole = self._profiler.drawn(names[0], self._task, TEMPERATURE, self._seed + job.draw)
        else:
            if names[0] not in self._alone:
                self._alone |= self._profiler.alone(names, self._task)
            if names[0] not in self._alone:
                raise MemberError(self._profiler.failures[names[0]], of=names[0])
            whole = self._alone[names[0]]
        return whole if len(own) == len(self._task.examples) else whole.part(list(own))


def reading_task(task: Task, prompts: Mapping[int, str]) -> Task:
    """Some questions of a task, by their numbers, with other prompts: drafts are in them.

    Encoder-decoder models read the whole prompt, since a source has no drafts.
    """
    examples = [replace(task.examples[n], prompt=prompt, source=None, own_prompts={}) for n, prompt in prompts.items()]
    split = f"{task.split} with responses"
    return replace(
        task, split=split, examples=tuple(examples), fingerprint=fingerprint(task.fingerprint, split, examples)
    )


def are_drawn(task: Task) -> bool:
    """Whether several responses of a model can differ, and their answers be counted."""
    return task.metric != "choice" and can_vote(task)


def are_judged(task: Task) -> bool:
    """Whether a judge can take one of several responses; a conversation would go on from each of them."""
    return task.rubric is not None and all(example.earlier is None for example in task.examples)


_MOST_DRAWS = 32
"""Responses of a model with the tokens of others; one that answers at once would have to write a hundred."""


def draws_worth(profiler: Profiler, model: str, task: Task, seed: int, budget: float) -> list[Profile]:
    """As many responses of a model as have a budget of tokens for all questions, to the nearest number from 1 to 32."""
    # Each has the next seed, so that a repeated run finds it in the cache.
    drawn: list[Profile] = []
    spent = 0.0
    # Half a response more than the budget is as far from it as half a response less.
    while not drawn or (spent + spent / len(drawn) / 2 < budget and len(drawn) < _MOST_DRAWS):
        drawn.append(profiler.drawn(model, task, TEMPERATURE, seed + len(drawn)))
        spent += drawn[-1].cost.tokens
    return drawn
