"""Values of untrusted logs: what can be used of them, and which score counts if there are several."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from advisor.tables.streams import Notes
from ensemble.common.text import counted, shortened
from ensemble.errors import InputError

LONGEST_NAME = 500
"""Characters of a model's name."""
CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"})
"""How tools write that a response was cut off at a token limit, in lower case."""
# Floats hold every whole number up to here.
_LARGEST = 2**53
_LONGEST_LINE = 300


def text_of(value: object) -> str | None:
    """A text, or a finite number as text; None for other types and for absent values."""
    if isinstance(value, str):
        # JSON can spell half a surrogate pair, which no UTF-8 file can hold.
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, int):
        # Python refuses to write integers with thousands of digits.
        return str(value) if abs(value) < 10**100 else None
    return str(value) if math.isfinite(value) else None


def texts_of(value: object) -> tuple[str, ...] | None:
    """A list of texts or numbers as texts; None for anything else, or if the list is empty."""
    texts = [text_of(item) for item in value] if isinstance(value, (list, tuple)) else []
    known = tuple(text for text in texts if text is not None)
    return known if known and len(known) == len(texts) else None


def score_of(value: object) -> float | None:
    """A score between 0 and 1: a number in this range, or a truth value; None for anything else."""
    # NaN is in no range.
    return float(value) if isinstance(value, (int, float)) and 0 <= value <= 1 else None


def count_of(value: object) -> int | None:
    """A whole number of at least 0; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _LARGEST:
        return None
    return int(value) if value == int(value) else None


def amount_of(value: object) -> float | None:
    """A time or a sum of at least 0; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _LARGEST:
        return None
    return float(value)


def line_of(value: object) -> str | None:
    """A text in one line, cut after 300 characters; None for other types and blank texts."""
    return " ".join((text_of(value) or "")[:_LONGEST_LINE].split()) or None


def object_at(value: object, key: str) -> dict[str, Any]:
    """The object that an object has under a key; empty if one of the two is something else."""
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def check_name(name: str, place: str) -> str:
    """Check a model's name.

    Raises:
        InputError: It is empty or too long, or has characters that cannot be printed.
    """
    if not name.strip() or not name.isprintable() or len(name) > LONGEST_NAME:
        raise InputError(
            f"{place}: the model's name {name[:50]!a} is not a printable text of 1 to {LONGEST_NAME} characters; "
            "correct the log"
        )
    return name


_MOST = 12
"""Names in a message."""
_MOST_UNREAD = 0.05
"""The share of scores that may be unreadable; with more, what is left says little of the models."""
_LONGEST = 30  # characters of a value in a message
_TRUTH = {
    **dict.fromkeys(("true", "yes", "correct", "right"), 1.0),
    **dict.fromkeys(("false", "no", "incorrect", "wrong"), 0.0),
}


class ScoreReader:
    """Reads the scores of all logs of a command, and counts those that it cannot read.

    Args:
        meanings: The score of a value, by its text in lower case: what the user says, before all else.
    """

    def __init__(self, meanings: Mapping[str, float] = MappingProxyType({})) -> None:
        self._meanings = meanings
        self._values = Counter[str]()
        self._known: dict[str, float] = {}
        self._lost = Counter[str]()

    def is_score(self, value: object) -> bool:
        """Whether a value can be read; it is not counted."""
        return self._score(value) is not None

    def read(self, value: object, model: str) -> float | None:
        """The score of a model's response, between 0 and 1; None for a value that is no score, which is counted."""
        score = self._score(value)
        text = _text_of(value)
        self._values[text] += 1
        if score is None:
            self._lost[model] += 1
        else:
            self._known[text] = score
        return score

    def check(self, notes: Notes) -> None:
        """Say how many scores of each model cannot be read.

        Raises:
            InputError: More than one in 20 cannot, or all others are equal: then one outcome may be what is not read.
        """
        lost = self._lost.total()
        if not lost:
            return
        each = ", ".join(f"{name} ({count:,})" for name, count in self._lost.most_common(_MOST))
        more = f" and {len(self._lost) - _MOST} other models" if len(self._lost) > _MOST else ""
        what = "1 score" if lost == 1 else f"{lost:,} scores"
        if lost <= _MOST_UNREAD * self._values.total() and len(set(self._known.values())) > 1:
            notes.append(f"{what} cannot be read, and the responses are left out: {each}{more}")
            return
        met = [text for text, _ in self._values.most_common()]
        shown = ", ".join(f"{_named(text)} ({self._values[text]:,})" for text in met[:_MOST])
        other = f" and {counted(len(met) - _MOST, 'other value')}" if len(met) > _MOST else ""
        pairs = [f"{text}={self._known[text]:g}" for text in self._known][:2]
        pairs += [f"{text}=0" for text in met if text not in self._known][:2]
        means = ",".join(pairs)
        raise InputError(
            f"{what} of {self._values.total():,} cannot be read: {each}{more}; the values are {shown}{other}; say what "
            f'they mean, for example --score-map "{means}", or correct the log'
        )

    def _score(self, value: object) -> float | None:
        text = _text_of(value)
        if text in self._meanings:
            return self._meanings[text]
        if not isinstance(value, str):
            return score_of(value)
        if text in _TRUTH:
            return _TRUTH[text]
        try:
            return score_of(float(text))
        except ValueError:
            return None


def read_meanings(text: str) -> dict[str, float]:
    """The score of each value, from ``VALUE=SCORE,...``; an empty value is an empty cell.

    Raises:
        InputError: A part is not of this form, a score is not between 0 and 1, or a value occurs twice.
    """
    meanings: dict[str, float] = {}
    for part in text.split(","):
        value, equals, number = part.rpartition("=")
        try:
            score = score_of(float(number))
        except ValueError:
            score = None
        if not equals or score is None:
            raise InputError(f"--score-map {text}: give VALUE=SCORE,... with scores from 0 to 1, such as correct=1,=0")
        if (key := _text_of(value)) in meanings:
            raise InputError(f"--score-map {text}: the value {_named(key)} is given twice")
        meanings[key] = score
    return meanings


def _text_of(value: object) -> str:
    """A value as the user writes it in --score-map: 1.0 is 1, and what is absent is empty."""
    if value is None or value != value:  # noqa: PLR0124  # NaN, which pandas writes for an empty cell
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = shortened(" ".join(str(value)[:1000].split()), _LONGEST).lower()
    try:
        # "1.0" of a CSV file is the 1 of another.
        return f"{float(text):g}" if text and not text.isalpha() else text
    except ValueError:
        return text


def _named(text: str) -> str:
    return (line_of(text) or "''") if text else "an empty cell"


def choose_score(names: Sequence[str], wanted: str | None, path: Path) -> str:
    """The name of the score that counts.

    Args:
        names: All names, the one to take by default first; at least one.
        wanted: The name that the user gave; None for the default.
        path: The log, for the message.

    Raises:
        InputError: The log has no score of this name.
    """
    if wanted is None or wanted in names:
        return wanted or names[0]
    raise no_score(wanted, names, path)


def no_score(wanted: str, names: Iterable[str], path: Path) -> InputError:
    """The error that a log has no score of the name that the user gave."""
    return InputError(f"--column score={wanted}: {path} has no such score; it has {_listed(names) or 'none'}")


def note_others(chosen: str, names: Iterable[str], wanted: str | None, path: Path, notes: Notes) -> None:
    """Say which other scores a log has, if the user chose none."""
    if wanted is None and (others := _listed(name for name in names if name != chosen)):
        notes.append(
            f"{path}: the score is {_listed([chosen])}; the log also has {others} (choose with --column score=NAME)"
        )


def note_unscored(chosen: str | None, count: int, path: Path, notes: Notes) -> None:
    """Say how many records have no score that can be used; `chosen` is None if no record has any."""
    if count:
        what = "1 record has" if count == 1 else f"{count:,} records have"
        notes.append(f"{path}: {what} no score{f' {_listed([chosen])}' if chosen else ''} between 0 and 1")


def _listed(names: Iterable[str]) -> str:
    # The log gives the names: each is a part of one line.
    known = list(dict.fromkeys(line_of(name) or "''" for name in names))
    more = f" and {len(known) - _MOST} more" if len(known) > _MOST else ""
    return ", ".join(known[:_MOST]) + more
