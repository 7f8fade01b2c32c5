"""Records turned into questions: rendered, given ids, and checked for what makes them unusable.

A record of a choice task whose options are empty cannot be asked: the conversion of ARC-Challenge that is in use has
45 of them. It is left out, and a note says how many and why. Empty options at the end are no options: a question with
three in a file of four columns can be asked. Every other fault of a record is an error that names its line.

Not covered: repeated questions, which stay, because published figures count them.
"""

from __future__ import annotations

import string
from dataclasses import dataclass

from advisor.tasks.definition import TaskDefinition
from advisor.tasks.metrics import get_metric
from advisor.tasks.record import Record
from advisor.tasks.sources import Source
from advisor.tasks.values import Example
from ensemble.errors import InputError


@dataclass(frozen=True, slots=True)
class Question:
    """A record that can be asked.

    Attributes:
        id: Unique in its split.
        text: The rendered prompt, without shots.
        choices: The options of a choice task.
        record: What the rest is rendered from, once the question is drawn.
    """

    id: str
    text: str
    choices: tuple[str, ...]
    record: Record


class QuestionBank:
    """The questions of a task by split, each split read once.

    Args:
        definition: The task.
        source: Its data.
    """

    def __init__(self, definition: TaskDefinition, source: Source) -> None:
        self._definition, self._source = definition, source
        self._splits: dict[str, list[Question]] = {}
        self.notes: list[str] = []

    def split(self, name: str) -> list[Question]:
        """The usable questions of a split of the data, in its order; adds a note where some are not usable.

        Raises:
            InputError: The data cannot be read, or a record of it cannot be rendered.
        """
        if name not in self._splits:
            self._splits[name] = self._read(name)
        return self._splits[name]

    def example(self, question: Question, prefix: str) -> Example:
        """Render the rest of a question.

        Raises:
            InputError: The reference is missing or cannot be scored against, or a template fails.
        """
        reference = self._reference(question)
        accepted = (reference,) if isinstance(reference, str) else reference
        problem = get_metric(self._definition.metric).problem(accepted, question.choices)
        if problem is not None:
            raise InputError(f"{question.record.place}: {problem}; correct it, or {self._definition.file}")
        group, source = self._definition.group, self._definition.source
        return Example(
            id=question.id,
            prompt=prefix + question.text,
            question=question.text,
            reference=reference,
            choices=question.choices,
            group=None if group is None else group.text(question.record),
            source=None if source is None else source.text(question.record),
        )

    def shot(self, question: Question) -> str:
        """Render a question with its answer.

        Raises:
            InputError: A template fails.
        """
        template = self._definition.shot_response
        reference = self._reference(question) if template is None else template.text(question.record)
        response = reference if isinstance(reference, str) else reference[0]
        # A prompt that ends in white space, such as a line end, has all that stands between it and the response.
        return question.text + ("" if question.text[-1:].isspace() else " ") + response

    def _read(self, split: str) -> list[Question]:
        records = self._source.records(split)
        asked = [self._question(split, record) for record in records]
        skipped = [record for record, question in zip(records, asked, strict=True) if question is None]
        if skipped:
            self.notes.append(
                f"{split}: {len(skipped)} of {len(records)} records left out, because options are empty or fewer than "
                f"two; the first is {skipped[0].place}"
            )
        questions = [question for question in asked if question is not None]
        first: dict[str, str] = {}
        for question in questions:
            place = first.setdefault(question.id, question.record.place)
            if place != question.record.place:
                raise InputError(f"{question.record.place}: the id '{question.id}' is that of {place} too; change one")
        return questions

    def _question(self, split: str, raw: Record) -> Question | None:
        variant = self._definition.variant
        record = raw if variant is None else raw.with_fields(variant=variant)
        choices = self._choices(record)
        if choices is None:
            return None
        if choices:
            # Lettered here, so that the letters of the prompt are those that the metric reads.
            options = [f"{letter}. {choice}" for letter, choice in zip(string.ascii_uppercase, choices, strict=False)]
            record = record.with_fields(_options=options)
        text = self._definition.prompt.text(record)
        if not text.strip():
            raise InputError(f"{record.place}: the prompt is blank; correct the record, or {self._definition.file}")
        return Question(_id(split, record), text, choices, record)

    def _choices(self, record: Record) -> tuple[str, ...] | None:
        """The options, none for a task without; None where the record cannot be asked."""
        options: list[str] = []
        for template in self._definition.choices:
            texts = template.texts(record)
            options.extend([texts] if isinstance(texts, str) else texts)
        if not self._definition.choices:
            return ()
        while options and not options[-1].strip():
            options.pop()
        return tuple(options) if len(options) > 1 and all(option.strip() for option in options) else None

    def _reference(self, question: Question) -> str | tuple[str, ...]:
        rendered = [template.texts(question.record) for template in self._definition.reference]
        if len(rendered) == 1 and isinstance(rendered[0], str) and rendered[0].strip():
            return rendered[0]
        accepted: list[str] = []
        for texts in rendered:
            accepted.extend([texts] if isinstance(texts, str) else texts)
        accepted = [text for text in accepted if text.strip()]
        if not accepted:
            raise InputError(f"{question.record.place}: there is no reference; fill it in, or take the record out")
        return tuple(accepted)


def _id(split: str, record: Record) -> str:
    own = record.values.get("id")
    if own is None or own == "":
        return "-".join(part for part in (split, record.part, str(record.index)) if part)
    if not isinstance(own, (str, int)) or isinstance(own, bool):
        raise InputError(f"{record.place}: the id must be text or a whole number, not {own!r}; correct it")
    return str(own)
