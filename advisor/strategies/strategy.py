"""What a strategy is, and the answers that it is learned from and replayed on.

A strategy is written once, as a generator (:meth:`Strategy.flow`): it yields calls of its members, gets their replies,
and returns the number of the reply that it takes. :mod:`advisor.strategies.replay` drives it with stored replies, and
:mod:`advisor.run.asking` with models, so that what was verified is what is served.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias, TypeVar

from advisor.options.shared import VerificationOptions
from advisor.records import Profile, join
from advisor.tasks.task import Task
from ensemble.common.text import counted, in_words
from ensemble.models.spec import Price

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ensemble.methods.voting import Codes


S = TypeVar("S", bound="Strategy")
FEWEST_VOTERS = 3
"""With two voters the answer is always the first one's."""
MOST_MEMBERS = 100
_MOST_NAMES = 12  # in a sentence


class QuestionText(NamedTuple):
    """What a strategy knows of a question, or of a prompt in production.

    Attributes:
        prompt: All that the members read.
        text: The same without instructions and demonstrations, or the last message of a conversation.
        group: The part of the task that it belongs to; None if it has none.
        place: The question, for messages.
    """

    prompt: str
    text: str
    group: str | None = None
    place: str = "the prompt"


class Call(NamedTuple):
    """One call: of a member, or of several that decode together.

    Attributes:
        members: Their numbers in :attr:`Strategy.members`; one, unless they decode together.
        draw: The number of a response that is drawn at random, from 0; None for one as the request wants it.
        prompt: What is read in place of the question's text; None for the question.
    """

    members: tuple[int, ...]
    draw: int | None = None
    prompt: str | None = None


class Reply(NamedTuple):
    """The reply to a call.

    Attributes:
        text: The response; None if the call failed.
        answer: What was read from it, for votes; None if it has no answer, or answers are not counted.
    """

    text: str | None
    answer: str | None

    @property
    def failed(self) -> bool:
        """Whether there is no response."""
        return self.text is None


Flow: TypeAlias = Generator[Sequence[Call], Sequence[Reply], int]
"""The way of a question through a strategy: yields calls that are made at the same time, gets their replies in this
order, and returns the number of the reply that is taken, counted over all calls. If that call failed, the first one
that did not is taken in its place."""
WritingFlow: TypeAlias = Generator[Sequence[Call], Sequence[Reply], int | str]
"""The same for methods of an evaluation that may write a text, which they return in place of a number."""


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
        COUNTS: Whether it counts answers, so that it needs a task with short, fixed ones.
        LEARNS: Whether it learns from questions; ``learn`` then gives at most one strategy. Its own answers to these
            questions prove nothing.
        ROLE: What each member does, for tables; ``{n}`` stands for its place.
        MEMBERS: The fewest and the most members.
    """

    members: tuple[str, ...]

    KIND: ClassVar[str] = ""
    SIMPLICITY: ClassVar[int] = 100
    COUNTS: ClassVar[bool] = False
    LEARNS: ClassVar[bool] = False
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
    def author(self) -> str | None:
        """The member that writes the answer as a new text; None where a reply of a member is the answer."""
        return None

    @property
    def responses_per_member(self) -> int:
        """How many responses of each member a question takes."""
        return 1

    @property
    def asks_one_again(self) -> bool:
        """Whether it asks one model several times, as one can in place of several models."""
        return len(self.members) == 1 and self.responses_per_member > 1

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of prompts that it tells apart; empty if it reads no group."""
        return ()

    @property
    def same_as(self) -> str | None:
        """The simpler strategy, by its name, that gives the same answers, so that this one is left out; else None."""
        return None

    def __str__(self) -> str:
        """The strategy in few words, for tables: ``Vote, 3 models``."""
        return self.title(self.members)

    # Learn

    @classmethod
    @abstractmethod
    def learn(cls: type[S], given: TrainingData) -> Iterator[S]:
        """The strategies of this kind that the answers advise; none where it does not fit the task."""

    @classmethod  # noqa: B027  # most strategies have no option
    def check_options(cls, options: VerificationOptions, names: Sequence[str]) -> None:
        """Raise InputError if the options of a run ask for this kind in a way that the candidates do not allow."""

    @classmethod
    def asked_for(
        cls: type[S],
        options: VerificationOptions,  # noqa: ARG003
        names: Sequence[str],  # noqa: ARG003
        best: Sequence[str],  # noqa: ARG003
        voters: Sequence[str],  # noqa: ARG003
    ) -> Iterator[S]:
        """The strategies of this kind that a user asks for, because they take new calls.

        Args:
            options: The options of a run.
            names: The models that can be asked; a strategy that needs another one is left out.
            best: The most accurate model. As long as it is not known, all that may be, with a strategy for each.
            voters: The models of votes.
        """
        yield from ()

    def problem(self) -> tuple[str, str] | None:
        """The own field whose value does not fit the others, and what it should be; None if all fit."""
        return None

    # Ask

    @abstractmethod
    def flow(self, question: QuestionText) -> Flow:
        """Ask the members a question: the strategy itself; see :data:`Flow`.

        Raises:
            InputError: A new prompt cannot be made of the question.
        """

    def replay_votes(self, codes: Codes) -> tuple[NDArray[np.intp], NDArray[np.intp]] | None:  # noqa: ARG002
        """The same for many questions at once, for strategies that only count answers; None for all others.

        Args:
            codes: The answers of :attr:`responses_per_member` replies of each member, replies by questions; see
                :func:`ensemble.methods.voting.answer_codes`.

        Returns:
            The number of the reply that each question takes, and the step in which it asks for each reply, replies by
            questions; see :attr:`Replay.steps`.
        """
        return None

    # Words

    @abstractmethod
    def title(self, members: Sequence[str]) -> str:
        """The strategy in few words, for tables: ``Vote, 3 models``. `members` has the names to show."""

    @abstractmethod
    def describe(self) -> str:
        """What to do, as the beginning of a sentence: ``Ask a, b and c in this order, and ...``."""

    @abstractmethod
    def headline(self) -> str:
        """What to do, as a short sentence: ``Take a vote of three models.``."""

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


Choice = tuple[str, int | None]
"""A reply that is taken: its model, and the number of the draw; None for what the model answers alone."""


class Replay(NamedTuple):
    """A strategy's answers to the questions of a split.

    Attributes:
        profile: The answers.
        takes: The reply that each question takes; empty for a strategy that writes new texts.
        steps: The step in which each question asks for a stored reply, from 0; -1 where it does not. The calls of a
            step are made at the same time.
        calls: The calls of a strategy that writes new texts: the members, the replies to the questions that ask, and
            the step.
    """

    profile: Profile
    takes: tuple[Choice, ...] = ()
    steps: Mapping[Choice, NDArray[np.intp]] = MappingProxyType({})
    calls: Sequence[tuple[Sequence[str], Profile, int]] = ()

    @property
    def calls_per_question(self) -> float:
        """How many responses of members a question takes, on average."""
        made = sum(int((own >= 0).sum()) for own in self.steps.values())
        made += sum(len(names) * len(profile.answers) for names, profile, _ in self.calls)
        return made / len(self.profile.answers)

    def part(self, places: Sequence[int]) -> Replay:
        """The answers to some of the questions, by their numbers, of a strategy that writes no new texts."""
        takes = tuple(self.takes[place] for place in places)
        return Replay(self.profile.part(places), takes, {choice: own[places] for choice, own in self.steps.items()})


@dataclass(frozen=True, slots=True)
class AnsweredSplit:
    """The questions of a split and the answers to them.

    Attributes:
        task: The questions.
        profiles: The models' answers, by name.
        written: The replays of strategies that write new texts, so that no stored reply is theirs.
        prices: What the models' tokens cost, if it is known, by name.
        draws: Several responses of a model to each question, by name.
    """

    task: Task
    profiles: Mapping[str, Profile]
    written: Mapping[Strategy, Replay] = field(default_factory=dict)
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

    def replies(self, model: str, draw: int | None) -> Profile | None:
        """A model's draw of this number, or what it answers alone; None if that is not there."""
        if draw is None:
            return self.profiles.get(model)
        draws = self.draws.get(model, ())
        return draws[draw] if draw < len(draws) else None


@dataclass(frozen=True, slots=True)
class TrainingData:
    """What strategies are learned from.

    Attributes:
        questions: What to learn from, with the answers of all models.
        best: The most accurate model on these questions.
        models: All models but near copies, the most accurate first.
        voters: Those of plain votes and routers.
        most_voters: How many models a vote may have.
        can_vote: Whether the extracted answers can be counted.
        draws: How many responses of a model to each question there are, by name.
    """

    questions: AnsweredSplit
    best: str
    models: tuple[str, ...]
    voters: tuple[str, ...]
    most_voters: int
    can_vote: bool
    draws: Mapping[str, int] = field(default_factory=dict)

    def profiles(self, names: Sequence[str]) -> list[Profile]:
        """The answers of some models."""
        return [self.questions.profiles[name] for name in names]


@dataclass(frozen=True)
class Single(Strategy):
    """One model that answers once."""

    KIND: ClassVar[str] = "single"
    SIMPLICITY: ClassVar[int] = 0
    ROLE: ClassVar[str] = "single model"
    MEMBERS: ClassVar[tuple[int, int]] = (1, 1)

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[Single]:
        """See :meth:`Strategy.learn`."""
        yield cls((given.best,))

    def flow(self, question: QuestionText) -> Flow:  # noqa: ARG002
        """See :meth:`Strategy.flow`."""
        yield [Call((0,))]
        return 0

    def title(self, members: Sequence[str]) -> str:
        """See :meth:`Strategy.title`."""
        return f"{members[0]} alone"

    def describe(self) -> str:
        """See :meth:`Strategy.describe`."""
        return f"Use {self._names} alone"

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        return f"Use {self.members[0]} alone."


@dataclass(frozen=True)
class Decoded(Strategy):
    """A set that decodes together. It is run, and not learned from answers of single models.

    Attributes:
        method: The name of the method, which is the strategy's name.
    """

    method: str

    ROLE: ClassVar[str] = "member of the set"

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.method

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[Decoded]:  # noqa: ARG003
        """No set: :mod:`advisor.jobs.held_out` chooses and runs it."""
        yield from ()

    def flow(self, question: QuestionText) -> Flow:  # noqa: ARG002
        """One call of all members."""
        yield [Call(tuple(range(len(self.members))))]
        return 0

    def title(self, members: Sequence[str]) -> str:  # noqa: ARG002
        """See :meth:`Strategy.title`."""
        return f"{self.method}, {self._models} together"

    def describe(self) -> str:
        """See :meth:`Strategy.describe`."""
        return (
            f"Decode {self._names} together, in this order: at each word they vote on the next piece of text "
            f"({self.method})"
        )

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        return f"Decode these {self._count} models together."
