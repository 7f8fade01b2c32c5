"""A router: each question goes to the member that was right on similar questions; the others are not asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field

from advisor.records import Profile
from advisor.statistics import Floats, check_same_questions
from advisor.strategies.ballot import Taken
from advisor.strategies.strategy import DevScores, Strategy, TrainingData
from advisor.tasks.task import Task
from ensemble.errors import InputError
from ensemble.methods import get_module, make_options

if TYPE_CHECKING:
    from advisor.running.asking import PromptCalls
    from ensemble.methods.router import Router as NearestQuestions


MOST_LEARNED = 1000
"""Questions that a router learns from at most: to compare a prompt with more takes long."""
_NO_DEV = DevScores.model_construct(prompts=(), scores=())


@dataclass(frozen=True)
class QuestionRouter(Strategy):
    """A router by the text of the questions.

    Attributes:
        dev: What it learns from. It is in the run's ``samples.jsonl``, so the strategy is the same without it.
    """

    dev: Annotated[DevScores, Field(description="of a router: what it learns from")] = field(
        default=_NO_DEV, compare=False, repr=False
    )

    KIND: ClassVar[str] = "router"
    SIMPLICITY: ClassVar[int] = 10
    LEARNS: ClassVar[bool] = True
    ROLE: ClassVar[str] = "answers some questions"
    READS_DEV: ClassVar[bool] = True

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[QuestionRouter]:
        """See :meth:`Strategy.learn`."""
        if len(given.voters) > 1:
            first = given.questions.part(range(min(MOST_LEARNED, len(given.questions.task.examples))))
            yield cls(given.voters, dev_scores(first.task, [first.profiles[name] for name in given.voters]))

    def problem(self) -> tuple[str, str] | None:
        """See :meth:`Strategy.problem`."""
        count = len(self.members)
        is_whole = len(self.dev.scores) == len(self.dev.prompts) and all(len(row) == count for row in self.dev.scores)
        return None if is_whole else ("dev.scores", f"a list of {count} scores from 0 to 1 for each of prompts")

    def with_dev(self, scores: DevScores) -> QuestionRouter:
        """See :meth:`Strategy.with_dev`."""
        return replace(self, dev=scores)

    def check_ready(self) -> None:
        """See :meth:`Strategy.check_ready`."""
        _ = self._nearest

    def picks(self, responses: Sequence[Profile], task: Task) -> Sequence[int]:  # noqa: ARG002
        """See :meth:`Strategy.picks`."""
        prompts = [example.prompt for example in task.examples]
        # Logs may lack the questions.
        if not all(prompt.strip() for prompt in (*self.dev.prompts, *prompts)):
            raise InputError(
                "a router reads the questions, and the log lacks the text of some; give a log with questions"
            )
        return self._nearest.choose_all(prompts)

    def calls(
        self,
        responses: Sequence[Profile],  # noqa: ARG002
        task: Task,  # noqa: ARG002
        picks: Sequence[Taken],
    ) -> Floats:
        """See :meth:`Strategy.calls`."""
        return picked(picks, len(self.members))

    async def ask(self, calls: PromptCalls) -> int:
        """Ask the member that is best on similar questions; the others, in their order, only if it fails."""
        first = self._nearest.choose(calls.text, [], [])
        return await calls.until_answered(first_of(first, len(self.members)))

    def title(self, members: Sequence[str]) -> str:  # noqa: ARG002
        """See :meth:`Strategy.title`."""
        return f"Router, {self._models}"

    def describe(self) -> str:
        """See :meth:`Strategy.describe`."""
        return f"Send each question to the one of {self._names} that was right on similar questions (a router)"

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        return f"Send each question to one of {self._count} models."

    @cached_property
    def _nearest(self) -> NearestQuestions:
        router: NearestQuestions = get_module("router").make(
            self.dev.prompts, self.dev.scores, make_options("router", {})
        )
        return router


def dev_scores(task: Task, profiles: Sequence[Profile]) -> DevScores:
    """What a router learns from: the prompts, and for each prompt the score of every member.

    Args:
        task: The dev questions.
        profiles: The members' answers to them, the primary's first.

    Raises:
        UniteError: Two members answered different questions.
    """
    check_same_questions(*profiles)
    # The router compares prompts, and never sees the references of the held-out questions.
    prompts = tuple(example.prompt for example in task.examples)
    rows = tuple(tuple(profile.answers[n].score for profile in profiles) for n in range(len(prompts)))
    # Not checked again: a log may lack the texts, and a large one has many rows.
    return DevScores.model_construct(prompts=prompts, scores=rows)


def picked(picks: Sequence[Taken], members: int) -> Floats:
    """Which questions go to each member: 1 or 0, members by questions."""
    asked: Floats = (np.array(picks) == np.arange(members)[:, None]).astype(np.float64)
    return asked


def first_of(first: int, members: int) -> list[int]:
    """The members' numbers: the one that a router chooses, then the others in their order."""
    return [first, *(member for member in range(members) if member != first)]
