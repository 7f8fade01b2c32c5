"""Options as keyword arguments of a call in Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from advisor.options.option import Options, options_of
from ensemble.common.text import shortened, visible
from ensemble.errors import InputError

_LONGEST = 60  # characters of a wrong value in a message
_OF_THE_TERMINAL = ("as_json", "debug", "dry_run")
_TYPES: Mapping[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "True or False"),
    int: ((Integral,), "a whole number"),
    float: ((Real,), "a number"),
    str: ((str, Path), "a text"),
    Literal: ((str,), "a text"),
    Path: ((str, Path), "a path"),
    tuple: ((str, Path), "a text, or a list of texts"),
}
"""What an option accepts, by its type, and how a message calls it."""


def from_python(options: type[Options], given: Mapping[str, Any], function: str) -> dict[str, Any]:
    """The values of options in the types that they have.

    Args:
        options: The class of the options.
        given: The keyword arguments.
        function: The function, for messages.

    Raises:
        InputError: There is no such option, or a value is of another type.
    """
    declared, hints = options_of(options), get_type_hints(options)
    known = [field.name for field in dataclasses.fields(options) if field.name not in _OF_THE_TERMINAL]
    values = {}
    for name, value in given.items():
        if name not in known:
            raise InputError(f"{function}: {name} is no option; use {', '.join(sorted(known))}")
        read = declared[name].read
        if read is not None and isinstance(value, str):
            values[name] = read(value)
        else:
            values[name] = _typed(hints[name], value, f"{function}: {name}")
    return values


def _typed(hint: Any, value: Any, place: str) -> Any:
    # Without the None of an option that may be missing.
    kind = next((each for each in get_args(hint) if type(None) in get_args(hint)), hint)
    kind = get_origin(kind) or kind
    accepted, words = _TYPES[kind]
    many = kind is tuple and isinstance(value, (list, tuple))
    parts = list(value) if many else [value]
    # In Python True is a number, too.
    if any(not isinstance(each, accepted) or (kind in (int, float) and isinstance(each, bool)) for each in parts):
        raise InputError(f"{place} should be {words}; got {shortened(visible(repr(value)), _LONGEST)}")
    return tuple(str(each) for each in parts) if kind is tuple else value if kind is Literal else kind(value)
