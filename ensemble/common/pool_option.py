"""An option of the pool file, stated once: a field of a data class, with its type, where it goes, and what it is.

thinking_budget: Annotated[Budget | None, PoolOption(key=True)] = None
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast, get_type_hints

from pydantic import BeforeValidator, Field, Strict, TypeAdapter, create_model

from ensemble.common.schema import Schema

Destination = Literal["ensemble", "result", "key"]
"""``ensemble.json`` and ``strategy.json``, the provenance of ``result.json``, the cache key of a response."""
_T = TypeVar("_T")
_Shape = TypeVar("_Shape", bound=Schema)


@dataclass(frozen=True, slots=True)
class PoolOption:
    """Where the value of a field goes; the text below the field says what it is."""

    ensemble: bool = True  # whether it goes there; see :data:`Destination`
    result: bool = True  # likewise
    key: bool = False  # likewise; must be so if it changes what a model writes; keys of models without it stay
    any_model: bool = False  # of a field of ``ModelSpec``: whether a model behind a server has it, too


class StatedOption(NamedTuple):
    """A field that is an option: its type as pydantic reads it, its default, where it goes, and what it is."""

    type: Any
    default: Any
    goes: PoolOption
    help: str


def options_of(kind: Any) -> dict[str, StatedOption]:
    """The options of a data class, by name, with those of the data classes in its fields."""
    own, inner = _stated(kind)
    return {**own, **{name: option for each in inner.values() for name, option in options_of(each).items()}}


@cache
def _stated(kind: Any) -> tuple[dict[str, StatedOption], dict[str, Any]]:
    """The fields of a data class that are options, and those that are data classes."""
    hints, texts = get_type_hints(kind, include_extras=True), _texts(kind.__module__)
    own = {
        each.name: StatedOption(hints[each.name], each.default, goes, texts[kind.__name__, each.name])
        for each in fields(kind)
        for goes in getattr(hints[each.name], "__metadata__", ())
        if isinstance(goes, PoolOption)
    }
    return own, {name: hint for name, hint in hints.items() if is_dataclass(hint)}


@cache
def _texts(module: str) -> dict[tuple[str, str], str]:
    """The text below each field of a module's classes, by class and field."""
    # Pydantic reads them too, but parses the whole file for each class and each class within it.
    parsed = ast.parse(inspect.getsource(sys.modules[module])).body
    return {
        (each.name, field.target.id): inspect.cleandoc(str(text.value.value))
        for each in parsed
        if isinstance(each, ast.ClassDef)
        for field, text in pairwise(each.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def with_options(options: Mapping[str, StatedOption]) -> Callable[[type[_Shape]], type[_Shape]]:
    """Return a decorator that adds options to a class of a file's shape; a field that it states itself stays."""

    def add(shape: type[_Shape]) -> type[_Shape]:
        added: dict[str, Any] = {
            name: (option.type, Field(option.default, description=option.help))
            for name, option in options.items()
            if name not in shape.model_fields
        }
        return create_model(shape.__name__, __base__=shape, __doc__=shape.__doc__, __module__=shape.__module__, **added)

    return add


def given_by(shape: Schema) -> dict[str, Any]:
    """What an object of a file gives, without its nulls."""
    return {name: value for name, value in shape if name in shape.model_fields_set and value is not None}


def filled(value: _T, given: Mapping[str, Any]) -> _T:
    """The same data class with the options of it that are given; other names are ignored."""
    own, inner = _stated(cast("Any", type(value)))
    changed = {name: given[name] for name in own if name in given}
    changed |= {name: filled(getattr(value, name), given) for name in inner}
    made: _T = replace(cast("Any", value), **changed)
    return made


def dumped(value: object, destination: Destination) -> dict[str, Any]:
    """The options of a data class that differ from their defaults and go somewhere, as JSON has them."""
    own, inner = _stated(cast("Any", type(value)))
    found = {
        name: _adapter(option.type).dump_python(getattr(value, name), mode="json")
        for name, option in own.items()
        if getattr(option.goes, destination) and getattr(value, name) != option.default
    }
    for name in inner:
        found |= dumped(getattr(value, name), destination)
    return {name: json for name, json in found.items() if json is not None}


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


YesNo = Annotated[bool, Strict(), BeforeValidator(lambda value: {"true": True, "false": False}.get(str(value), value))]
"""A flag, in a line or in JSON."""
AboveZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Budget = Annotated[int, Field(ge=0, le=10_000_000)]
"""Tokens."""
