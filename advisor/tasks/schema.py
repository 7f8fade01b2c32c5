"""The shape of a task file. docs/how-to/own-task.md says with examples what each key does.

What templates, patterns and metrics have to be, and what one key says about another, is checked where the file is
read: :mod:`advisor.tasks.task_file`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Discriminator, Field, PlainValidator, Tag, ValidationInfo, WithJsonSchema

from advisor.tasks.templates import Template
from ensemble.common.schema import Flag, Schema, must, wrong

Scoring = Literal["texts", "letters", "normalised"]
"""What decides between options: the log-probability of their texts (lm-eval's ``acc``), of their letters (the papers'
way for MMLU), or of their texts for each character (lm-eval's ``acc_norm``)."""
_PATTERNS = {"single": r"\[\[(-?\d+(?:\.\d+)?)\]\]", "pairwise": r"\[\[([ABC])\]\]"}
"""How a judge writes its verdict by default: as in MT-Bench (Zheng et al., 2023, appendix A)."""
_MOST = 10**9  # of every count; a number of thousands of digits cannot even be printed
_HAND_WRITTEN = ConfigDict(extra="forbid", validate_default=False)


def _checked(text: str) -> str:
    # "\ud800" in YAML is half a surrogate pair, which no tokenizer and no UTF-8 file can hold.
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise wrong("text without halves of surrogate pairs")
    return text


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise wrong("text that is not blank")
    return _checked(value)


def _texts(value: Any) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not items or not all(isinstance(item, str) and item for item in items):
        raise wrong("a text or a list of texts, none of them empty")
    return tuple(_checked(item) for item in items)


def _template(value: Any, info: ValidationInfo) -> Any:
    """A template of the file that is the context; without a context the text, after a check of its shape."""
    text = _text(value)
    return text if info.context is None else Template(text, file=info.context, key=str(info.field_name))


def _templates(value: Any, info: ValidationInfo) -> Any:
    return tuple(_template(text, info) if text.strip() else text for text in _texts(value))


def _field(value: Any, info: ValidationInfo) -> Any:
    text = _text(value)
    # A text without a template is a field's name: the same cluster or id for all questions would say nothing.
    return _template(text if "{" in text else f"{{{{{text}}}}}", info)


def _scale(value: Any) -> tuple[int, int]:
    is_pair = isinstance(value, list) and len(value) == 2 and all(type(end) is int for end in value)
    if not is_pair or not 0 <= value[0] < value[1] <= 1000:
        raise wrong("two whole numbers from 0 to 1000, the lower first")
    return value[0], value[1]


_LISTED: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_TEXT = WithJsonSchema({"type": "string", "minLength": 1})
Text = Annotated[str, PlainValidator(_text), _TEXT]
TextTemplate = Annotated[Template, PlainValidator(_template), _TEXT]
FieldTemplate = Annotated[Template, PlainValidator(_field), _TEXT]
Templates = Annotated[tuple[Template, ...], PlainValidator(_templates), WithJsonSchema(_LISTED)]
StopTexts = Annotated[
    tuple[str, ...], PlainValidator(lambda value: () if value == [] else _texts(value)), WithJsonSchema(_LISTED)
]
Whole = Annotated[
    int, Field(strict=True), must(lambda value: 0 <= value <= _MOST, f"a whole number from 0 to {_MOST:,}")
]
AtLeastOne = Annotated[
    int, Field(strict=True), must(lambda value: 1 <= value <= _MOST, f"a whole number from 1 to {_MOST:,}")
]
_PAIR: dict[str, Any] = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
Scale = Annotated[tuple[int, int], PlainValidator(_scale), WithJsonSchema(_PAIR)]
Files = Text | dict[str, Text]
"""A file, or a file for each field of a record."""


class HubData(Schema):
    """Data of the hub, or of a folder that ``--data`` names."""

    model_config = _HAND_WRITTEN

    hub: Text | None = None
    """A data set of the hub."""
    config: Text | None = None
    """A configuration of this data set."""
    revision: Text | None = None
    """A commit or a tag of this data set."""
    fields: dict[str, Text] = Field(default_factory=dict)
    """Fields of a record, each with the template that renders it."""
    dev: Text
    """The split that chooses."""
    held_out: Text
    """The split that verifies."""
    shots: Text | None = None
    """The split that demonstrations come from."""
    local: dict[str, Files] = Field(default_factory=dict)
    """The file of each split below the folder of ``--data``."""
    where: dict[str, Text] = Field(default_factory=dict)
    """Which records belong to a split: a template that is true or false."""

    @property
    def roles(self) -> dict[str, str]:
        """The split that serves as dev, as held_out and as source of the shots."""
        roles = {"dev": self.dev, "held_out": self.held_out, "shots": self.shots}
        return {role: split for role, split in roles.items() if split is not None}


class FileData(Schema):
    """Files beside the task file, one for each split."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Files]
    roles: ClassVar[Mapping[str, str]] = {}

    dev: Files
    """The file that chooses."""
    held_out: Files
    """The file that verifies."""
    where: dict[str, Text] = Field(default_factory=dict)
    """Which records belong to a split: a template that is true or false."""

    @property
    def files(self) -> dict[str, Files]:
        """The files of each split, which has the name of its role."""
        others = {split: files for split, files in self.__pydantic_extra__.items() if split != "local"}
        return {"dev": self.dev, "held_out": self.held_out, **others}


def _kind_of_data(value: Any) -> str:
    # No keys of a file, so that messages leave these names out.
    return "_hub" if isinstance(value, Mapping) and ("hub" in value or value.get("local")) else "_files"


class Rubric(Schema):
    """How a model grades responses."""

    model_config = _HAND_WRITTEN

    prompt: Text
    """The prompt of the judge, a template."""
    mode: Literal["single", "pairwise"] = "single"
    """A grade for each response, or a comparison of two."""
    verdict: Literal["text", "likelihood"] = "text"
    """Whether the grade is read from what the judge writes, or from probabilities."""
    pattern: Text = Field(default_factory=lambda given: _PATTERNS[given.get("mode", "single")])
    """A regular expression that finds the verdict."""
    scale: Scale = Field(default_factory=lambda given: (1, 5) if given.get("verdict") == "likelihood" else (1, 10))
    """The lowest and the highest grade."""
    max_new_tokens: AtLeastOne = 256
    """Tokens after which the judge is cut off."""

    @property
    def options(self) -> tuple[str, ...]:
        """The possible verdicts: the grades of the scale; or A (the first is better), B, and C for a tie."""
        if self.mode == "pairwise":
            return ("A", "B", "C")
        return tuple(str(grade) for grade in range(self.scale[0], self.scale[1] + 1))

    def value(self, verdict: str | None) -> float | None:
        """The score of a verdict, 0 to 1: of the response, or of the first of two; None if it is not a verdict."""
        if self.mode == "pairwise":
            return {"A": 1.0, "B": 0.0, "C": 0.5}.get((verdict or "").strip().upper())
        # Python also reads "1_0" as 10, "1e1", "nan" and digits of other scripts, which no judge means as a grade.
        if verdict is None or not re.fullmatch(r"-?\d+(\.\d+)?", verdict.strip(), re.ASCII):
            return None
        share = (float(verdict) - self.scale[0]) / (self.scale[1] - self.scale[0])
        return share if 0 <= share <= 1 else None


class Form(Schema):
    """What a form of a task may change: how it is put, and not what is asked."""

    model_config = _HAND_WRITTEN

    prompt: TextTemplate | None = None
    """Renders a question."""
    choices: Templates = ()
    """Render the options of a choice task."""
    scoring: Scoring | None = None
    """What decides between the options of a choice task."""
    instructions: TextTemplate | None = None
    """Renders the text before the demonstrations."""
    shot_response: TextTemplate | None = None
    """Renders the response of a demonstration."""
    shots: Whole = 0
    """Demonstrations before each question."""
    stop: StopTexts = ()
    """Texts that end a response."""
    extract: Text | None = None
    """What picks the answer out of a response: `json`, `tool_call`, `last_number`, or a regular expression."""
    judge: Rubric | None = None
    """How a judge grades, with ``metric: judge``."""


class TaskFile(Form):
    """A task file."""

    name: Text
    """The task's name."""
    data: Annotated[Annotated[HubData, Tag("_hub")] | Annotated[FileData, Tag("_files")], Discriminator(_kind_of_data)]
    """Where the records come from."""
    prompt: TextTemplate
    """Renders a question."""
    reference: Templates = ()
    """Renders the accepted texts; only a judge and ``advisor label`` can do without."""
    metric: Text
    """How a response is scored."""
    decimal: Literal[".", ","] | None = None
    """The decimal mark of references and responses, with ``metric: number``."""
    normalise: Literal["squad"] | None = None
    """The normal form of ``metric: exact_match`` without punctuation, as in SQuAD's script."""
    summary: Text | None = None
    """One line for lists."""
    id: FieldTemplate | None = None
    """The field with a question's id, or a template."""
    variant: Text | None = None
    """The value of ``{{variant}}`` where the task's name has none."""
    follow_ups: Templates = ()
    """Render what the user says after the responses to the question."""
    group: TextTemplate | None = None
    """Renders the part of the task that a question belongs to."""
    cluster: FieldTemplate | None = None
    """The field that questions on one passage share, or a template."""
    source: TextTemplate | None = None
    """Renders the bare text that encoder-decoder models read."""
    max_new_tokens: AtLeastOne = 256
    """Tokens after which a response is cut off."""
    shots_by_group: Flag = False
    """Whether the demonstrations of a question are of its group."""
    dev_size: AtLeastOne | None = None
    """Questions of the dev split, drawn from its data."""
    forms: dict[str, Form] = Field(default_factory=dict)
    """Other ways to put the questions, by name; the first one is the default."""
