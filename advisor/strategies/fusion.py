"""Fusion: the models of a panel write drafts, and a writer reads these and writes the answer.

With one draft of each model it is Mixture-of-Agents (Wang et al., *Mixture-of-Agents Enhances Large Language Model
Capabilities*, 2024); with several drafts of the writer alone, Self-MoA (Li et al., 2025). :mod:`ensemble.methods.moa`
has the formulas.

The writer reads no names of models. The order of the drafts follows from the question's text, so that a draft's place
says nothing of who wrote it, and a question has the same order in ``select``, ``check``, ``run`` and ``serve``.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, ClassVar

from pydantic import Field

from advisor.options.shared import VerificationOptions, split_names
from advisor.records import join
from advisor.strategies.self_consistency import Draws
from advisor.strategies.strategy import MOST_MEMBERS, Call, Flow, QuestionText, Reply, Strategy, TrainingData
from advisor.tasks.data_files import Record
from advisor.tasks.task import sha256
from advisor.tasks.templates import Template
from ensemble.common.schema import Exact
from ensemble.common.text import counted, in_words
from ensemble.errors import InputError
from ensemble.methods._response import read_prompt


@cache
def own_prompt() -> str:
    """The writer's prompt of this project, which ``moa`` and ``self-moa`` have, too."""
    return read_prompt(None)[0]


BEST = "best"
"""The writer that ``--fusion`` names for the most accurate model on dev."""
_MOST = {"drafts": 100, "rounds": 10}


Panel = Annotated[
    tuple[Exact, ...],
    Field(min_length=1, max_length=MOST_MEMBERS, description="of fusion: the models that write drafts"),
]
Writer = Annotated[Exact, Field(description="of fusion: the model that reads the drafts and writes the answer")]
Rounds = Annotated[
    int,
    Field(
        strict=True,
        ge=1,
        le=10,
        description="of fusion: how often the panel writes; from the second time on it reads the drafts before",
    ),
]
WriterPrompt = Annotated[
    Exact,
    Field(max_length=100_000, description="of fusion: the writer's prompt, a Jinja2 template over prompt, responses"),
]


@dataclass(frozen=True)
class Fusion(Strategy):
    """A text that one model writes after it reads the drafts of several.

    Attributes:
        panel: The models that write drafts, the most accurate first.
        writer: The model that writes the answer; it may be one of the panel.
        draws: How many drafts each model of the panel writes; with several, they are drawn at random.
        rounds: How often the panel writes. From the second time on each model reads the drafts of the time before.
        prompt: The prompt of those who read drafts: a Jinja2 template over ``prompt`` and the list ``responses``.
    """

    panel: Panel
    writer: Writer
    draws: Draws = 1
    rounds: Rounds = 1
    prompt: WriterPrompt = field(default_factory=own_prompt)

    KIND: ClassVar[str] = "fusion"
    SIMPLICITY: ClassVar[int] = 80
    MEMBERS: ClassVar[tuple[int, int]] = (1, MOST_MEMBERS)

    @classmethod
    def of(cls, panel: Sequence[str], writer: str, draws: int, rounds: int, prompt: str) -> Fusion:
        """The fusion of a panel's drafts by a writer; its members are the panel, then a writer outside of it."""
        return cls(tuple(dict.fromkeys((*panel, writer))), tuple(panel), writer, draws, rounds, prompt)

    @property
    def details(self) -> tuple[str, ...]:
        """See :attr:`Strategy.details`; its writer in place of the first member, who may be in all panels."""
        return str(len(self.members)), self.writer

    @property
    def author(self) -> str:
        """See :attr:`Strategy.author`."""
        return self.writer

    @property
    def responses_per_member(self) -> int:
        """See :attr:`Strategy.responses_per_member`."""
        return self.draws

    @classmethod
    def learn(cls, given: TrainingData) -> Iterator[Fusion]:  # noqa: ARG003
        """No fusion: its answers take new calls, so that a user asks for it."""
        yield from ()

    @classmethod
    def check_options(cls, options: VerificationOptions, names: Sequence[str]) -> None:
        """See :meth:`Strategy.check_options`."""
        if options.fusion is None:
            return
        line, file = _read_line(options.fusion)
        named = (line.writer, *line.panel) if line.writer != BEST else line.panel
        if unknown := next((name for name in named if name not in names), None):
            raise InputError(f"--fusion: no candidate has the name {unknown}; their names are {', '.join(names)}")
        check_prompt(line.prompt, file, ("prompt",))

    @classmethod
    def asked_for(
        cls, options: VerificationOptions, names: Sequence[str], best: Sequence[str], voters: Sequence[str]
    ) -> Iterator[Fusion]:
        """See :meth:`Strategy.asked_for`."""
        if options.fusion is None:
            return
        line, _ = _read_line(options.fusion)
        panel = [name for name in line.panel or voters if name in names]
        for writer in best if line.writer == BEST else (line.writer,):
            if panel and writer in names:
                yield cls.of(panel, writer, line.draws, line.rounds, line.prompt)

    def problem(self) -> tuple[str, str] | None:
        """See :meth:`Strategy.problem`."""
        if self.members != tuple(dict.fromkeys((*self.panel, self.writer))):
            return "members", "the models of panel, and then the writer if it is not one of them"
        if self.draws > 1 and self.rounds > 1:
            return "rounds", "1 where each model writes several drafts (draws)"
        try:
            # Only the whole prompt is known of a question in production.
            if self.prompt != own_prompt():
                check_prompt(self.prompt, "the writer's prompt", ("prompt",))
        except InputError as error:
            return "prompt", f"a template over prompt and responses ({error})"
        return None

    def flow(self, question: QuestionText) -> Flow:
        """Ask the panel, then the writer; where the writer fails, the first draft of the last round is taken."""
        places = [self.members.index(name) for name in self.panel]
        draws = range(self.draws) if self.draws > 1 else [None]
        replies = list((yield [Call((place,), draw) for place in places for draw in draws]))
        latest = list(range(len(replies)))
        for _ in range(1, self.rounds):
            prompt, start = self._reading(question, [replies[n] for n in latest]), len(replies)
            replies += yield [Call((place,), prompt=prompt) for place in places]
            # An earlier draft takes the place of one that failed.
            latest = [old if replies[start + n].failed else start + n for n, old in enumerate(latest)]
        writer = self.members.index(self.writer)
        replies += yield [Call((writer,), prompt=self._reading(question, [replies[n] for n in latest]))]
        order = [len(replies) - 1, *latest]
        return next((number for number in order if not replies[number].failed), order[0])

    def _reading(self, question: QuestionText, drafts: Sequence[Reply]) -> str:
        return with_drafts(prompt_template(self.prompt), question, [draft.text for draft in drafts])

    def title(self, members: Sequence[str]) -> str:
        """See :meth:`Strategy.title`."""
        writer = members[self.members.index(self.writer)]
        if len(self.panel) == 1:
            own = "its own" if self.panel == (self.writer,) else members[0]
            return f"Fusion by {writer} of {counted(self.draws, 'draft')}, {own}"
        return f"Fusion by {writer}, {counted(len(self.panel), 'model')}"

    def describe(self) -> str:
        """See :meth:`Strategy.describe`."""
        times = "" if self.rounds == 1 else f" in {in_words(self.rounds)} rounds"
        drafts = "a draft" if self.draws == 1 else f"{self.draws} drafts"
        each = " each" if len(self.panel) > 1 else ""
        return (
            f"Ask {join(self.panel)} for {drafts}{each}{times}, and let {self.writer} read the drafts and write the "
            "answer (fusion)"
        )

    def headline(self) -> str:
        """See :meth:`Strategy.headline`."""
        count = len(self.panel) * self.draws
        return f"Let {self.writer} write the answer from {in_words(count)} {'draft' if count == 1 else 'drafts'}."


def own_drafts(strategies: Iterable[Strategy], calls: int) -> list[Fusion]:
    """For each fusion one whose writer reads its own drafts, at least two, and takes so many calls; no fusion twice.

    It says what the same calls buy without a panel.
    """
    fusions = [each for each in strategies if isinstance(each, Fusion)]
    drafts = min(max(calls - 1, 2), _MOST["drafts"])
    own = [Fusion.of((each.writer,), each.writer, drafts, 1, each.prompt) for each in fusions]
    return [each for each in dict.fromkeys(own) if each not in fusions]


def _read_line(text: str) -> tuple[Fusion, str]:
    """What ``--fusion`` says: ``WRITER panel=NAME,... drafts=N rounds=N prompt=FILE``, all but the writer optional.

    Returns:
        The fusion, without members; its writer may be :data:`BEST`, and an empty panel stands for the voters. And the
        file of its prompt, for messages.
    """
    try:
        writer, *words = shlex.split(text)
    except ValueError:
        raise InputError(f"--fusion {text!r}: give a candidate or best, then options, with quotes in pairs") from None
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (equals and value) or name not in ("panel", "drafts", "rounds", "prompt") or name in given:
            raise InputError(f"--fusion: {word}: give panel=NAME,... drafts=N rounds=N prompt=FILE, each at most once")
        given[name] = value
    panel = split_names(given.get("panel", ""))
    if "panel" in given and not panel:
        raise InputError("--fusion: panel: no name is given; give candidates, or leave it out")
    drafts, rounds = (_number(name, given.get(name, "1")) for name in _MOST)
    if drafts > 1 and rounds > 1:
        raise InputError(f"--fusion: rounds={rounds}: models that write several drafts read none; leave one out")
    file = given.get("prompt")
    return Fusion((), panel, writer, drafts, rounds, read_prompt(file)[0]), file or "--fusion"


def _number(name: str, text: str) -> int:
    # isdigit alone accepts the digits of other scripts.
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= _MOST[name]):
        raise InputError(f"--fusion: {name}={text}: give a number from 1 to {_MOST[name]}")
    return int(text)


def prompt_template(source: str, file: str = "the writer's prompt") -> Template:
    """The template of a writer's prompt; `file` is its file, for messages."""
    return Template(source, file=file, key="")


def check_prompt(source: str, file: str, question: Sequence[str]) -> None:
    """Check that a writer's prompt can be used."""
    template = prompt_template(source, file)
    if "responses" not in template.named or not template.named & set(question):
        raise InputError(f"{file}: the template must use responses, and {' or '.join(question)}; add what is missing")
    # A field that no question has would only be found after all drafts are written.
    template.text(Record({**dict.fromkeys(question, ""), "responses": [""]}, "a question"))


def with_drafts(template: Template, question: QuestionText, drafts: Sequence[str | None]) -> str:
    """What a model reads that writes an answer from drafts without those that failed; the prompt decides the order."""
    order = sorted(range(len(drafts)), key=lambda n: sha256(question.prompt, n))
    responses = [draft for n in order if (draft := drafts[n]) is not None]
    fields = {"prompt": question.prompt, "question": question.text, "responses": responses}
    return template.text(Record(fields, question.place))
