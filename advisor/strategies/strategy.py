"""What a strategy is, and the answers that it is learned from and applied to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

from advisor.records import Cost, Profile, join
from advisor.tasks.task import Task
from ensemble.common.text import counted, in_words
from ensemble.models.spec import Price

if TYPE_CHECKING:
    from advisor.running.asking import PromptCalls
    from advisor.statistics import Floats

S = TypeVar("S", bound="Strategy")
FEWEST_VOTERS = 3
"""With two voters the answer is always the first one's."""
MOST_MEMBERS = 100
_MOST_NAMES = 12  # in a sentence


@dataclass(frozen=True)
class Strategy(ABC):
    """One way to answer questions in production. Each kind is a subclass in its own file.

    A kind may have own fields. They are its keys in ``result.json`` and ``strategy.json``, beside ``strategy`` and
    ``members``; :mod:`advisor.strategies.schema` checks them by their annotations, and `advisor schema` shows them.

    Attributes:
        members: The models, the most accurate first.
        KIND: The name in files, options and tables.
        SIMPLICITY: Its place from the simplest to the most complex: of equally good strategies the first is
            recommended.
        ASKS: Whether it asks models one by one. Otherwise they decode together.
        WRITES: Whether it writes a text that no member gave alone. Its answers take new calls, so they are in
            :attr:`AnsweredSplit.written`, and :meth:`picks` refuses.
        COUNTS: Whether it counts answers, so that it needs a task with short, fixed ones.
        LEARNS: Whether it learns from questions; ``learn`` then gives at most one strategy. Its own answers to these
            questions prove nothing.
        IS_SINGLE: Whether it is one model that answers once, with which all others are compared.
        ROLE: What each member does, for tables; ``{n}`` stands for its place.
        MEMBERS: The fewest and the most members.
    """

    members: tuple[str, ...]

    KIND: ClassVar[str] = ""
    SIMPLICITY: ClassVar[int] = 100
    ASKS: ClassVar[bool] = True
    WRITES: ClassVar[bool] = False
    COUNTS: ClassVar[bool] = False
    LEARNS: ClassVar[bool] = False
    IS_SINGLE: ClassVar[bool] = False
    ROLE: ClassVar[str] = "member"
    MEMBERS: ClassVar[tuple[int, int]] = (2, MOST_MEMBERS)

    @property
    def name(self) -> str:
        """The name in files, options and tables."""
        return self.KIND

    @property
    def details(self) -> tuple[str, ...]:
        """What tells it from others of its name in a run: the number of its members, and the first of them."""
        return str(len(self.members)), self.members[0]

    @property
    def sort_key(self) -> tuple[int, int]:
        """Its place among equally good strategies: the simpler one first, then the one with fewer members."""
        return self.SIMPLICITY, len(self.members)

    @property
    def responses_per_member(self) -> int:
        """How many responses of each member a question takes."""
        return 1

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of prompts that it tells apart; empty if it reads no group."""
        return ()

    @property
    def same_as(self) -> str | None:
        """The simpler strategy, by its name, that gives the same answers, so that this one is left out; else None."""
        return None

    @property
    def hypothesis(self) -> Strategy:
        """What a test is about: strategies that give the same answers to all questions have the same one."""
        return self

    def __str__(self) -> str:
        """The strategy in few words, for tables: ``Cascade, 3 models``."""
        return self.title(self.members)

    # Learn

    @classmethod
    @abstractmethod
    def learn(cls: type[S], given: TrainingData) -> Iterator[S]:
        """The strategies of this kind that the answers advise; none where it does not fit the task."""

    def problem(self) -> tuple[str, str] | None:
        """The own field whose value does not fit the others, and what it should be; None if all fit."""
        return None

    # Apply to stored answers

    @abstractmethod
    def picks(self, responses: Sequence[Profile], task: Task) -> Sequence[int]:
        """For each question, the place in `responses` of the one that it takes.

        Args:
            responses: The answers of each member; with several draws, those of each draw.
            task: The questions.

        Raises:
            InputError: It cannot be applied to these questions.
        """

    def calls(
        self,
        responses: Sequence[Profile],  # noqa: ARG002
        task: Task,  # noqa: ARG002
        picks: Sequence[int],
    ) -> Floats:
        """How often each question asks each member.

        Args:
            responses: As in :meth:`picks`.
            task: As in :meth:`picks`.
            picks: The result of :meth:`picks`.

        Returns:
            Members by questions.
        """
        return np.full((len(self.members), len(picks)), float(self.responses_per_member))

    def apply(self, responses: Sequence[Profile], task: Task) -> Profile:
        """Its answers; see :meth:`picks`."""
        return picked_answers(self.name, responses, self.picks(responses, task))

    # Ask models

    @abstractmethod
    async def ask(self, calls: PromptCalls) -> int:
        """Ask the members a prompt; the number of the call whose response is taken.

        If that call failed, the first one that did not is taken in its place.
        """

    # Words

    @abstractmethod
    def title(self, members: Sequence[str]) -> str:
        """The strategy in few words, for tables: ``Cascade, 3 models``. `members` has the names to show."""

    @abstractmethod
    def describe(self) -> str:
        """What to do, as the beginning of a sentence: ``Ask a, b and c in this order, and ...``."""

    @abstractmethod
    def headline(self) -> str:
        """What to do, as a short sentence: ``Run a cascade of three models.``."""

    def list_members(self, names: Sequence[str]) -> str:
        """The members with what the strategy knows of each. `names` has the first of them."""
        return ", ".join(names)

    @property
    def _names(self) -> str:
        more = len(self.members) - _MOST_NAMES
        return join(self.members if more < 2 else (*self.members[:_MOST_NAMES], f"{more} others"))

    @property
    def _models(self) -> str:
        return counted(len(self.members), "model")

    @property
    def _count(self) -> str:
        return in_words(len(self.members))


@dataclass(frozen=True, slots=True)
class AnsweredSplit:
    """The questions of a split and the answers to them.

    Attributes:
        task: The questions.
        profiles: The models' answers, by name.
        written: The answers of the strategies that write new texts (:attr:`Strategy.WRITES`). On dev they are optional.
        spent: What all calls of such a strategy took, by the name of the member; none for sets that decode together.
        prices: What the models' tokens cost, if it is known, by name.
        draws: Several responses of a model to each question, by name.
    """

    task: Task
    profiles: Mapping[str, Profile]
    written: Mapping[Strategy, Profile] = field(default_factory=dict)
    spent: Mapping[Strategy, Mapping[str, Cost]] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)
    draws: Mapping[str, Sequence[Profile]] = field(default_factory=dict)

    def part(self, numbers: Sequence[int]) -> AnsweredSplit:
        """Some of the questions, by their numbers, with the models' answers and draws."""
        task = replace(self.task, examples=tuple(self.task.examples[number] for number in numbers))
        return AnsweredSplit(
            task,
            {name: profile.part(numbers) for name, profile in self.profiles.items()},
            draws={name: [each.part(numbers) for each in own] for name, own in self.draws.items()},
        )

    def responses(self, strategy: Strategy) -> Sequence[Profile] | None:
        """The responses that a strategy reads: those of its members, or the draws; None if some are not there."""
        draws = strategy.responses_per_member
        if draws > 1:
            drawn = [each for name in strategy.members for each in self.draws.get(name, ())[:draws]]
            return drawn if len(drawn) == draws * len(strategy.members) else None
        known = [self.profiles[name] for name in strategy.members if name in self.profiles]
        return known if len(known) == len(strategy.members) else None


@dataclass(frozen=True, slots=True)
class TrainingData:
    """What strategies are learned from.

    Attributes:
        questions: What to learn from, with the answers of all models.
        best: The most accurate model on these questions.
        voters: The models of votes, cascades and routers, the most accurate first.
        can_vote: Whether the extracted answers can be counted.
        draws: How many responses of a model to each question there are, by name.
    """

    questions: AnsweredSplit
    best: str
    voters: tuple[str, ...]
    can_vote: bool
    draws: Mapping[str, int] = field(default_factory=dict)

    def profiles(self, names: Sequence[str]) -> list[Profile]:
        """The answers of some models."""
        return [self.questions.profiles[name] for name in names]


def picked_answers(name: str, responses: Sequence[Profile], picks: Sequence[int]) -> Profile:
    """The answers of a strategy: for each question, those of the response that it picks."""
    return Profile(name, tuple(responses[pick].answers[n] for n, pick in enumerate(picks)))


def vote_sizes(given: TrainingData) -> list[int]:
    """The sizes of votes to compare: the smallest vote, and that of all who fit. Between them lie gain and cost."""
    if not given.can_vote or len(given.voters) < FEWEST_VOTERS:
        return []
    return sorted({FEWEST_VOTERS, len(given.voters)})
