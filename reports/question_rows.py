"""Which model is right on which question: a line of signs for each question, small enough for a page of thousands.

For answers that are JSON objects, also in which fields they differ from the reference.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

MOST_BYTES = 700_000  # of all lines on the page
MOST_MODELS = 60  # columns: more would make a page of cells slow to draw
_LENGTHS = (120, 80, 56, 40, 28, 16, 0)  # of a question's text: with more questions, each gets fewer characters
_LONGEST_ID = 60
# U+2028 and U+2029 end a line in older JavaScript.
_ESCAPES = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})

RIGHT, WRONG, NOT_ASKED = "1", "0", "-"
# What a question may be, in the order of the filters on the page. The first two compare the strategy with the best
# single model, the others hold for all models that answered.
KINDS = {
    "recovered": "Recovered",
    "broken": "Broken",
    "disagree": "Disagree",
    "wrong": "All wrong",
    "right": "All right",
}
OF_STRATEGY = ("recovered", "broken")
MOST_FIELDS = 8  # in the page: a reader sees then that the whole answer is another one
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class QuestionRow:
    """Who is right on a question."""

    id: str  # shortened
    question: str  # the end of its text on one line, shortened
    held_out: bool
    # A sign for each of the first ``MOST_MODELS`` candidates, best first: ``1`` right, ``0`` wrong, ``-`` not asked.
    cells: str
    strategy: str  # the sign of the strategy that is compared with the best single model
    kinds: tuple[str, ...]  # those of ``KINDS`` that hold

    @property
    def weight(self) -> int:
        """About how many bytes the line adds to the page."""
        return page_bytes((self.id, self.question, self.cells))


def page_json(value: Any) -> str:
    """Return JSON that is safe inside a ``script`` element."""
    # NaN is no JSON: a browser would refuse the whole block, and the page would lose its script.
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def page_bytes(value: Any) -> int:
    """Return how many bytes a value adds to the page."""
    return len(page_json(value).encode())


def question_row(
    id: str,
    question: str,
    right: Mapping[int, bool],
    strategy: bool | None,
    *,
    held_out: bool,
    candidates: int,
    best: int | None,
) -> QuestionRow:
    """Return the line of a question; `right` has the number of each candidate that answered."""
    alone = None if best is None else right.get(best)
    holds = {
        "recovered": strategy is True and alone is False,
        "broken": strategy is False and alone is True,
        "disagree": len(set(right.values())) > 1,
        "wrong": bool(right) and not any(right.values()),
        "right": bool(right) and all(right.values()),
    }
    return QuestionRow(
        id=_clipped(id, _LONGEST_ID),
        question=_clipped(question, _LENGTHS[0]),
        held_out=held_out,
        cells="".join(_sign(right.get(number)) for number in range(min(candidates, MOST_MODELS))),
        strategy=_sign(strategy),
        kinds=tuple(kind for kind in KINDS if holds[kind]),
    )


def fitted(rows: Sequence[QuestionRow]) -> tuple[QuestionRow, ...]:
    """Return the lines that the page has room for, held-out questions first, with texts that are short enough."""
    ordered = sorted(rows, key=lambda each: not each.held_out)
    for longest in _LENGTHS:
        ordered = [replace(each, question=_clipped(each.question, longest)) for each in ordered]
        if sum(each.weight for each in ordered) <= MOST_BYTES:
            return tuple(ordered)
    room, kept = MOST_BYTES, []
    for each in ordered:
        room -= each.weight
        if room < 0:
            break
        kept.append(each)
    return tuple(kept)


def model_columns(rows: Collection[QuestionRow]) -> list[int]:
    """Return the numbers of the candidates that have a column, the best first: those that were asked a question."""
    signs = zip(*(each.cells for each in rows), strict=True)
    return [number for number, column in enumerate(signs) if any(sign != NOT_ASKED for sign in column)]


def _sign(right: bool | None) -> str:
    return NOT_ASKED if right is None else RIGHT if right else WRONG


def _clipped(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[: longest - 1]}…" if longest else ""


def field_differences(answer: str | None, references: Sequence[str]) -> tuple[str, ...]:
    """The fields in which an answer differs from the reference that is the most like it: ``age is 40, not 41``."""
    own = _object(answer)
    accepted = [each for each in map(_object, references) if each is not None]
    if own is None or not accepted:
        return ()
    words = min((_compared(own, each) for each in accepted), key=len)
    more = len(words) - MOST_FIELDS
    return (*words[:MOST_FIELDS], *([f"{more} more fields"] if more > 0 else []))


def _compared(own: dict[str, Any], reference: dict[str, Any]) -> list[str]:
    words = []
    for name in dict.fromkeys([*reference, *own]):
        value, wanted = own.get(name, _ABSENT), reference.get(name, _ABSENT)
        if value is _ABSENT:
            words.append(f"{name} is missing")
        elif wanted is _ABSENT:
            words.append(f"{name} is not in the reference")
        elif value != wanted or isinstance(value, bool) != isinstance(wanted, bool):
            words.append(f"{name} is {_short(value)}, not {_short(wanted)}")
    return words


def _object(text: str | None) -> dict[str, Any] | None:
    # Most answers are no objects, and parsing costs time.
    if text is None or not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:39]}…"
