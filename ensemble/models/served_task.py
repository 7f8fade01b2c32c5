"""The task of a run, as far as it decides what production writes: how its prompts are made, and its answers read.

It is in ``result.json``, ``ensemble.json`` and ``strategy.json``, which may come from a stranger. Nothing here is
rendered: that is up to the programs that run an ensemble.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ensemble.common.schema import Exact, Schema, must

_LONGEST = 2**18
_MOST_OPTIONS = 100

TemplateText = Annotated[
    Exact, must(lambda text: len(text) <= _LONGEST, f"a template of at most {_LONGEST:,} characters")
]


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


class ServedTask(Schema, extra="forbid"):
    """The task that a run was made for."""

    metric: Exact
    """the name of its metric"""
    extract: Exact | None = None
    """what finds the answer in a response: `json`, `tool_call`, or a regular expression; null for the whole response"""
    template: PromptTemplate | None = None
    """how its prompts are made; null where prompts are sent as they are"""
