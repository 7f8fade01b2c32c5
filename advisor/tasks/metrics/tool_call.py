r"""Tool calls: the calls in the response are accepted ones, by name and arguments.

    >>> METRIC.score('[{"name": "area", "arguments": {"base": 10.0}}]', ('["area", {"base": 10}]',), ())
    (1.0, '[["area",{"base":10}]]')
    >>> METRIC.score('["area", {"base": 10}]', ('{"area": {"base": [10, "ten"], "unit": ["", "cm"]}}',), ())
    (1.0, '[["area",{"base":10}]]')

Calls are read as `["name", {...}]`, as `{"name": ..., "arguments": {...}}` (also `parameters`, `args`, `input`, and
with the arguments as JSON in a text), as OpenAI's `tool_calls`, as `{"name": {...}}`, and in `<tool_call>` tags.
Several calls stand in a list or after each other, and their order does not count. A response without a call is the
answer `[]`, which is right where the reference has no call: `[]` or `no call`. JSON that is broken, or that is no call,
is no answer. Not covered: calls in Python's syntax.

A reference is a call in one of these forms, or the accepted values of each argument as in the Berkeley
Function-Calling Leaderboard (BFCL): `{"name": {"argument": [value, ...]}}`. There `""` means that the argument may be
missing, an object has accepted values inside, texts are equal without case, spaces and ``,./-_*^``, and a number at the
end of a name tells several calls of one function apart. A point in a name is an underscore, as servers want it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from advisor.tasks.metrics import Metric
from advisor.tasks.metrics.json import canonical, find_all, find_json, has_start, readable

_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_ARGUMENTS = ("arguments", "parameters", "args", "input")
# What BFCL leaves out of texts before it compares them (its `standardize_string`).
_IGNORED = re.compile(r"[ ,./\-_*^]")
_NUMBERED = re.compile(r"[_ ]\d+$")

Call = tuple[str, dict[str, Any]]
Takes = Callable[[Call], bool]
"""One call of a reference: whether it takes a call of a response."""


def read(text: str) -> str:
    """The canonical form of the calls of a response, in their order; a ValueError says why it has no usable call."""
    return canonical(_calls(text))


class ToolCall(Metric):
    """1 if the calls of the response are those of an accepted reference, in any order, else 0."""

    def problem(self, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> str | None:
        """Each accepted text must be calls, accepted values of calls, or no call."""
        for text in accepted:
            try:
                _accepted(text)
            except ValueError as error:
                return f"the reference {text[:60]!r} is no tool call: {error}"
        return None

    def score(self, text: str, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """Compare the calls; the answer is the canonical form of the response's calls, in order of their texts."""
        try:
            calls = _calls(text)
        except ValueError:
            return 0.0, None
        right = any(_is_right(calls, reference) for reference in readable(accepted, _accepted))
        return float(right), f"[{','.join(sorted(canonical(call) for call in calls))}]"


def _values_of(name: str, arguments: dict[str, list[Any]], *, numbered: bool) -> Takes:
    """A call of a reference in BFCL's form, with the accepted values of each argument."""
    names = {_name(name), _name(_NUMBERED.sub("", name))} if numbered else {_name(name)}
    return lambda call: call[0] in names and _fits(call[1], arguments)


def _equal_to(accepted: Call) -> Takes:
    """A call of a reference that is a call itself."""
    text = canonical(accepted)
    return lambda call: canonical(call) == text


def _calls(text: str) -> list[Call]:
    """The calls in a text; empty if it has none, and a ValueError if what should be one is broken."""
    tagged = list(_TAGGED.finditer(text))
    if tagged:
        return [call for block in tagged for call in _of(_tagged_value(text, block))]
    try:
        values = find_all(text)
    except ValueError:
        if has_start(text):
            raise
        return []
    return [call for value in values for call in _of(value)]


def _tagged_value(text: str, block: re.Match[str]) -> Any:
    try:
        return find_json(block[1])
    except json.JSONDecodeError as error:
        raise json.JSONDecodeError(error.msg, text, block.start(1) + error.pos) from None


def _of(value: Any) -> list[Call]:
    """The calls that a JSON value is."""
    match value:
        case [str(name), dict(arguments)]:
            return [(_name(name), arguments)]
        case list(values):
            return [call for each in values for call in _of(each)]
        case {"tool_calls": list(calls)}:
            return _of(calls)
        case {"function": dict(function)}:
            return _of(function)
        case {"name": str(name)}:
            given: Any = next((value[key] for key in _ARGUMENTS if key in value), {})
            if isinstance(given, str):
                try:
                    given = find_json(given or "{}")
                except ValueError as error:
                    raise ValueError(f"the arguments of {name[:60]!r}: {error}") from None
            if isinstance(given, dict):
                return [(_name(name), given)]
        case dict() if value and all(isinstance(each, dict) for each in value.values()):
            return [(_name(name), each) for name, each in value.items()]
    raise ValueError(f"{json.dumps(value)[:60]} has no name and arguments of a call")


def _accepted(text: str) -> list[Takes]:
    """The calls of a reference; a ValueError if it is neither calls nor accepted values of calls."""
    if text.strip().lower() == "no call":
        return []
    value = find_json(text)
    functions = [value] if isinstance(value, dict) else value
    if isinstance(functions, list) and functions and all(_has_values(each) for each in functions):
        calls = [item for each in functions for item in each.items()]
        return [_values_of(name, arguments, numbered=len(calls) > 1) for name, arguments in calls]
    return [_equal_to(call) for call in _of(value)]


def _has_values(value: Any) -> bool:
    """Whether a value is functions with lists of accepted values, as in BFCL."""
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(arguments, dict) for arguments in value.values())
        and all(isinstance(values, list) for arguments in value.values() for values in arguments.values())
    )


def _is_right(calls: list[Call], accepted: list[Takes]) -> bool:
    """Whether each call can be given another accepted one that takes it, and none is left."""
    if len(calls) != len(accepted):
        return False
    if not calls:
        return True
    fits = np.array([[takes(call) for takes in accepted] for call in calls], dtype=float)
    rows, columns = linear_sum_assignment(fits, maximize=True)
    return bool(fits[rows, columns].all())


def _fits(arguments: dict[str, Any], accepted: dict[str, Any]) -> bool:
    """Whether each argument has an accepted value, and only those are missing that may be."""

    def fits(name: str, values: Any) -> bool:
        values = values if isinstance(values, list) else [values]
        return any(_equal(arguments[name], value) for value in values) if name in arguments else "" in values

    return arguments.keys() <= accepted.keys() and all(fits(name, values) for name, values in accepted.items())


def _equal(value: Any, accepted: Any) -> bool:
    if isinstance(value, dict) and isinstance(accepted, dict):
        return _fits(value, accepted)
    if isinstance(value, list) and isinstance(accepted, list):
        return len(value) == len(accepted) and all(map(_equal, value, accepted))
    if isinstance(value, str) and isinstance(accepted, str):
        return _plain(value) == _plain(accepted)
    return canonical(value) == canonical(accepted)


def _plain(text: str) -> str:
    return _IGNORED.sub("", text).lower().replace("'", '"')


def _name(name: str) -> str:
    return name.replace(".", "_")


METRIC = ToolCall()
