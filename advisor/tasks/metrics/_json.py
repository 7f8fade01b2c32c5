r"""The JSON value in a response, and its canonical form.

    >>> canonical(find_json('Sure:\n```json\n{"b": 1.0, "a": "x"}\n```'))
    '{"a":"x","b":1}'
    >>> find_json('{"a": 1,}')
    Traceback (most recent call last):
    json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 9 (char 8)

Two values have one canonical form if they are equal: the order of keys, white space, escapes, the spelling of numbers
(1, 1.0 and 10e-1; decimals are doubles, as RFC 8259 advises) and of characters (Unicode's NFC) do not count. Of a key
that is given twice, the last one counts, as in pydantic. NaN, Infinity and half a surrogate pair are no JSON.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

DEEPEST = 100
"""Objects and lists inside each other, at most: Python's own limit would depend on the place of the call."""
_TOO_DEEP = f"more than {DEEPEST} objects and lists inside each other"
# Where a value can start: an object with a key or its end, a list with a value or its end.
_START = re.compile(r'\{\s*["}]|\[\s*["\[\]{\d\-tfn]')
_BETWEEN = re.compile(r"[\s;,]*")
_FENCED = re.compile(r"```[\w-]*[ \t]*\r?\n(.*?)```", re.DOTALL)


def find_json(text: str) -> Any:
    """The JSON value of a response: the whole text, else the last fenced block, else the last object or list in it.

    Whole floats are integers, and characters are in NFC.

    Raises:
        ValueError: The text has none; a JSONDecodeError says at which line and column the whole text is no JSON.
    """
    try:
        return _value(text.strip())
    except ValueError as error:
        problem = error
    for block in reversed(_FENCED.findall(text)):
        try:
            return _value(block.strip())
        except ValueError:
            continue
    found, at = [], 0
    while (start := _START.search(text, at)) is not None:
        try:
            value, at = _DECODER.raw_decode(text, start.start())
            found = [value]
        except json.JSONDecodeError as error:
            # On from where it fails: a part of a value that was cut off is not the answer.
            at = max(start.end(), error.pos)
            if text[error.pos : error.pos + 1] == '"':  # often a string that was cut off
                break
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
    if not found:
        raise problem
    return _clean(found[0])


def find_all(text: str) -> list[Any]:
    """The JSON values of a text of nothing but values and spaces, `;` or `,` between them, else that of `find_json`.

    Raises:
        ValueError: As for :func:`find_json`.
    """
    values, at = [], _BETWEEN.match(text).end()  # type: ignore[union-attr]  # the pattern also matches nothing
    try:
        while at < len(text):
            value, at = _DECODER.raw_decode(text, at)
            values.append(_clean(value))
            at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
    except (ValueError, RecursionError):
        values = []
    return values or [find_json(text)]


def readable(texts: Iterable[str], read: Callable[[str], T]) -> Iterator[T]:
    """What `read` makes of each text that it can read: a score never raises for a reference that is wrong."""
    for text in texts:
        with suppress(ValueError):
            yield read(text)


def has_start(text: str) -> bool:
    """Whether a text has what may be the start of an object or a list."""
    return _START.search(text) is not None


def canonical(value: Any) -> str:
    """The canonical form of a value of :func:`find_json`, on one line."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _value(text: str) -> Any:
    try:
        return _clean(_DECODER.decode(text))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _clean(value: Any, depth: int = 0) -> Any:
    if depth == DEEPEST and isinstance(value, (dict, list)):
        raise ValueError(_TOO_DEEP)
    if isinstance(value, dict):
        return {_clean(key): _clean(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_clean(each, depth + 1) for each in value]
    if isinstance(value, str):
        value.encode()  # a UnicodeEncodeError, which is a ValueError, for half a surrogate pair
        return unicodedata.normalize("NFC", value)
    return value


def _float(text: str) -> float | int:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:30]} is too large")
    return int(number) if number.is_integer() else number


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_float=_float, parse_constant=_constant)
