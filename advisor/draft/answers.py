"""What the texts of a reference are: numbers, labels, sentences, dates, lists; which metric and template fit them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from advisor.draft.columns import Columns
from ensemble.errors import InputError

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
# Lists that a program wrote into a cell, and what separates their texts.
_LISTS = (
    (re.compile(r'\["[^"\\]*"(?:, "[^"\\]*")*\]'), '", "'),
    (re.compile(r'\["[^"\\]*"(?:,"[^"\\]*")*\]'), '","'),
    (re.compile(r"\['[^'\\]*'(?:, '[^'\\]*')*\]"), "', '"),
)
_SEPARATORS = (" | ", "|", "; ", ";", " / ")

Texts = Sequence[Sequence[str]]
"""The accepted texts of each record that has some."""


def answer_template(reference: str, texts: Texts) -> tuple[str, Texts, str]:
    """The template of the accepted texts, these texts, and why.

    It is the whole reference, the end of a worked solution, the items of a list that is written as text, or a text
    without its quotation marks.
    """
    single = [items[0] for items in texts if len(items) == 1]
    if not texts or len(single) < len(texts):
        return f"{{{{{reference}}}}}", texts, ""
    for mark in _MARKS:
        ends = [[text.split(mark)[-1].strip().rstrip(".")] for text in single]
        if all(mark in text for text in single) and all(end[0] and len(end[0].split()) <= _SHORT_END for end in ends):
            template = f"{{{{{reference}.split('{mark}')[-1].strip().rstrip('.')}}}}"
            return template, ends, f"; the answer is what comes after the last '{mark}'"
    for pattern, separator in _LISTS:
        if all(pattern.fullmatch(text) for text in single):
            lists = [text[2:-2].split(separator) for text in single]
            why = "; its texts are lists of accepted answers"
            return f"{{{{{reference}[2:-2].split({separator!r})}}}}", lists, why
    if all(_QUOTED.fullmatch(text) for text in single):
        bare = [[text.strip(_QUOTES)] for text in single]
        return f"{{{{{reference}.strip('{_QUOTES}')}}}}", bare, "; without the quotation marks"
    return f"{{{{{reference}}}}}", texts, ""


def decimal_mark(columns: Columns, question: str, reference: str, texts: Texts, given: str | None) -> str | None:
    """The decimal mark of references that are numbers, ``.`` or ``,``; None if not all are numbers of one unit.

    Args:
        columns: The data.
        question: The column of the question.
        reference: The column of the reference, for messages.
        texts: The accepted texts.
        given: The mark that the user gave; None to find it.

    Raises:
        InputError: The references have both marks, or points of which nothing says what they mean.
    """
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
