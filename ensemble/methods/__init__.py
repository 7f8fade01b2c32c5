"""Methods that combine several models, one module for each.

To add a method, add a module to this folder. The method's name is the module's name with ``-`` for ``_``. The module
declares in literal values what the method is,

    METHOD = Method(level="token", summary="what it does", when="when to use it")

and has a function ``make``. The level decides the arguments and the result of ``make``: see
:mod:`ensemble.step.token_method`, :mod:`ensemble.decode.decoder` and ``_response``. If the method has options,
the module also has a frozen data class ``Options``, which raises InputError for a value that is out of range. Users
give options as keyword arguments of :class:`ensemble.Ensemble`. Without ``Options``, ``make`` gets None. A method that
ignores weights refuses unequal ones. ``geometric.py`` is a short example. Other packages add methods by entry points;
see :mod:`ensemble.plugins`.
"""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from ensemble.common.schema import first_fault
from ensemble.errors import InputError, first_line
from ensemble.models.spec import THINK, ModelSpec
from ensemble.plugins import Plugins

Level = Literal["token", "span", "response"]
"""What a method combines: probabilities of the next token, spans of a few words, or whole responses."""
DEFAULT = "unite"
_STRICT = ConfigDict(strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class Method:
    """The declaration of a method.

    Attributes:
        level: What it combines.
        summary: What it does, with its source, in one line.
        when: When to use it, in one line.
        distributed: Whether members can be behind servers. It is True if the method reads only the top candidates of
            each member and the logits of selected ids.
        version: Increased when the method gives other results with the same options; part of the key of stored ones.
        gated: Whether the members decide together only at some steps. When options are scored, they do at all.
        package: The distribution and version of a method from another package, which the registry fills in; None for
            the methods of this project.
    """

    level: Level
    summary: str
    when: str
    distributed: bool = False
    gated: bool = False
    version: int = 1
    package: str | None = None


@cache
def plugins() -> Plugins:
    """The methods of other packages."""
    found = Plugins("method", _builtin(), ("METHOD", "make"))
    for name in found.names:
        try:
            _declaration(found.source(name))
        # A file that is missing or not Python, an unknown or missing keyword, and a value that is not literal.
        except (LookupError, OSError, SyntaxError, TypeError, ValueError) as error:
            found.refuse(name, f"its METHOD cannot be read ({first_line(error)})")
    return found


@cache
def list_methods() -> Mapping[str, Method]:
    """All methods by name: the default method first, then by level and name. No method's module is imported.

    It has the methods of other packages, except for those that cannot be used.
    """
    methods = {name: _declaration(path) for name, path in _builtin().items()}
    for name in plugins().names:
        methods[name] = replace(_declaration(plugins().source(name)), package=plugins().package(name))
    # The default comes first, because `advisor methods` and messages show this order.
    levels = get_args(Level)
    order = sorted(methods, key=lambda name: (name != DEFAULT, levels.index(methods[name].level), name))
    return {name: methods[name] for name in order}


def get_method(name: str, levels: Sequence[Level] = get_args(Level)) -> Method:
    """The declaration of a method.

    Raises:
        InputError: No method has this name, it is that of a plug-in that cannot be used, or its level is not one of
            ``levels``.
    """
    methods = list_methods()
    plugins().check(name)
    names = ", ".join(other for other, method in methods.items() if method.level in levels)
    if name not in methods:
        raise InputError(f"not one of {names}", of=f"method {name!r}")
    if methods[name].level not in levels:
        raise InputError(f"it works at {methods[name].level} level; use one of {names}", of=f"method {name}")
    return methods[name]


def check_members(name: str, specs: Sequence[ModelSpec]) -> None:
    """Raise an InputError if some members are behind servers, and the method needs all in this process."""
    if any(spec.is_remote for spec in specs) and not get_method(name).distributed:
        names = [other for other, method in list_methods().items() if method.distributed]
        raise InputError(
            "it needs the logits of all tokens, and members behind servers send only the likeliest; "
            f"use {', '.join(names[:-1])} or {names[-1]}",
            of=f"method {name}",
        )


def get_module(name: str) -> ModuleType:
    """The module of a method, which has its ``make``; InputError for a plug-in that cannot be used."""
    if name in plugins():
        return plugins().load(name)
    return import_module(f"{__name__}.{name.replace('-', '_')}")


def option_fields(name: str) -> tuple[Field[Any], ...]:
    """The fields of a method's ``Options``; empty if the method has no options."""
    module = get_module(name)
    return fields(module.Options) if hasattr(module, "Options") else ()


def make_options(name: str, given: Mapping[str, object]) -> Any:
    """The ``Options`` of a method from keyword arguments; None for a method without options.

    Raises:
        InputError: The method does not have one of the options, or its value is out of range or of the wrong kind.
    """
    given = dict(given)
    if (think := given.pop(THINK, None)) not in (None, "apart"):
        raise InputError(f"{THINK} {think!r}: not one of apart", of=f"method {name}")
    if think is not None and get_method(name).level != "token":
        raise InputError("think apart is for methods that write single tokens, such as unite", of=f"method {name}")
    known = [field.name for field in option_fields(name)]
    for unknown in [key for key in given if key not in known]:
        raise InputError(f"method {name} has no option {unknown}; it has {', '.join(known) or 'no options'}")
    if not known:
        return None
    options = get_module(name).Options
    # Here for all methods, because `--set` takes any YAML, and a saved ensemble any JSON.
    for key, kind in _kinds(options).items():
        if key in given and (fault := _fault(given[key], kind)) is not None:
            raise InputError(f"{key} {given[key]!r}: {fault}", of=f"method {name}")
    with plugins().running(name):
        return options(**given)


def _kinds(options: type) -> dict[str, Any]:
    """The types of a method's options by their annotations; empty if these cannot be read."""
    try:
        return get_type_hints(options)
    # Annotations in other packages may name what only a type checker imports.
    except (AttributeError, NameError, SyntaxError, TypeError):
        return {}


def _fault(value: object, kind: Any) -> str | None:
    """What is wrong with a value of a type; None if it fits, or pydantic does not know the type."""
    try:
        TypeAdapter(kind, config=_STRICT).validate_python(value)
    except ValidationError as error:
        return first_fault(error, value)
    except PydanticUserError:
        return None
    return None


def _builtin() -> dict[str, Path]:
    """The methods of this project: their names and files."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    return {name.replace("_", "-"): Path(__path__[0], f"{name}.py") for name in names}


def _declaration(path: Path) -> Method:
    """The ``METHOD`` of a module."""
    # The source is parsed and not imported, so that `advisor methods` and a check of a name do not load torch.
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="METHOD")], value=ast.Call(keywords=keywords)):
                found = Method(**{str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords})
                if found.level not in get_args(Level):
                    raise ValueError(f"{path}: level {found.level!r} is not one of {', '.join(get_args(Level))}")
                return found
            case _:
                pass
    raise LookupError(f"{path} has no METHOD = Method(level=..., summary=..., when=...)")
