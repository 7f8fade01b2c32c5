"""Ways of combining what the members want, one small file each.

Adding one is adding a module here; its name, with ``-`` for ``_``, is the method's. It declares what it is in plain
values,

    METHOD = Method(level="token", summary="what it does", when="when to use it")

and has a function ``make`` by the protocol of its level: see ``_token``, ``_span`` and ``_response``. Where the method
has settings of its own, they are the fields of a frozen data class ``Options``, which raises InputError for a value
that is out of range; users give them as keyword arguments of :class:`ensemble.Ensemble`.

A declaration is read from the source, not imported, so that listing the methods and checking a name load no torch.
"""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

from ensemble.errors import InputError

Level = Literal["token", "span", "response"]
"""What is combined: next-token probabilities, stretches of a few words, or whole responses."""
DEFAULT = "unite"


@dataclass(frozen=True, slots=True)
class Method:
    """What a method is.

    Attributes:
        level: What it combines.
        summary: What it does, with its source, in a line.
        when: When to use it, in a line.
        apart: Whether members may be on nodes of their own: of their logits it needs no more than top candidates, and
            those of ids that it asks for.
    """

    level: Level
    summary: str
    when: str
    apart: bool = False


@dataclass(frozen=True, slots=True)
class NoOptions:
    """The settings of a method that has none of its own."""


@cache
def list_methods() -> Mapping[str, Method]:
    """All methods by name: the default one, then level by level. Imports none of them."""
    modules = (module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    found = {name.replace("_", "-"): _declaration(Path(__path__[0], f"{name}.py")) for name in modules}
    levels = get_args(Level)
    order = sorted(found, key=lambda name: (name != DEFAULT, levels.index(found[name].level), name))
    return {name: found[name] for name in order}


def get_method(name: str, levels: Sequence[Level] = get_args(Level)) -> Method:
    """The method of that name.

    Raises:
        InputError: There is none, or it is of another level than those asked for.
    """
    methods = list_methods()
    fitting = [other for other, method in methods.items() if method.level in levels]
    if name in methods and name not in fitting:
        raise InputError(f"method {name}: it works at {methods[name].level} level; use one of {', '.join(fitting)}")
    if name not in methods:
        raise InputError(f"method {name!r}: not one of {', '.join(fitting)}")
    return methods[name]


def check_apart(name: str) -> None:
    """Make sure that a method can do with members on nodes of their own.

    Raises:
        InputError: It cannot.
    """
    if not get_method(name).apart:
        fitting = [other for other, method in list_methods().items() if method.apart]
        raise InputError(
            f"method {name}: it cannot run on a cluster, as it needs more of its members than the top candidates and "
            f"asked-for logits that are sent; use {', '.join(fitting[:-1])} or {fitting[-1]}"
        )


def get_module(name: str) -> ModuleType:
    """The module of a method, which has its ``make``."""
    return import_module(f"{__name__}.{name.replace('-', '_')}")


def make_options(name: str, given: Mapping[str, object]) -> Any:
    """The settings of a method from keyword arguments: an ``Options`` of its module.

    Raises:
        InputError: The method has no such setting, or its value is out of range.
    """
    options: Any = getattr(get_module(name), "Options", NoOptions)
    known = [field.name for field in fields(options)]
    for unknown in [key for key in given if key not in known]:
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise InputError(f"method {name} has no option {unknown}; {has}")
    return options(**given)


def _declaration(path: Path) -> Method:
    """The ``METHOD`` of a module, whose arguments are literals."""
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="METHOD")], value=ast.Call(keywords=keywords)):
                return Method(**{str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords})
            case _:
                pass
    raise LookupError(f"{path}: no METHOD = Method(level=..., summary=..., when=...)")
