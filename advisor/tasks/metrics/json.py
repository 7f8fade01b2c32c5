r"""JSON: the JSON value of the response equals an accepted one.

    >>> METRIC.score('Here it is: {"age": 41.0, "name": "Ann"}', ('{"name": "Ann", "age": 41}',), ())
    (1.0, '{"age":41,"name":"Ann"}')

The value is the whole response, else the last fenced block, else the last object or list in the text. Two values are
equal if they have one canonical form: the order of keys, white space, escapes, the spelling of numbers (1, 1.0 and
10e-1; decimals are doubles, as RFC 8259 advises) and of characters (Unicode's NFC) do not count. Of a key that is given
twice, the last one counts, as in pydantic. NaN, Infinity and half a surrogate pair are no JSON.

Its variant `json_fields` gives the share of fields in which the object of the response equals an accepted one:

    >>> VARIANT.score('{"name": "Ann", "age": 40, "city": "Rome"}', ('{"name": "Ann", "age": 41}',), ())
    (0.3333333333333333, '{"age":40,"city":"Rome","name":"Ann"}')

The fields are the keys of either object, so a missing and an additional one count as wrong. A field whose value is an
object or a list is right as a whole or not, and values that are no objects are compared as a whole. Not covered: lists
in any order, values that only mean the same ("41" and 41).
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from advisor.tasks.metrics import Metric

T = TypeVar("T")

DEEPEST = 100
"""Objects and lists inside each other, at most: Python's own limit would depend on the place of the call."""
# Where a value can start: an object with a key or its end, a list with a value or its end.
_START = re.compile(r'\{\s*["}]|\[\s*["\[\]{\d\-tfn]')
_BETWEEN = re.compile(r"[\s;,]*")
_FENCED = re.compile(r"```[\w-]*[ \t]*\r?\n(.*?)```", re.DOTALL)
# Each of these may be something that Python's parser accepts and RFC 8259 does not.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity|NaN|-?\d[\d.eE+-]*|[\[\]{}]', re.DOTALL)


def find_json(text: str) -> Any:
    """The JSON value of a response: the whole text, else the last fenced block, else the last object or list in it.

    Whole floats are integers, and characters are in NFC.

    Raises:
        JSONDecodeError: The text has none. It says at which line and column of the text the last fenced block is
            broken, else the last object or list, else the text.
    """
    try:
        return _value(text.rstrip(), len(text) - len(text.lstrip()))
    except json.JSONDecodeError as error:
        problem = error
    blocks = list(_FENCED.finditer(text))
    for block in reversed(blocks):
        try:
            return _value(text, block.start(1), block.end(1))
        except json.JSONDecodeError as error:
            problem = error if block is blocks[-1] else problem
    found, at = [], 0
    while (start := _START.search(text, at)) is not None:
        try:
            value, at = _DECODER.raw_decode(text, start.start())
            found = [(value, start.start())]
        except json.JSONDecodeError as error:
            problem = problem if blocks else error
            # On from where it fails: a part of a value that was cut off is not the answer.
            at = max(start.end(), error.pos)
            if text[error.pos : error.pos + 1] == '"':  # often a string that was cut off
                break
        except (ValueError, RecursionError):
            raise _problem(text, start.start()) from None
    if not found:
        raise problem
    return _clean(text, *found[0])


def find_all(text: str) -> list[Any]:
    """The JSON values of a text of nothing but values and spaces, `;` or `,` between them, else that of `find_json`."""
    values, at = [], _BETWEEN.match(text).end()  # type: ignore[union-attr]  # the pattern also matches nothing
    try:
        while at < len(text):
            start = at
            value, at = _DECODER.raw_decode(text, at)
            values.append(_clean(text, value, start))
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


def _value(text: str, start: int = 0, end: int | None = None) -> Any:
    """The JSON value that a part of a text is."""
    part = text[start:end]
    try:
        value = _DECODER.decode(part)
    except json.JSONDecodeError as error:
        raise json.JSONDecodeError(error.msg, text, start + error.pos) from None
    except (ValueError, RecursionError):
        raise _problem(text, start) from None
    return _clean(text, value, start)


def _clean(text: str, value: Any, start: int) -> Any:
    """A value of a part of a text, with all texts in NFC."""
    try:
        return _normal(value)
    except ValueError:
        raise _problem(text, start) from None


def _normal(value: Any, depth: int = 0) -> Any:
    if depth == DEEPEST and isinstance(value, (dict, list)):
        raise ValueError
    if isinstance(value, dict):
        return {_normal(key): _normal(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_normal(each, depth + 1) for each in value]
    if isinstance(value, str):
        value.encode()  # a UnicodeEncodeError, which is a ValueError, for half a surrogate pair
        return unicodedata.normalize("NFC", value)
    return value


def _problem(text: str, start: int) -> json.JSONDecodeError:
    """Why Python's parser accepts a part of a text that is invalid JSON, and where that begins."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        found = token[0]
        depth += (found in "[{") - (found in "]}")
        if depth > DEEPEST:
            return json.JSONDecodeError(f"More than {DEEPEST} objects and lists inside each other", text, token.start())
        try:
            _normal(_DECODER.decode(found) if found not in "[]{}" else None)
        except ValueError as error:
            reason = "Half a surrogate pair" if isinstance(error, UnicodeError) else str(error)
            return json.JSONDecodeError(reason, text, token.start())
    return json.JSONDecodeError("Not JSON", text, start)


def _float(text: str) -> float | int:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:30]} is too large")
    return int(number) if number.is_integer() else number


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not valid JSON")


_DECODER = json.JSONDecoder(parse_float=_float, parse_constant=_constant)


def read(text: str) -> str:
    """The canonical form of the JSON value of a response, on one line; see :func:`find_json` for errors."""
    return canonical(find_json(text))


class Json(Metric):
    """1 if the JSON value of the response equals an accepted one, else 0."""

    def problem(self, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> str | None:
        """Each accepted text must be JSON."""
        for text in accepted:
            try:
                find_json(text)
            except ValueError as error:
                return f"the reference {text[:60]!r} is not valid JSON: {error}"
        return None

    def score(self, text: str, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """Compare the values; the answer is the canonical form of the response's value."""
        try:
            value = find_json(text)
        except ValueError:
            return 0.0, None
        shares = (self._share(value, reference) for reference in readable(accepted, find_json))
        return max(shares, default=0.0), canonical(value)

    def _share(self, value: Any, reference: Any) -> float:
        return float(canonical(value) == canonical(reference))


class _JsonFields(Json):
    """The share of equal fields, 0 to 1, for the accepted value that fits best."""

    def _share(self, value: Any, reference: Any) -> float:
        if not (isinstance(value, dict) and isinstance(reference, dict) and (value or reference)):
            return super()._share(value, reference)
        keys = value.keys() | reference.keys()
        equal = sum(canonical(value[key]) == canonical(reference[key]) for key in value.keys() & reference.keys())
        return equal / len(keys)


METRIC = Json()
VARIANT = _JsonFields()
