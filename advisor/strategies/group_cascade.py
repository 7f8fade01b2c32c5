"""A cascade in some groups of questions, and the single model in all others.

It learns from all questions in which groups a vote pays: a group differs from the others only if the evidence says so,
because the best of many groups is mostly luck. Its gain is that of choices which did not see the question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field

from advisor.pooling import pooled_groups
from advisor.records import Profile, join
from advisor.statistics import Floats, scores
from advisor.strategies.ballot import Taken
from advisor.strategies.cascade import Cascade
from advisor.strategies.group_router import GroupNames, listed_groups
from advisor.strategies.router import first_of
from advisor.strategies.strategy import Strategy, TrainingData, vote_sizes
from advisor.tasks.task import Example, Task, clusters_of
from ensemble.common.text import counted

if TYPE_CHECKING:
    from advisor.running.asking import PromptCalls

_DOUBT = 0.1
"""The probability, with which a group's true gain may have the sign of the overall gain, where it is treated apart."""


@dataclass(frozen=True)
class GroupCascade(Strategy):
    """A cascade in some groups. Its first member is the most accurate one on all questions that it learned from.

    Attributes:
        in_groups: The groups in which the cascade is asked.
        alone_in: The other groups. In these, in new groups and without a group the first member answers alone.
    """

    in_groups: Annotated[GroupNames, Field(description="of a cascade by groups: where it is asked")]
    alone_in: Annotated[GroupNames, Field(description="of a cascade by groups: where the first member answers alone")]

    KIND: ClassVar[str] = "group_cascade"
    SIMPLICITY: ClassVar[int] = 45
    COUNTS: ClassVar[bool] = True
    LEARNS: ClassVar[bool] = True
    ROLE: ClassVar[str] = "stage {n} of the cascade"

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[GroupCascade]:
        """See :meth:`Strategy.learn`."""
        if not vote_sizes(given):
            return
        examples = given.questions.task.examples
        # The sort is stable: of equally good ones the first one on dev.
        best = min(given.voters, key=lambda name: -round(given.questions.profiles[name].accuracy, 9))
        members = (best, *(name for name in given.voters if name != best))
        responses = given.profiles(members)
        voted = Cascade(members).apply(responses, given.questions.task)
        differences = scores(voted) - scores(responses[0])
        groups = pooled_groups(
            differences, [each.group for each in examples], clusters_of(given.questions.task), _DOUBT
        )
        if groups is None:
            return
        pays = groups.high > 0 if differences.mean() > 0 else groups.low > 0
        yield cls(
            members,
            tuple(name for name, own in zip(groups.names, pays, strict=True) if own),
            tuple(name for name, own in zip(groups.names, pays, strict=True) if not own),
        )

    @property
    def same_as(self) -> str | None:
        """See :attr:`Strategy.same_as`."""
        return "single" if not self.in_groups else None if self.alone_in else "cascade"

    @property
    def groups(self) -> tuple[str, ...]:
        """See :meth:`Strategy.groups`."""
        return tuple(sorted((*self.in_groups, *self.alone_in)))

    def share_voted(self, examples: Sequence[Example]) -> float:
        """See :meth:`Strategy.share_voted`."""
        return float(np.mean([self._asks_all(each.group) for each in examples]))

    def picks(self, responses: Sequence[Profile], task: Task) -> Sequence[Taken]:
        """See :meth:`Strategy.picks`."""
        voted = self._cascade.picks(responses, task)
        return [pick if self._asks_all(each.group) else 0 for pick, each in zip(voted, task.examples, strict=True)]

    def calls(self, responses: Sequence[Profile], task: Task, picks: Sequence[Taken]) -> Floats:
        """See :meth:`Strategy.calls`."""
        asked = self._cascade.calls(responses, task, picks)
        asked[1:, [not self._asks_all(each.group) for each in task.examples]] = 0
        return asked

    async def ask(self, calls: PromptCalls) -> Taken:
        """Ask the cascade in its groups, else the first member; the others then only if it fails."""
        if self._asks_all(calls.group):
            return await self._cascade.ask(calls)
        return await calls.until_answered(first_of(0, len(self.members)))

    def title(self, members: Sequence[str]) -> str:  # noqa: ARG002
        """See :meth:`Strategy.title`."""
        return f"Cascade in {counted(len(self.in_groups), 'group')}, {self._models}"

    def describe(self) -> str:
        """See :meth:`Strategy.describe`."""
        return (
            f"In the groups {join(listed_groups(self.in_groups))}, ask {self._names} in this order, stop as soon as "
            "the rest cannot change the majority, and take the answer that most of them give; in all other groups, and "
            f"for prompts that come without --group NAME, use {self.members[0]} alone (a cascade by groups)"
        )

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        return (
            f"Run a cascade of {self._count} models in {counted(len(self.in_groups), 'group')} of questions, and "
            f"{self.members[0]} alone in the others."
        )

    def list_members(self, names: Sequence[str]) -> str:
        """The members in the order in which they are asked, and the groups."""
        return f"{', then '.join(names)} in {join(listed_groups(self.in_groups))}; {names[0]} alone in all others"

    @cached_property
    def _cascade(self) -> Cascade:
        return Cascade(self.members)

    @cached_property
    def _all_asked_in(self) -> frozenset[str]:
        return frozenset(self.in_groups)

    def _asks_all(self, group: str | None) -> bool:
        return group in self._all_asked_in
