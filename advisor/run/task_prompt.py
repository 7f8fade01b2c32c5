"""From a user's question to the prompt that the run was verified with.

The templates come from a run folder or an exported one, which may be a stranger's: they are rendered in the sandbox of
task files, under its limits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from advisor.models.own_prompts import PROMPT
from advisor.run.plan import StrategyPlan
from advisor.tasks.data_files import Record
from advisor.tasks.questions import choices_of, with_options
from advisor.tasks.templates import Template
from ensemble.common.limits import LimitExceededError
from ensemble.errors import InputError
from ensemble.models.prompts import Sourced

if TYPE_CHECKING:
    from advisor.options.finished_run import ChosenOptions
    from ensemble.models.prompts import PromptTemplate
    from ensemble.models.spec import EnsembleSpec

_MARK = "\ue000\ue001\ue002"
"""A text that no question has: characters for private use."""
_OWN = frozenset({"variant", "_turn", "_options"})
"""Fields that are added to a question's own ones."""
_MOST_FIELDS = 30
"""Fields that are tried for a text alone."""
_SHOWN = 160


class TaskPrompt:
    """Makes the prompts of a task from users' questions.

    A text fills the one field that is enough for a prompt. Where a prompt needs several fields, or could be made of
    each of several, a question is a JSON object of its fields; other texts are prompts already.

    Attributes:
        template: How the run made its prompts.
        templates: The same for models that have their own, by name.
        fields: The fields that it names, in alphabetical order.
        field: The one that a text fills; None if it takes an object of fields.
    """

    def __init__(
        self, template: PromptTemplate, place: str, templates: Mapping[str, PromptTemplate] = MappingProxyType({})
    ) -> None:
        self.template, self.templates = template, templates
        named = [
            Template(text, file=place, key=f"task.template.{key}").named - ({PROMPT} if key == "around" else set())
            for each in (template, *templates.values())
            for key, text in _texts_of(each)
        ]
        self.fields = tuple(sorted(frozenset().union(*named) - _OWN))
        self.field: str | None = None
        self._before = self._after = self._shots = ""
        # A field that is enough alone. A text does not fill one of which the prompt takes a part.
        tried = [(name, mark) for name in self.fields[:_MOST_FIELDS] for mark in (_MARK, [_MARK])]
        alone = {name: isinstance(mark, list) for name, mark in reversed(tried) if self._shows_mark({name: mark})}
        self._in_list = False
        if len(alone) == 1:
            ((self.field, self._in_list),) = alone.items()
            self._shots, question = self._parts(self._fields(_MARK))
            if question.count(_MARK) == 1:
                self._before, self._after = (part.strip() for part in question.split(_MARK))

    @property
    def example(self) -> str:
        """What a prompt looks like, in one line."""
        if self.field is None:
            return f"an object such as {json.dumps(dict.fromkeys(self.fields, '...'))}"
        prompt = "".join(self._parts(self._fields("QUESTION")))
        return f"QUESTION becomes {('...' + prompt[-_SHOWN:] if len(prompt) > _SHOWN else prompt)!r}"

    def as_dict(self) -> dict[str, object]:
        """What a client should know of it, as JSON."""
        return {"template": self.template.question, "fields": list(self.fields), "example": self.example}

    def fill(self, text: str) -> tuple[str | Sourced, str | None]:
        """The prompt of a question, and a note if it is not simply filled in; None for none."""
        if self.field is not None:
            bare, is_filled = self._unwrapped(text)
            note = "a prompt has the task's template already, which is not put around it again" if is_filled else None
            return self._prompt(self._fields(bare)), note
        fields = _fields_of(text)
        if fields is None or not fields.keys() & set(self.fields):
            needed = ", ".join(self.fields)
            return text, f"a prompt is no JSON object of the fields {needed}, so it is sent without the task's template"
        return self._prompt(fields), None

    def _shows_mark(self, fields: Mapping[str, object]) -> bool:
        try:
            return all(_MARK in text for text in ("".join(self._parts(fields)), *self._own(fields).values()))
        except InputError as error:
            # It would take as long with each other field.
            if isinstance(error.__cause__, LimitExceededError):
                raise
            return False

    def _fields(self, text: str) -> dict[str, object]:
        # The turns of a conversation are a list.
        return {self.field or "": [text] if self._in_list else text}

    def _unwrapped(self, text: str) -> tuple[str, bool]:
        """The question in a text, and whether the template is around it."""
        bare, shots = text.strip(), self._shots.strip()
        has_shots = bool(shots) and bare.startswith(shots)
        if has_shots:
            text = bare = bare.removeprefix(shots).strip()
        has_question = bare.startswith(self._before) and bare.endswith(self._after)
        if (self._before or self._after) and has_question and len(bare) > len(self._before) + len(self._after):
            return bare[len(self._before) : len(bare) - len(self._after)].strip(), True
        return text, has_shots

    def _prompt(self, fields: Mapping[str, object]) -> str | Sourced:
        prompt = "".join(self._parts(fields))
        own = self._own(fields)
        if self.template.source is None:
            return Sourced(prompt, own=own) if own else prompt
        return Sourced(prompt, _template("source", self.template.source).text(self._record(fields)), own)

    def _own(self, fields: Mapping[str, object]) -> dict[str, str]:
        return {name: "".join(self._parts(fields, each)) for name, each in self.templates.items()}

    def _parts(self, fields: Mapping[str, object], template: PromptTemplate | None = None) -> tuple[str, str]:
        """What is before a question, and the question."""
        template, record = template or self.template, self._record(fields)
        if template.choices:
            choices = choices_of([_template("choices", choice) for choice in template.choices], record)
            if choices is None:
                raise InputError("the options are empty or fewer than two; give each its text")
            record = with_options(record, choices)
        before = "" if template.instructions is None else _template("instructions", template.instructions).text(record)
        group = "" if template.group is None else _template("group", template.group).text(record)
        if template.shots and group not in template.shots:
            known = ", ".join(list(template.shots)[:5])
            raise InputError(
                f"the task has no worked examples of {group[:60]!r}; give one of its groups, such as {known}"
            )
        before = (f"{before}\n\n" if before else "") + template.shots.get(group, "")
        question = _template("question", template.question).text(record)
        if template.around is None:
            return before, question
        return "", _template("around", template.around).text(record.with_fields(**{PROMPT: before + question}))

    def _record(self, fields: Mapping[str, object]) -> Record:
        added = {"_turn": 1} if self.template.variant is None else {"_turn": 1, "variant": self.template.variant}
        return Record({**fields, **added}, "the prompt")


def _template(key: str, source: str) -> Template:
    # A new one each time: a template's limits are for the questions of one task, and a server has no last question.
    return Template(source, file="the task", key=key)


def _texts_of(template: PromptTemplate) -> Sequence[tuple[str, str]]:
    texts = {
        "question": template.question,
        "instructions": template.instructions,
        "group": template.group,
        "source": template.source,
        "around": template.around,
        **{f"choices[{number}]": text for number, text in enumerate(template.choices)},
    }
    return [(key, text) for key, text in texts.items() if text is not None]


def _fields_of(text: str) -> dict[str, object] | None:
    """The fields that a text gives as a JSON object; None if it is another text."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def prompt_of(
    chosen: EnsembleSpec | StrategyPlan, options: ChosenOptions, say: Callable[[str], None]
) -> TaskPrompt | None:
    """How the texts of users become prompts, for ``run`` and ``serve``; None if they are prompts already."""
    if options.raw:
        return None
    if chosen.task is not None and chosen.task.template is not None:
        names = [member.name for member in chosen.members]
        own = {name: template for name, template in chosen.task.templates.items() if name in names}
        if len(names) == 1:
            return TaskPrompt(own.get(names[0], chosen.task.template), str(options.run))
        return TaskPrompt(chosen.task.template, str(options.run), own)
    if chosen.task is not None or isinstance(chosen, StrategyPlan):
        say(f"{options.run} does not say how the prompts of its task were made, so a text is sent as it is")
    return None
