"""A router by groups: each group of questions, for example a subject, goes to the member that was best on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from advisor.records import join
from advisor.statistics import scores
from advisor.strategies.strategy import Call, Flow, QuestionText, Strategy, TrainingData
from ensemble.common.schema import Exact, wrong
from ensemble.common.text import shortened

_PRIOR = 10
"""Questions of the whole task that count for a model in each group, so that few questions of a group decide nothing."""
_MOST_ROUTES = 100_000
_MOST_GROUPS = 12  # of a member that a sentence lists
_MOST_GROUPS_IN_TABLE = 40
_LONGEST_GROUP = 60  # characters of a group's name there


_EXPECTED = "an object with the name of a member for each group"


def _pairs(routes: Any) -> Any:
    if isinstance(routes, tuple):
        return routes
    if not isinstance(routes, Mapping) or not routes or not all(map(_is_text, (*routes, *routes.values()))):
        raise wrong(_EXPECTED)
    return tuple(routes.items())


def _is_text(value: Any) -> bool:
    # JSON may have halves of surrogate pairs.
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


Routes = Annotated[
    tuple[tuple[Exact, Exact], ...],
    BeforeValidator(_pairs),
    PlainSerializer(dict),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
    Field(max_length=_MOST_ROUTES, description="of a router by group: the member of each group, by its name"),
]


@dataclass(frozen=True)
class GroupRouter(Strategy):
    """A router by the group of the questions.

    Attributes:
        routes: The member of each group, as pairs; other groups go to the first member.
    """

    routes: Routes

    KIND: ClassVar[str] = "group_router"
    SIMPLICITY: ClassVar[int] = 20
    LEARNS: ClassVar[bool] = True
    ROLE: ClassVar[str] = "answers its groups"

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[GroupRouter]:
        """See :meth:`Strategy.learn`."""
        if len(given.voters) < 2:
            return
        graded = np.stack([scores(profile) for profile in given.profiles(given.voters)], axis=1)
        routes = _routes([each.group for each in given.questions.task.examples], graded, given.voters)
        if len(routes) > 1:
            used = {given.voters[0], *(name for _, name in routes)}  # the first one also answers new groups
            yield cls(tuple(name for name in given.voters if name in used), routes)

    @property
    def same_as(self) -> str | None:
        """See :attr:`Strategy.same_as`."""
        return "single" if len({name for _, name in self.routes}) < 2 else None

    @property
    def groups(self) -> tuple[str, ...]:
        """See :meth:`Strategy.groups`."""
        return tuple(group for group, _ in self.routes)

    def problem(self) -> tuple[str, str] | None:
        """See :meth:`Strategy.problem`."""
        is_known = all(name in self.members for _, name in self.routes)
        return None if is_known else ("routes", _EXPECTED)

    def flow(self, question: QuestionText) -> Flow:
        """Ask the member of the group; the others, in their order, only if it fails."""
        # A group without dev questions goes to the most accurate member.
        first = self._places.get(question.group or "", 0)
        order = [first, *(each for each in range(len(self.members)) if each != first)]
        for number, member in enumerate(order):
            (reply,) = yield [Call((member,))]
            if not reply.failed:
                return number
        return 0

    def title(self, members: Sequence[str]) -> str:  # noqa: ARG002
        """See :meth:`Strategy.title`."""
        return f"Group router, {self._models}"

    def describe(self) -> str:
        """See :meth:`Strategy.describe`."""
        own = self._groups_of()
        first, *others = self.members
        parts = [f"{name} answers {_in_words(own[name])}" for name in others if own[name]]
        # Last, because it also answers the groups that had no dev questions.
        routes = "; ".join([*parts, f"{first} answers all other groups, and prompts that come without --group NAME"])
        return (
            f"Send each group of questions to the one of {self._names} that was best on it (a router by groups: "
            f"{routes})"
        )

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        return f"Send each group of questions to one of {self._count} models."

    def list_members(self, names: Sequence[str]) -> str:
        """The members with the groups that they answer."""
        own = {name: listed_groups(groups) for name, groups in self._groups_of().items()}
        # New groups, and prompts without one, go to the first model.
        own[self.members[0]].append("all others")
        return "; ".join(f"{name}: {', '.join(own[name]) or 'no group'}" for name in names)

    def _groups_of(self) -> dict[str, list[str]]:
        own: dict[str, list[str]] = {name: [] for name in self.members}
        for group, name in self.routes:
            own[name].append(group)
        return own

    @cached_property
    def _places(self) -> dict[str, int]:
        return {group: self.members.index(name) for group, name in self.routes}


def listed_groups(groups: Sequence[str]) -> list[str]:
    """Groups for a sentence or a table. A group's name is untrusted and may be a whole text."""
    more = len(groups) - _MOST_GROUPS_IN_TABLE
    first = [shortened(group, _LONGEST_GROUP) for group in groups[:_MOST_GROUPS_IN_TABLE]]
    return first + ([f"{more:,} more"] if more > 0 else [])


def _in_words(groups: Sequence[str]) -> str:
    return join(listed_groups(groups)) if len(groups) <= _MOST_GROUPS else f"{len(groups):,} groups"


def _routes(groups: Sequence[str | None], scores: NDArray[Any], names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The member with the best scores in each group, smoothed by its scores in all groups."""
    overall = scores.mean(axis=0)
    routes = []
    for group in sorted({group for group in groups if group is not None}):
        own = scores[[each == group for each in groups]]
        smoothed = (own.sum(axis=0) + _PRIOR * overall) / (len(own) + _PRIOR)
        # Rounded, so that the more accurate member wins a tie.
        routes.append((group, names[int(smoothed.round(9).argmax())]))
    return tuple(routes)
