"""What models are asked: prompts for models of several kinds, and how the task of a run makes its prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from ensemble.common.schema import Exact, Flag, Schema, must

LONGEST_TEMPLATE = 2**18
"""Characters."""
_MOST_OPTIONS = 100

TemplateText = Annotated[
    Exact, must(lambda text: len(text) <= LONGEST_TEMPLATE, f"a text of at most {LONGEST_TEMPLATE:,} characters")
]


@dataclass(frozen=True, slots=True)
class Sourced:
    r"""A prompt for models that continue a text, together with what some models read in its place.

    ``Sourced("English: Good morning\nGerman:", "Good morning")``

    Attributes:
        prompt: What causal models continue.
        source: What encoder-decoder models read; None for the prompt.
        own: The prompts of models that have their own, by name.
    """

    prompt: str
    source: str | None = None
    own: Mapping[str, str] = field(default_factory=dict, hash=False)

    def of(self, model: str) -> str:
        """What a causal model continues."""
        return self.own.get(model, self.prompt)


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A conversation, for members with a chat template and for those without one.

    Attributes:
        exchanges: What the user said and what the answer was, oldest first.
        prompt: What the user says now.
        system: What the system message before them says; None for no such message.
    """

    exchanges: tuple[tuple[str, str], ...]
    prompt: str
    system: str | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        """What a chat template gets."""
        said = [text for exchange in self.exchanges for text in exchange]
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return first + [
            {"role": "assistant" if number % 2 else "user", "content": text}
            for number, text in enumerate((*said, self.prompt))
        ]

    @property
    def text(self) -> str:
        """One text to continue, where no chat template is used: each prompt, its answer, and a blank line."""
        # As instructions and demonstrations are written: models that only continue texts know this form.
        first = f"{self.system}\n\n" if self.system else ""
        return first + "".join(f"{_followed(*exchange).rstrip()}\n\n" for exchange in self.exchanges) + self.prompt


def _followed(prompt: str, answer: str) -> str:
    """A prompt and its answer, with white space between them."""
    return prompt + ("" if prompt[-1:].isspace() or answer[:1].isspace() else " ") + answer


def with_system(system: str, prompt: str | Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages of a prompt behind a text of the system."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    # Chat templates take one such message, and a client may have sent one.
    while messages and messages[0]["role"] == "system":
        system = f"{system}\n\n{messages.pop(0)['content']}"
    return [{"role": "system", "content": system}, *messages]


class PromptTemplate(Schema, extra="forbid"):
    """How the fields of a question become its prompt: templates as in a task file, and the worked examples."""

    question: TemplateText
    """the template of a question, `prompt` of the task file"""
    instructions: TemplateText | None = None
    """the template of the text before everything else"""
    shots: dict[Exact, Exact] = Field(default_factory=dict)
    """the worked examples before a question, by its group; under an empty name those of all questions"""
    group: TemplateText | None = None
    """the template of a question's group, where each has its worked examples"""
    choices: Annotated[tuple[TemplateText, ...], Field(max_length=_MOST_OPTIONS)] = ()
    """the templates of the options, where the prompt lists them"""
    variant: Exact | None = None
    """the variant of the task"""
    source: TemplateText | None = None
    """the template of the text that encoder-decoder models read"""
    follow_ups: Flag = False
    """whether the task goes on after the response: its prompt is the first message of a conversation, not the last"""
    around: TemplateText | None = None
    """of one model: the template around the whole prompt, which it names `prompt`"""


class ServedTask(Schema, extra="forbid"):
    """The task that a run was made for, as far as it decides what production writes.

    It is in ``result.json``, ``ensemble.json`` and ``strategy.json``, which may come from a stranger. Nothing here is
    rendered: that is up to the programs that run an ensemble.
    """

    metric: Exact
    """the name of its metric"""
    extract: Exact | None = None
    """what finds the answer in a response: `json`, `tool_call`, or a regular expression; null for the whole response"""
    template: PromptTemplate | None = None
    """how its prompts are made; null where prompts are sent as they are"""
    templates: dict[Exact, PromptTemplate] = Field(default_factory=dict)
    """the same for the models that have their own prompts, by name"""
