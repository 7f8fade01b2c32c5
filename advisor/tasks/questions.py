"""Questions: records that are rendered, have ids, and are checked; and the split of each question.

A record of a choice task whose options are empty cannot be used: a common conversion of ARC-Challenge has 45. It
is left out, as is a record that repeats an earlier one with the same id, and a note says how many and why. Every other
fault of a record is an error that names its line.

Not covered: other repeated questions, which stay, because published figures count them; `cluster` puts them together.

Shots, dev and held-out questions are drawn by seed and never overlap. All draws use one seeded order. Dev samples come
from its front and shots from its back, so the number of shots does not change the dev sample while the data has enough
questions for both. Not covered: the same question in other words.
"""

from __future__ import annotations

import hashlib
import string
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from advisor.tasks.data_files import Record
from advisor.tasks.data_sources import DataSource
from advisor.tasks.metrics import READERS, get_metric
from advisor.tasks.tables.values import accepted_texts, option_texts, texts_of
from advisor.tasks.task import Example
from advisor.tasks.task_file import TaskDefinition
from advisor.tasks.templates import Template
from ensemble.errors import InputError

_MOST_TURNS = 32  # of a conversation; each takes another pass over all questions


class QuestionBank:
    """The questions of a task by split. Each split is read once."""

    def __init__(self, definition: TaskDefinition, source: DataSource) -> None:
        self.definition, self.source, self._settings = definition, source, definition.settings
        self._splits: dict[str, list[Record]] = {}
        self.notes: list[str] = []

    def split(self, name: str) -> list[Record]:
        """The usable questions of a split of the data, in its order; adds a note if some records are left out."""
        # Kept, since dev, held_out and the shots often share a split.
        if name not in self._splits:
            self._splits[name] = self._read(name)
        return self._splits[name]

    def group(self, question: Record) -> str | None:
        """The part of the task that a question belongs to; None if the task has no parts."""
        template = self._settings.group
        return None if template is None else template.text(question)

    def instructions(self, question: Record) -> str:
        """The text before the shots of a question; empty for none."""
        template = self._settings.instructions
        return "" if template is None else template.text(question)

    def examples(self, question: Record, prefix: str) -> tuple[Example, ...]:
        """Render the rest of a question behind its prefix: one example, or one for each turn of a conversation."""
        if not self._settings.follow_ups:
            return (self._example(question, prefix),)
        # Not independent: the second response is about the first.
        cluster = question.id if question.cluster is None else question.cluster
        examples: list[Example] = []
        for number, text in enumerate((question.text, *self._follow_ups(question)), start=1):
            record = question.with_fields(_turn=number)
            turn = replace(record, id=f"{question.id}:{number}", text=text, cluster=cluster)
            earlier = examples[-1].id if examples else None
            examples.append(replace(self._example(turn, "" if earlier else prefix), earlier=earlier))
        return tuple(examples)

    def _follow_ups(self, question: Record) -> list[str]:
        texts: list[str] = []
        for template in self._settings.follow_ups:
            texts.extend(template.texts(question))
        # As for options: a question of two turns can be in a file that has columns for three.
        while texts and not texts[-1].strip():
            texts.pop()
        if len(texts) >= _MOST_TURNS:
            raise InputError(f"{question.place}: it has more than {_MOST_TURNS} turns; give fewer")
        if not all(text.strip() for text in texts):
            raise InputError(f"{question.place}: a follow-up is blank; correct the record, or {self.definition.file}")
        return texts

    def _example(self, question: Record, prefix: str) -> Example:
        reference = self._reference(question)
        accepted = (reference,) if isinstance(reference, str) else reference
        problem = get_metric(self.definition.metric).problem(accepted, question.choices)
        if problem is not None:
            raise InputError(f"{question.place}: {problem}; correct it, or {self.definition.file}")
        source = self._settings.source
        return Example(
            id=question.id,
            prompt=prefix + question.text,
            question=question.text,
            reference=reference,
            choices=question.choices,
            group=self.group(question),
            source=None if source is None else source.text(question),
            cluster=question.cluster,
            fields=question.values,
        )

    def shot(self, question: Record) -> str:
        """Render a question with its answer."""
        template = self._settings.shot_response
        reference = self._reference(question) if template is None else template.text(question)
        if not reference:
            raise InputError(f"{question.place}: a shot has no response; give `reference` or `shot_response`")
        response = reference if isinstance(reference, str) else reference[0]
        # A prompt that ends in white space, such as a line end, needs no further space before the response.
        return question.text + ("" if question.text[-1:].isspace() else " ") + response

    def _read(self, split: str) -> list[Record]:
        records = self.source.records(split)
        rendered = [self._question(split, record) for record in records]
        skipped = [record for record, question in zip(records, rendered, strict=True) if question is None]
        if skipped:
            self.notes.append(
                f"{split}: {len(skipped)} of {len(records)} records left out, because options are empty or fewer than "
                f"two; the first is {skipped[0].place}"
            )
        questions: dict[str, Record] = {}
        repeated: list[str] = []
        for question in filter(None, rendered):
            earlier = questions.setdefault(question.id, question)
            if question is earlier:
                continue
            if question.values != earlier.values:
                raise InputError(f"{question.place}: {earlier.place} has the same id '{question.id}'; change one")
            repeated.append(question.place)
        if repeated:
            self.notes.append(
                f"{split}: {len(repeated)} of {len(records)} records left out, because each repeats an earlier one "
                f"with the same id; the first is {repeated[0]}"
            )
        return list(questions.values())

    def _question(self, split: str, raw: Record) -> Record | None:
        variant = self.definition.variant
        record = raw if variant is None else raw.with_fields(variant=variant)
        if self._settings.follow_ups:
            record = record.with_fields(_turn=1)
        choices = choices_of(self._settings.choices, record)
        if choices is None:
            return None
        if choices:
            record = with_options(record, choices)
        text = self._settings.prompt.text(record)
        if not text.strip():
            raise InputError(f"{record.place}: the prompt is blank; correct the record, or {self.definition.file}")
        return replace(record, id=self._id(split, record), text=text, choices=choices, cluster=self._cluster(record))

    def _id(self, split: str, record: Record) -> str:
        template = self._settings.id
        # Exports have ``ID`` or ``Id``.
        names = [name for name in ("id", *record.values) if name in record.values and name.lower() == "id"]
        value = template.value(record) if template else record.values[names[0]] if names else None
        if value is None or value == "":
            return "-".join(part for part in (split, record.part, str(record.index)) if part)
        # Ids of other types would be equal as text and different as values, or change with the version of a library.
        if not isinstance(value, (str, int)) or isinstance(value, bool):
            raise InputError(f"{record.place}: the id must be text or a whole number, not {value!r}; correct it")
        return str(value)

    def _cluster(self, record: Record) -> str | None:
        template = self._settings.cluster
        if template is None:
            return None
        label = template.text(record)
        if not label.strip():
            raise InputError(f"{record.place}: the cluster is blank; fill it in, or correct {self.definition.file}")
        return label

    def _reference(self, question: Record) -> str | tuple[str, ...]:
        # A reference that is JSON itself is no list of accepted texts.
        are_json, templates = self.definition.metric in READERS, self._settings.reference
        accepted: list[str] = []
        for template in templates:
            read = template.texts(question) if are_json else template.read(question, accepted_texts)
            accepted.extend(read or ())
        # Some lists of aliases have empty entries; an empty accepted text would be contained in every response.
        accepted = [text for text in accepted if text.strip()]
        if not accepted and templates and self._settings.judge is None:
            raise InputError(f"{question.place}: the reference is empty; fill it in, or remove the record")
        return accepted[0] if len(accepted) == 1 else tuple(accepted)


def choices_of(templates: Sequence[Template], record: Record) -> tuple[str, ...] | None:
    """The options of a question; empty if the task has none, None if the record cannot be used."""
    if not templates:
        return ()
    options: list[str] = []
    for template in templates:
        options.extend(template.read(record, _all_options) if len(templates) == 1 else template.texts(record))
    # Empty options at the end are no options: a question with three can be in a file of four columns.
    while options and not options[-1].strip():
        options.pop()
    return tuple(options) if len(options) > 1 and all(option.strip() for option in options) else None


def _all_options(value: object) -> tuple[str, ...]:
    """The options in one value, without their letters."""
    texts = texts_of(value)
    # A list with a blank in it cannot be used, and the letters after the blank would be others.
    return option_texts(value) or () if texts is None or all(map(str.strip, texts)) else texts


def with_options(record: Record, choices: Sequence[str]) -> Record:
    """A record with the field ``_options``: its options as a prompt lists them."""
    # The letters are added here, so that those of the prompt are those that the metric reads.
    options = [f"{letter}. {choice}" for letter, choice in zip(string.ascii_uppercase, choices, strict=False)]
    return record.with_fields(_options=options)


def seeded(questions: Sequence[Record], seed: int) -> list[Record]:
    """All questions in the order of the seed; those of the same text keep their order."""
    # A key of each text alone: a smaller sample is the start of a larger one, and a new record moves no other.
    return sorted(questions, key=lambda question: hashlib.sha256(f"{seed}\n{question.text}".encode()).digest())


def draw_shots(questions: Sequence[Record], count: int, seed: int) -> list[Record]:
    """Draw ``count`` different questions from the back of the order; fewer if there are fewer."""
    # A file with exactly this number was written for them: its author has chosen their order, and what repeats (the
    # five of MMLU's college physics have one question twice).
    if len(questions) == count:
        return list(questions)
    different: dict[str, Record] = {}
    for question in questions:
        different.setdefault(question.text, question)
    if len(different) <= count:
        return list(different.values())
    drawn: dict[str, Record] = {}
    for question in reversed(seeded(questions, seed)):
        if len(drawn) == count:
            break
        drawn.setdefault(question.text, question)
    return list(drawn.values())


def without(questions: Sequence[Record], others: Collection[Record]) -> list[Record]:
    """The questions that are not among the others, in their order."""
    # By rendered text, since real data has the same question in several files (TriviaQA's dev file is the first part of
    # its test file) and under several ids.
    taken = {other.text for other in others}
    return [question for question in questions if question.text not in taken]


def sample(questions: Sequence[Record], size: int, seed: int) -> list[Record]:
    """The first ``size`` questions of the seeded order, back in the order of the data; of clusters at least one."""
    sizes = Counter(question.cluster for question in questions)
    if set(sizes) <= {None}:
        drawn = set(map(id, seeded(questions, seed)[:size]))
        return [question for question in questions if id(question) in drawn]
    chosen, count = set[str | None](), 0
    # As for questions, a key of each label alone: a new cluster moves no other.
    for label in sorted(sizes, key=lambda label: hashlib.sha256(f"{seed}\n{label}".encode()).digest()):
        if count + sizes[label] <= size:
            chosen.add(label)
            count += sizes[label]
    chosen = chosen or {min(sizes, key=lambda label: sizes[label])}
    return [question for question in questions if question.cluster in chosen]


def outside_clusters(questions: Sequence[Record], others: Collection[Record]) -> list[Record]:
    """The questions that share no cluster with the others, in their order."""
    taken = {other.cluster for other in others} - {None}
    return [question for question in questions if question.cluster not in taken]
