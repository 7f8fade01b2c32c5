"""A command of the command line, made from the class of its options."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from advisor.options.option import Option, Options, options_of


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """A function with a parameter for each option, as typer reads them, that calls a command with their values.

    Args:
        function: The command; the type of its parameter ``options`` is the class of the options.
    """
    options: type[Options] = get_type_hints(function)["options"]
    fields = {field.name: field for field in dataclasses.fields(options)}
    declared, hints = options_of(options), get_type_hints(options)
    parameters = [_parameter(fields[name], declared[name], hints[name]) for name in declared]

    def call(**given: Any) -> None:
        function(options(**{name: _value(declared[name], fields[name], value) for name, value in given.items()}))

    call.__name__, call.__doc__ = function.__name__, function.__doc__
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return call


def _parameter(field: dataclasses.Field[Any], option: Option, hint: Any) -> Parameter:
    kind, is_optional = _without_none(hint)
    if get_origin(kind) is tuple:
        kind, is_optional = list[get_args(kind)[0]], True  # type: ignore[misc]
    elif get_origin(kind) is Literal or option.read is not None:
        kind = str
    default = Parameter.empty if field.default is dataclasses.MISSING else field.default
    if option.read is not None or default == ():
        default = option.shown_default if option.read is not None else None
    if option.is_argument:
        details: Any = typer.Argument(metavar=option.metavar, help=option.help)
    else:
        shown: dict[str, Any] = {}
        if option.shown_default is not None and option.read is None:
            # An empty text hides it.
            shown["show_default"] = option.shown_default or False
        if option.range_in_help and option.within is not None:
            shown |= {"min": option.within.least, "max": option.within.most}
        details = typer.Option(option.flag, metavar=option.metavar, help=option.help, **shown)
    kind = kind | None if is_optional and default is not Parameter.empty else kind
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, details])


def _without_none(hint: Any) -> tuple[Any, bool]:
    """A type without None, and whether it had it."""
    kinds = [each for each in get_args(hint) if each is not type(None)]
    return (kinds[0], True) if type(None) in get_args(hint) else (hint, False)


def _value(option: Option, field: dataclasses.Field[Any], value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if value is None:
        # typer has no tuple as the default of an option that can be given several times.
        return field.default
    return value if option.read is None else option.read(value)


def command_line() -> str:
    """The command line, for the record."""
    return shlex.join(["advisor", *sys.argv[1:]])


def for_output(text: str) -> str:
    """A model's text for standard output."""
    from ensemble.common.text import visible

    # A terminal would obey escape sequences in it; a file or a program gets the text unchanged.
    return visible(text, keep_lines=True) if sys.stdout.isatty() else text


def print_json(value: Any) -> None:
    """Print a result as JSON."""
    # ASCII, because the reader's encoding is unknown, and so that no escape of a model's text reaches a terminal.
    print(json.dumps(value, indent=2, ensure_ascii=True))
