"""JSON files read with their place kept, so that an error can say which file, line and field it is about."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ensemble.errors import InputError
from reports.visible import visible

_WAY_OUT = "run `advisor select` again, or restore the file"


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object and its place. What is absent or null reads as the default; what has the wrong type is an error.

    Attributes:
        values: The object, as parsed.
        place: File, and line or field path, for messages.
        way_out: What to do where something is wrong.
    """

    values: dict[str, Any]
    place: str
    way_out: str = _WAY_OUT

    def line(self, name: str, default: str = "") -> str:
        """Return a string that is shown on one line, cleaned."""
        return visible(self._string(name, default))

    def prose(self, name: str, default: str = "") -> str:
        """Return a string that keeps its line breaks, cleaned."""
        return visible(self._string(name, default), keep_lines=True)

    def number(self, name: str) -> float | None:
        """Return a finite number, or None: JSON has no infinity, so an infinite ratio is null in the file."""
        value = self.values.get(name)
        if value is None:
            return None
        return _finite(value) if _is_number(value) else self.refuse(name, "a number")

    def is_number(self, name: str) -> bool:
        """Return whether there is a number under a name, a finite one or not."""
        return _is_number(self.values.get(name))

    def count(self, name: str, default: int = 0) -> int:
        """Return a whole number."""
        value = self.number(name)
        return default if value is None else int(value)

    def optional_count(self, name: str) -> int | None:
        """Return a whole number, or None where there is none."""
        value = self.number(name)
        return None if value is None else int(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return a list of finite numbers, empty where there is none."""
        value = self.values.get(name)
        if value is None:
            return ()
        found = [_finite(item) if _is_number(item) else None for item in value] if isinstance(value, list) else [None]
        known = tuple(number for number in found if number is not None)
        return known if len(known) == len(found) else self.refuse(name, "a list of numbers")

    def interval(self, name: str) -> tuple[float, float] | None:
        """Return ``[low, high]``, or None where either end is absent."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != 2 or not all(end is None or _is_number(end) for end in value):
            self.refuse(name, "[low, high]")
        low, high = (None if end is None else _finite(end) for end in value)
        return None if low is None or high is None else (low, high)

    def part(self, name: str) -> Fields:
        """Return the object under a name, an empty one where there is none."""
        return self.optional_part(name) or Fields({}, f"{self.place}: {name}", self.way_out)

    def optional_part(self, name: str) -> Fields | None:
        """Return the object under a name, or None."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(name, "an object")
        return Fields(value, f"{self.place}: {name}", self.way_out)

    def parts(self, name: str) -> list[Fields]:
        """Return the objects of the list under a name."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.refuse(name, "a list of objects")
        return [Fields(item, f"{self.place}: {name}[{index}]", self.way_out) for index, item in enumerate(value)]

    def texts(self, name: str, *, keep_lines: bool = False) -> tuple[str, ...]:
        """Return a string, or a list of strings, as a tuple of cleaned strings."""
        value = self.values.get(name)
        items = value if isinstance(value, list) else [] if value is None else [value]
        return tuple(visible(str(item), keep_lines=keep_lines) for item in items)

    def refuse(self, name: str, expected: str) -> NoReturn:
        """Raise the error for a field that is not what it should be."""
        raise InputError(f"{self.place}: {name} should be {expected}; {self.way_out}")

    def _string(self, name: str, default: str) -> str:
        value = self.values.get(name)
        if value is None:
            return default
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_object(path: Path, way_out: str = _WAY_OUT) -> Fields:
    """Read a file that holds one JSON object."""
    return _parse(_text(path, way_out), path, 1, way_out)


def read_lines(path: Path) -> Iterator[Fields]:
    """Read a file that holds a JSON object on each line; empty lines are passed over."""
    # Not splitlines(): U+2028 and its like may stand inside a JSON string, and end no line there.
    for number, line in enumerate(_text(path, _WAY_OUT).split("\n"), start=1):
        if line.strip():
            yield _parse(line, path, number, _WAY_OUT)


def _text(path: Path, way_out: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text at byte {error.start}; {way_out}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check that it is a readable file") from error


def _parse(text: str, path: Path, first_line: int, way_out: str) -> Fields:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{first_line + error.lineno - 1}: not JSON ({error.msg}); {way_out}") from error
    except (RecursionError, ValueError) as error:  # nested beyond reason, or a number of thousands of digits
        raise InputError(f"{path}:{first_line}: not usable JSON; {way_out}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}:{first_line}: should be a JSON object; {way_out}")
    return Fields(value, f"{path}:{first_line}" if path.suffix == ".jsonl" else str(path), way_out)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(value: float) -> float | None:
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
