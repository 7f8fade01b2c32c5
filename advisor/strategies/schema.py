r"""The shape of strategies in files: those that ``result.json`` compares, and ``strategy.json``. Both are untrusted.

``strategy.json`` is a strategy that asks its models one by one, as ``advisor export`` writes it. It holds no weights of
models. Beside ``strategy`` and ``members`` it has the strategy's own keys, here those of a learned vote:

    {
      "schema_version": 1,
      "strategy": "learned_vote", "members": ["a", "b", "far"], "weights": [1.5, 1.2, 1.0],
      "task": {"metric": "number", "extract": "answer is (-?[0-9]+)",
               "template": {"question": "Question: {{question}}\nAnswer:"}},
      "generation": {"max_new_tokens": 64, "stop": ["\n"]},
      "models": [
        {"name": "a", "id": "org/a", "revision": "<commit>", "dtype": "bfloat16", "chat_template": "never"},
        {"name": "b", "path": "../models/b", "files": {"model.safetensors": "<SHA-256>"}, "dtype": "float32"},
        {"name": "far", "server": {"address": "openai:http://127.0.0.1:8000/v1#far"}, "chat_template": "auto"}
      ]
    }
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, create_model
from pydantic_core import CoreSchema

from advisor.strategies import kinds
from advisor.strategies.strategy import Decoded, Strategy
from ensemble.common.schema import Exact, Name, Schema, must, validated, written, wrong
from ensemble.errors import InputError
from ensemble.methods import list_methods
from ensemble.models.prompts import ServedTask
from ensemble.saved.ensemble_json import SavedDefaults, SavedMember

SCHEMA_VERSION = 1


class StrategyFile(Schema, extra="forbid"):
    """``strategy.json``, without the strategy's own keys."""

    # A key of a newer version may change what the strategy does, so unknown ones are refused.
    schema_version: Literal[1]
    """the version of this file's shape"""
    strategy: Exact
    """the name of the strategy"""
    task: ServedTask | None = None
    """how prompts are made and answers read; null if that is not known"""
    generation: SavedDefaults = SavedDefaults()
    """the defaults of the models' responses"""
    models: tuple[SavedMember, ...]
    """the models in the order of `members`, as in ``ensemble.json``"""

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The JSON Schema, with the own keys of all strategies."""
        schema = handler(core)
        return with_own_keys(schema, handler, file_shape_of) if cls is StrategyFile else schema


def strategy_of(values: Mapping[str, Any], place: str, way_out: str, *, to_run: bool = True) -> Strategy:
    """The strategy of a JSON object, for example of a row of ``result.json``; other keys are ignored.

    Args:
        values: The object.
        place: The file and the object, for messages.
        way_out: The end of each message: how to repair the file.
        to_run: Whether it must be a strategy that this installation can run. To show it, any number of members will
            do, and a name that is not known is taken for a method of another package.
    """
    name = values.get("strategy")
    methods = [name for name, method in list_methods().items() if method.level != "response"]
    if not isinstance(name, str) or not name or (to_run and name not in kinds() and name not in methods):
        expected = f"one of {', '.join((*kinds(), *methods))}" if to_run else "the strategy's name"
        raise InputError(f"{place}: strategy should be {expected}; {way_out}")
    kind = kinds().get(name, Decoded)
    own = validated(shape_of(kind, to_run=to_run), values, place, way_out, clean=False)
    given = {key: getattr(own, key) for key in type(own).model_fields}
    strategy = kind(**given) if kind is not Decoded else Decoded(given["members"], name)
    if problem := strategy.problem():
        raise InputError(f"{place}: {problem[0]} should be {problem[1]}; {way_out}")
    return strategy


def strategy_json(strategy: Strategy) -> dict[str, Any]:
    """A strategy as JSON: its name, its members and its own keys."""
    return {"strategy": strategy.name, **_written(shape_of(type(strategy)), strategy, {})}


def file_json(strategy: Strategy, **parts: Any) -> dict[str, Any]:
    """The content of ``strategy.json``; `parts` are the other keys of :class:`StrategyFile`."""
    shape = file_shape_of(type(strategy))
    return _written(shape, strategy, {"schema_version": SCHEMA_VERSION, "strategy": strategy.name, **parts})


@cache
def shape_of(kind: type[Strategy], *, to_run: bool = True) -> type[Schema]:
    """The keys of a kind of strategy, beside its name; see :func:`strategy_of` for `to_run`."""
    members = _members(*kind.MEMBERS) if to_run else Annotated[tuple[Exact, ...], BeforeValidator(_names)]
    keys: dict[str, Any] = {"members": (members, ...), **_own_fields(kind)}
    return create_model(kind.__name__, __base__=Schema, __doc__=kind.__doc__, **keys)


@cache
def file_shape_of(kind: type[Strategy]) -> type[StrategyFile]:
    """``strategy.json`` with the own keys of a kind of strategy."""
    keys: dict[str, Any] = {"members": (_members(*kind.MEMBERS), ...), **_own_fields(kind)}
    return create_model(f"{kind.__name__}File", __base__=StrategyFile, __doc__=kind.__doc__, **keys)


def with_own_keys(
    schema: dict[str, Any], handler: GetJsonSchemaHandler, shape: Callable[[type[Strategy]], type[Schema]]
) -> dict[str, Any]:
    """Add the own keys of all kinds of strategies to the JSON Schema of an object; `shape` states those of a kind."""
    keys = handler.resolve_ref_schema(schema)["properties"]
    for kind in kinds().values():
        own = handler.resolve_ref_schema(handler(shape(kind).__pydantic_core_schema__))
        for name, key in own["properties"].items():
            keys.setdefault(name, key)
    return schema


def _own_fields(kind: type[Strategy]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {
        each.name: (hints[each.name], ...)
        for each in fields(kind)
        # The method of a set is its name.
        if each.name not in ("members", "method")
    }


def _names(value: Any) -> Any:
    if not isinstance(value, list | tuple) or not value or not all(isinstance(each, str) for each in value):
        raise wrong("a list of names")
    return value


def _members(fewest: int, most: int) -> Any:
    expected = "a list of one printable name"
    if most > 1:
        expected = f"a list of {fewest} to {most} different, printable names"

    def fits(names: Any) -> bool:
        return fewest <= len(names) <= most and len(set(names)) == len(names)

    return Annotated[
        tuple[Name, ...], must(fits, expected), Field(json_schema_extra={"uniqueItems": True}, description="the models")
    ]


def _written(shape: type[Schema], strategy: Strategy, parts: Mapping[str, Any]) -> dict[str, Any]:
    own = {each.name: getattr(strategy, each.name) for each in fields(strategy) if each.name in shape.model_fields}
    return written(shape(**own, **parts))
