"""JSON objects that know their place, so that an error names the file, the line and the field."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NoReturn

from ensemble.common.text import visible
from ensemble.errors import InputError

Interval = tuple[float, float]
_LARGEST = 1e18
_WAY_OUT = "run `advisor select` again, or restore the file"


class Fields:
    """A JSON object from an untrusted file, and its place in the file.

    A field that is absent or null reads as the default. A field of the wrong type raises :class:`InputError`.
    Every string comes back cleaned (:func:`ensemble.common.text.visible`), so that no later step has to do it.

    Args:
        values: The object, as parsed.
        place: File, and line or field path, for messages.
        way_out: The end of each message: how to repair the file.
    """

    def __init__(self, values: dict[str, Any], place: str, way_out: str = _WAY_OUT) -> None:
        self.values, self.place, self.way_out = values, place, way_out

    def line(self, name: str, default: str = "") -> str:
        """Return a string that is shown on one line."""
        return visible(self._string(name, default))

    def prose(self, name: str, default: str = "") -> str:
        """Return a string that keeps its line breaks."""
        return visible(self._string(name, default), keep_lines=True)

    def word(self, name: str, known: Collection[str], default: str) -> str:
        """Return a string that is one of the known words."""
        value = self.line(name, default)
        # The word ends up in class names and colours of the page, so it must be a known one.
        return value if value in known else self.refuse(name, " or ".join(filter(None, known)))

    def texts(self, name: str, *, keep_lines: bool = False) -> tuple[str, ...]:
        """Return a string, or a list of strings, as a tuple."""
        value = self.values.get(name)
        items = value if isinstance(value, list) else [] if value is None else [value]
        return tuple(visible(self._text(name, item), keep_lines=keep_lines) for item in items)

    def number(self, name: str) -> float | None:
        """Return a number, or None. JSON has no infinity, so an infinite ratio is null in the file."""
        value = self.values.get(name)
        if value is None:
            return None
        return _finite(value) if _is_number(value) else self.refuse(name, "a number")

    def optional_count(self, name: str) -> int | None:
        """Return a whole number, or None if it is absent."""
        value = self.number(name)
        return None if value is None else int(value)

    def count(self, name: str, default: int = 0) -> int:
        """Return a whole number."""
        value = self.optional_count(name)
        return default if value is None else value

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return a list of finite numbers, empty if it is absent."""
        value = self.values.get(name)
        if value is None:
            return ()
        items = [_finite(item) if _is_number(item) else None for item in value] if isinstance(value, list) else [None]
        known = tuple(number for number in items if number is not None)
        return known if len(known) == len(items) else self.refuse(name, "a list of numbers")

    def interval(self, name: str) -> Interval | None:
        """Return ``[low, high]``, or None if either end is absent."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != 2 or not all(end is None or _is_number(end) for end in value):
            self.refuse(name, "[low, high]")
        low, high = (None if end is None else _finite(end) for end in value)
        return None if low is None or high is None else (low, high)

    def known_numbers(self) -> dict[str, float]:
        """Return all fields that are finite numbers, and ignore the others."""
        numbers = {name: self.number(name) for name, value in self.values.items() if _is_number(value)}
        return {name: value for name, value in numbers.items() if value is not None}

    def items(self) -> tuple[tuple[str, str], ...]:
        """Return all fields as cleaned names and strings."""
        return tuple((visible(name), self.line(name)) for name in self.values)

    def part(self, name: str) -> Fields:
        """Return the object under a name, an empty one if it is absent."""
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

    def check_version(self, known: frozenset[int], way_out: str) -> None:
        """Check that ``schema_version`` is one that this package reads.

        Raises:
            InputError: It is another one, or missing.
        """
        if self.number("schema_version") not in known:
            version, versions = self.line("schema_version", "missing"), ", ".join(map(str, sorted(known)))
            raise InputError(
                f"{self.place}: schema_version is {version}, and this unite-advisor reads {versions}; {way_out}"
            )

    def check(self, name: str, expected: str, fits: Callable[[Any], bool], *, required: bool = False) -> None:
        """Check a field. One that is absent or null fits unless it is required.

        Args:
            name: The field.
            expected: What it should be, for the message.
            fits: Whether a value is that.
            required: Whether it has to be there.

        Raises:
            InputError: The value does not fit.
        """
        value = self.values.get(name)
        if required if value is None else not fits(value):
            self.refuse(name, expected)

    def refuse(self, name: str, expected: str) -> NoReturn:
        """Raise the error for a field with a wrong value."""
        raise InputError(f"{self.place}: {name} should be {expected}; {self.way_out}")

    def _string(self, name: str, default: str) -> str:
        value = self.values.get(name)
        if value is None:
            return default
        return self._text(name, value)

    def _text(self, name: str, value: object) -> str:
        # Any value can be shown as text; only numbers and structure have to be right.
        try:
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        except RecursionError:  # writing goes less deep than reading
            return self.refuse(name, "a text")


def is_text(value: object) -> bool:
    """Whether a value is a text that UTF-8 can encode: JSON may have halves of surrogate pairs. It has no null."""
    try:
        return isinstance(value, str) and b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def read_object(path: Path, way_out: str = _WAY_OUT) -> Fields:
    """Read a file that holds one JSON object."""
    return _parse(_text(path, way_out), path, 1, way_out)


def read_lines(path: Path) -> Iterator[Fields]:
    """Read a file that holds a JSON object on each line. Empty lines are skipped."""
    # splitlines() would also split at U+2028 and similar characters, which are allowed inside a JSON string.
    for number, line in enumerate(_text(path, _WAY_OUT).split("\n"), start=1):
        if line.strip():
            yield _parse(line, path, number, _WAY_OUT)


def _text(path: Path, way_out: str) -> str:
    try:
        # Reading one would wait for a writer, or never end.
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: it is a pipe or a device; {way_out}")
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
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number with thousands of digits
        raise InputError(f"{path}:{first_line}: not usable JSON; {way_out}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}:{first_line}: should be a JSON object; {way_out}")
    # In a file of one object the line says nothing; the field's path does.
    return Fields(value, f"{path}:{first_line}" if path.suffix == ".jsonl" else str(path), way_out)


def _is_number(value: object) -> bool:
    # In Python True is an int, but in JSON it is not a number.
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(value: float) -> float | None:
    # A sum, a square or a ratio of larger numbers is not finite any more; nothing that is measured comes near.
    return float(value) if -_LARGEST <= value <= _LARGEST else None
