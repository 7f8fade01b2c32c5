"""The columns of some records: their values as texts, and which column has a usual name."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from advisor.tasks.data_files import Record, field_name, is_field
from advisor.tasks.questions import choices_of
from advisor.tasks.tables.values import accepted_texts
from advisor.tasks.templates import Template, boxed
from ensemble.common.text import shortened, visible
from ensemble.errors import InputError

# Keys of an object that templates would read as its methods.
_METHODS = frozenset(dir(dict))


class Columns:
    """The values of at least one record by column. A key of an object is a column, too: ``choices.text``."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.values: dict[str, list[object]] = {}
        for number, record in enumerate(records):
            for name, value in _flat(record.values):
                # Earlier records may lack the column.
                self.values.setdefault(name, [None] * number).append(value)
            for values in self.values.values():
                values.extend([None] * (number + 1 - len(values)))
        self.count = len(records)
        self.objects = {name for record in records for name, value in record.values.items() if isinstance(value, dict)}
        self._records = records
        self._texts: dict[str, list[list[str]]] = {}
        self._accepted: dict[str, list[list[str]]] = {}

    def named(self, given: str) -> str:
        """The column that a user named, by its name in the data or in templates."""
        for name in (given, field_name(given)):
            if name in self.values:
                return name
        raise InputError(f"there is no column '{given}'; choose among {self.listed()}")

    def add(self, expression: str, read: Callable[[Template, Record], object] = Template.value) -> str | None:
        """Add what an expression gives for each record as a column; its name, or None if most records give nothing."""
        values = self._each(expression, read)
        if sum(bool(texts_of(value)) for value in values) <= self.count / 2:
            return None
        self.values[expression] = values
        return expression

    def accepted(self, expression: str) -> list[list[str]]:
        """For each record the accepted texts that an expression gives in a task file; none where it fails."""
        if expression not in self._accepted:
            values = self._each(expression, lambda template, record: template.read(record, accepted_texts))
            self._accepted[expression] = [texts_of(value) for value in values]
        return self._accepted[expression]

    def _each(self, expression: str, read: Callable[[Template, Record], object]) -> list[object]:
        template = Template(f"{{{{{expression}}}}}", file="", key="")
        values: list[object] = []
        for record in self._records:
            try:
                values.append(read(template, record))
            except InputError:
                values.append(None)
        return values

    def listed(self) -> str:
        """All names, for messages."""
        return ", ".join(shortened(visible(name), 40) for name in list(self.values)[:30])

    def usual(self, names: Sequence[str], taken: Iterable[str] = ()) -> str | None:
        """The first column that has one of some usual names; case, spaces and hyphens do not count."""
        known = {_usual(name): name for name in reversed(self.values) if name not in set(taken)}
        return next((known[name] for name in names if name in known and self.filled(known[name])), None)

    def named_like(self, names: Iterable[str]) -> list[str]:
        """The columns that have some usual names, also those of objects, in the order of the names."""
        known = {_usual(name): name for name in (*reversed(self.values), *self.objects)}
        return [known[name] for name in names if name in known]

    def texts(self, name: str) -> list[list[str]]:
        """For each record the texts of a column: one, several of a list, or none of an empty cell."""
        if name not in self._texts:
            self._texts[name] = [texts_of(value) for value in self.values[name]]
        return self._texts[name]

    def filled(self, name: str) -> float:
        """The share of records in which a column has a text."""
        return sum(bool(texts) for texts in self.texts(name)) / self.count

    def is_list(self, name: str) -> bool:
        """Whether most values of a column are lists."""
        kinds = [isinstance(value, (list, tuple)) for value in self.values[name] if value is not None]
        return sum(kinds) > len(kinds) / 2

    def has_floats(self, name: str) -> bool:
        """Whether a column has numbers, and no texts, of which one is not whole."""
        values = [value for value in self.values[name] if value is not None]
        return not any(isinstance(value, str) for value in values) and any(isinstance(value, float) for value in values)

    def distinct(self, name: str) -> int:
        """How many different texts a column has."""
        return len({tuple(texts) for texts in self.texts(name) if texts})

    def different(self) -> list[int]:
        """The records that are not the same throughout as an earlier one."""
        rows = zip(*self.values.values(), strict=True)
        return list({repr(row): number for number, row in reversed(list(enumerate(rows)))}.values())

    def words(self, name: str) -> float:
        """The median number of words of a column's first texts; 0 if it has none."""
        return statistics.median([len(texts[0].split()) for texts in self.texts(name) if texts] or [0])


def options_in(template: Template, record: Record) -> tuple[str, ...] | None:
    """The options that a template gives in a task file, for :meth:`Columns.add`."""
    return choices_of((template,), record)


def texts_of(value: object) -> list[str]:
    """A text or number, or those of a list, as texts that are not blank."""
    items = value if isinstance(value, (list, tuple)) else [value]
    texts = [str(item) for item in items if isinstance(item, (str, int, float))]
    return [text for text in texts if text.strip()]


def _flat(values: Mapping[str, object]) -> Iterable[tuple[str, object]]:
    for name, value in values.items():
        # A column with another name is there a second time, under one that templates can read.
        if name.startswith("_") or not is_field(name):
            continue
        if isinstance(value, dict):
            keys = [key for key in value if isinstance(key, str) and is_field(key) and key not in _METHODS]
            yield from ((f"{name}.{key}", value[key]) for key in keys)
        else:
            yield name, value


def _usual(name: str) -> str:
    # answerKey is answer_key, and so are "Answer key" and "answer-key".
    return re.sub(r"[\s_-]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)).strip("_").lower()


_IDS = ("question_id", "prompt_id", "id", "qid", "uid", "nr", "no", "nummer", "numéro", "frage_nr", "frage_id")
_MOST_TOKENS = 512
_BEGIN = (
    "You grade the answers of an assistant. Read the conversation below and grade the assistant's last answer from 1 "
    "(of no use) to 10 (hardly to be improved).\n\nA good answer does what the user wants, is correct, and is as deep "
    "as the question needs. More words are not better. Be strict and fair.\n"
)
_REFERENCE = (
    "{% if turn.reference %}\n=== Reference, which the assistant did not see ===\n{{turn.reference}}\n{% endif %}\n"
)
_END = "First write a few sentences on the strengths and faults of the last answer. Then write your grade in double "
_GRADE = "brackets, such as [[4]]."


def judge_of(*, has_reference: bool) -> dict[str, object]:
    """The value of ``judge``: a grade from 1 to 10 for the last answer, with the reference where questions have one."""
    turn = f"=== User ===\n{{{{turn.question}}}}\n{_REFERENCE if has_reference else ''}"
    turns = f"{{% for turn in turns %}}\n{turn}=== Assistant ===\n{{{{turn.response}}}}\n{{% endfor %}}\n"
    prompt = f"{_BEGIN}{turns}=== End ===\n\n{_END}{_GRADE}"
    return {"mode": "single", "scale": [1, 10], "max_new_tokens": _MOST_TOKENS, "prompt": prompt}


def id_of(columns: Columns, taken: Iterable[str]) -> str | None:
    """The column with the number of a question, by which a conversation's turns are named; None without one."""
    name = columns.usual(_IDS, taken)
    if name is None or not all(type(value) in (str, int) for value in columns.values[name]):
        return None
    # Two questions with one id would be one.
    return name if columns.distinct(name) == columns.count else None


def reference_of(columns: Columns, question: str, reference: str) -> str:
    """The template of a reference that some questions lack; one for each turn if both are lists."""
    if columns.is_list(question) and columns.is_list(reference):
        return f"{{{{({reference} | default([], true))[_turn - 1] | default('') | trim}}}}"
    return f"{{{{{reference} | default('', true)}}}}"


_FEW_LABELS = 20
"""The most labels of a classification."""
_SHORT_END = 12
"""The most words of the answer at the end of a worked solution."""
_SENTENCE = 5
"""Words from which a reference is a sentence, which can be put in other words."""
_MOST_EVIDENCE = 2_000
"""Questions whose numbers are looked at."""
# How references of worked solutions end; the part after it is the answer.
_MARKS = ("####", "answer is", "Answer:", "answer:")
_LETTER = re.compile(r"[^\W\d_]")
# A number in any spelling; a full match of one of the next two says what its marks mean.
_NUMBER = re.compile(r"[.,]?\d(?:[\d.,'\u2019\u00a0\u202f ]*\d)?")
# 0.125 is never 125, so a group does not begin with 0.
_POINT = re.compile(r"([1-9]\d{0,2}(?:[,'\u2019\u00a0\u202f]\d{3})+|\d+)(\.\d+)?|\.\d+")
_COMMA = re.compile(r"([1-9]\d{0,2}(?:[.'\u2019\u00a0\u202f ]\d{3})+|\d+)(,\d+)?|,\d+")
_DATE = re.compile(
    r"\d{1,2}([./-])\d{1,2}\1\d{2,4}|\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:[T ][\d:.]+)?|\d{1,2}:\d{2}(?::\d{2})?"
)
_QUOTES = '„“”«»‚‘’"'
_QUOTED = re.compile(rf"[{_QUOTES}][^{_QUOTES}]+[{_QUOTES}]")
_SEPARATORS = (" | ", "|", "; ", ";", " / ")

Texts = Sequence[Sequence[str]]
"""The accepted texts of each record that has some."""


def answer_template(reference: str, texts: Texts) -> tuple[str, Texts, str]:
    """The template of the accepted texts (all, the end of a worked solution, or without quotation marks), and why."""
    single = [items[0] for items in texts if len(items) == 1]
    if not texts or len(single) < len(texts):
        return f"{{{{{reference}}}}}", texts, ""
    with suppress(ValueError):
        ends = [[boxed(text)] for text in single]
        return f"{{{{{reference} | boxed}}}}", ends, "; the answer is in the last \\boxed{}"
    for mark in _MARKS:
        ends = [[text.split(mark)[-1].strip().rstrip(".")] for text in single]
        if all(mark in text for text in single) and all(end[0] and len(end[0].split()) <= _SHORT_END for end in ends):
            template = f"{{{{{reference}.split('{mark}')[-1].strip().rstrip('.')}}}}"
            return template, ends, f"; the answer is what comes after the last '{mark}'"
    if all(_QUOTED.fullmatch(text) for text in single):
        bare = [[text.strip(_QUOTES)] for text in single]
        return f"{{{{{reference}.strip('{_QUOTES}')}}}}", bare, "; without the quotation marks"
    return f"{{{{{reference}}}}}", texts, ""


def decimal_mark(columns: Columns, question: str, reference: str, texts: Texts, given: str | None) -> str | None:
    """The decimal mark of references that are numbers of one unit; an error if they have both, or it is unclear."""
    numbers = _numbers([text for items in texts for text in items])
    if numbers is None:
        return None
    points = [number for number in numbers if not _COMMA.fullmatch(number)]
    commas = [number for number in numbers if not _POINT.fullmatch(number)]
    if given is not None:
        return given
    if points and commas:
        raise InputError(
            f"{reference} has {commas[0]} and {points[0]}; write all with one decimal mark, or give --metric "
            "exact_match to compare them as texts"
        )
    if points or commas:
        return "," if commas else "."
    unclear = next((number for number in numbers if "." in number), None)
    if unclear is None:
        return "."
    mark = usual_mark(columns, question)
    if mark is None:
        raise InputError(
            f"{reference} has {unclear}, which is {unclear.replace('.', '')} or {unclear}; give --decimal , or "
            "--decimal ."
        )
    return mark


def usual_mark(columns: Columns, question: str) -> str | None:
    """The decimal mark in the texts of a column; None if they have none, or both as often."""
    texts = [text for items in columns.texts(question)[:_MOST_EVIDENCE] for text in items]
    numbers = [number for text in texts for number in _NUMBER.findall(text)]
    commas = sum(_POINT.fullmatch(number) is None and _COMMA.fullmatch(number) is not None for number in numbers)
    points = sum(_COMMA.fullmatch(number) is None and _POINT.fullmatch(number) is not None for number in numbers)
    return None if commas == points else "," if commas > points else "."


def metric_of(reference: str, texts: Texts) -> tuple[str, str]:
    """The metric for references that are no numbers, and why."""
    # Each label several times, or it is no classification.
    labels = {items[0] for items in texts}
    if 2 <= len(labels) <= _FEW_LABELS and len(texts) >= 3 * len(labels) and all(len(label) <= 40 for label in labels):
        if all(len(label.strip("().")) == 1 for label in labels):
            return "exact_match", (
                f"the references are {len(labels)} letters, so a response must be the letter alone; for models that "
                "write more, add extract"
            )
        return "exact_match", f"the references are {len(labels)} labels; `contains` accepts sentences that have one"
    lengths = sorted(len(min(items, key=len).split()) for items in texts)
    first = [items[0].strip() for items in texts]
    if first and all(_is_object(text) for text in first):
        return "exact_match", "the references are JSON, and only the same text is right: the order of keys counts"
    if lengths[3 * len(lengths) // 4] >= _SENTENCE:
        return "chrf", (
            "the references are sentences, which can be put in other words: chrf compares their characters (0 to 1); "
            "a model that compares what they say is better, if you have one: --metric judge"
        )
    if all(_DATE.fullmatch(text) for text in first):
        return "exact_match", (
            f"the references are dates, such as {first[0]}, and another spelling is wrong: let the prompt ask for this "
            "one"
        )
    why = "the references are short; if your models answer in sentences, take `contains`"
    mark = next((mark for mark in _SEPARATORS if sum(mark in text for text in first) > len(first) / 2), None)
    if mark is not None:
        why += f"; if the parts between {mark!r} are each accepted, write {{{{{reference}.split({mark!r})}}}}"
    return "exact_match", why


def _numbers(texts: Sequence[str]) -> list[str] | None:
    """The number in each text; None if one has none, several, or another unit than the others."""
    numbers, units = [], set()
    for text in texts:
        found = _NUMBER.findall(text)
        if len(found) != 1 or not (_POINT.fullmatch(found[0]) or _COMMA.fullmatch(found[0])):
            return None
        numbers.append(found[0])
        rest = text.replace(found[0], "").strip()
        units.add(rest if _LETTER.search(rest) else "")
    return numbers if len(units) == 1 else None


def _is_object(text: str) -> bool:
    if not text.startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
