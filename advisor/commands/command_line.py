"""A command of the command line, made from the class of its options."""

from __future__ import annotations

import dataclasses
import json
import platform
import shlex
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from advisor.options.option import Option, Options, Panel, options_of
from advisor.options.shared import OutputOptions
from ensemble.common.files import move_cache
from ensemble.common.text import shortened, visible
from ensemble.errors import InputError
from ensemble.plugins import version_of

PROFILING = {"label", "select", "profile", "evaluate", "check"}
"""The commands that load models, and cache each response as soon as it is complete."""
GATE_FAILED = 3
"""The exit status if a comparison or a check failed its gate."""
PACKAGES = ("unite-advisor", "torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "datasets")
"""The packages whose versions matter in a bug report."""
_METAVARS = {int: "N", float: "NUMBER", Path: "PATH"}
_NUMBERS = {int: "a whole number", float: "a number"}
_MANY = 12
"""Options of a command above which the rare ones are hidden from ``--help``."""
_LAST: Panel = "Files and output"
"""The heading that every command has at its end."""
_LONGEST_VALUE = 60  # characters of a wrong value in a message
_LONGEST_CHOICES = 16  # characters; more would take the room of the help texts beside them


class GroupedOptions(TyperCommand):
    """A command whose ``--help`` has a heading for each panel of options, as plain text.

    The boxes of typer's own panels leave less than half of 80 columns to the words, and need rich to be imported.
    Options that few people need are hidden until :meth:`show_all`.
    """

    def show_all(self) -> None:
        """Hide no option."""
        for parameter in self.params:
            parameter.hidden = False  # type: ignore[attr-defined]  # each kind has it

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete the names of all options."""
        self.show_all()
        return super().shell_complete(ctx, incomplete)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        sections: dict[str, list[Any]] = {"Arguments": [], **{panel: [] for panel in get_args(Panel)}}
        parameters: list[Any] = self.get_params(ctx)
        for parameter in parameters:
            if (record := parameter.get_help_record(ctx)) is None:
                continue
            if parameter.param_type_name == "argument":
                # The name without the type.
                sections["Arguments"].append((parameter.display_name_raw, record[1]))
            else:
                panel = _LAST if parameter.name == "help" else parameter.rich_help_panel or "Options"
                sections[panel].append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def with_options(command: str, options: type[Options]) -> Callable[..., None]:
    """A function with a parameter for each option, as typer reads them, that runs a command with their values.

    The function of a command has its name, in a module with its name, which is imported when it runs.
    """
    fields = {field.name: field for field in dataclasses.fields(options)}
    declared, hints = options_of(options), get_type_hints(options)
    has_many = len(declared) > _MANY
    parameters = [_parameter(fields[name], declared[name], hints[name], has_many) for name in declared]
    if has_many:
        parameters.append(_help_all(len(declared)))

    def call(**given: Any) -> None:
        values = {name: _value(declared[name], fields[name], hints[name], given[name]) for name in declared}
        chosen = options(**values)
        if isinstance(chosen, OutputOptions) and command in PROFILING:
            from advisor.progress import Progress

            Progress(quiet=chosen.quiet).starting()
        # Before libraries are imported, which read where their caches are.
        if hasattr(chosen, "device") and chosen.source in (None, "models"):
            keep_cache(chosen)
        getattr(import_module(f"advisor.commands.{command}"), command)(chosen)

    call.__name__, call.__doc__ = command, options.__doc__
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return call


def keep_cache(options: Any) -> None:
    """Let responses be stored where models run: beside the run folder if the user's cache cannot be written."""
    place = getattr(options, "out", None) or getattr(options, "run", None)
    if (note := move_cache(Path(place).parent if place else Path("runs"))) is not None:
        from advisor.progress import Progress

        Progress(quiet=getattr(options, "quiet", False)).say(note)


def _parameter(field: dataclasses.Field[Any], option: Option, hint: Any, has_many: bool) -> Parameter:
    kind, is_optional = _without_none(hint)
    if get_origin(kind) is tuple:
        kind, is_optional = list[get_args(kind)[0]], True  # type: ignore[misc]
    choices = "|".join(option.one_of)
    metavar = option.metavar or (choices if 0 < len(choices) <= _LONGEST_CHOICES else _METAVARS.get(kind, "TEXT"))
    default = Parameter.empty if field.default is dataclasses.MISSING else field.default
    if kind in _NUMBERS:
        # typer's words for a text that is no number are those of a library.
        kind, default = str, None if default is None else str(default)
    elif get_origin(kind) is Literal or option.read is not None:
        kind = str
    if option.read is not None or default == ():
        default = option.shown_default if option.read is not None else None
    if option.is_argument:
        details: Any = typer.Argument(metavar=option.metavar, help=option.help)
    else:
        shown: dict[str, Any] = {}
        if option.shown_default is not None and option.read is None:
            # An empty text hides it.
            shown["show_default"] = option.shown_default or False
        flags = [option.flag, *filter(None, [option.also])]
        shown |= {"rich_help_panel": option.panel, "hidden": has_many and option.is_rare}
        details = typer.Option(*flags, metavar=metavar, help=option.help, **shown)
    kind = kind | None if is_optional and default is not Parameter.empty else kind
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, details])


def _help_all(options: int) -> Parameter:
    """``--help-all``, which shows the help with all options."""

    def show(context: typer.Context, is_given: bool) -> None:
        if is_given and isinstance(context.command, GroupedOptions):
            context.command.show_all()
            print(context.get_help())
            raise typer.Exit

    details: Any = typer.Option(
        "--help-all",
        is_eager=True,
        callback=show,
        help=f"Show all {options} options and exit.",
        rich_help_panel=_LAST,
    )
    return Parameter("help_all", Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, details])


def _without_none(hint: Any) -> tuple[Any, bool]:
    """A type without None, and whether it had it."""
    kinds = [each for each in get_args(hint) if each is not type(None)]
    return (kinds[0], True) if type(None) in get_args(hint) else (hint, False)


def _value(option: Option, field: dataclasses.Field[Any], hint: Any, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if value is None:
        # typer has no tuple as the default of an option that can be given several times.
        return field.default
    if option.read is not None:
        return option.read(value)
    kind = _without_none(hint)[0]
    if kind not in _NUMBERS:
        return value
    try:
        return kind(value)
    except ValueError:
        raise InputError(f"{option.flag} {shortened(value, _LONGEST_VALUE)}: give {_NUMBERS[kind]}") from None


def versions() -> dict[str, str]:
    """Versions of Python, of the packages and of the system; no package is imported."""
    found = {package: number for package in PACKAGES if (number := version_of(package)) is not None}
    system = f"{platform.system()} {platform.machine()}"
    return {"python": platform.python_version(), **found, "system": system}


def command_line() -> str:
    """The command line, for the record."""
    return shlex.join(["advisor", *sys.argv[1:]])


def for_output(text: str) -> str:
    """A model's text for standard output."""
    # A terminal would obey escape sequences in it; a file or a program gets the text unchanged.
    return visible(text, keep_lines=True) if sys.stdout.isatty() else text


def print_json(value: Any) -> None:
    """Print a result as JSON."""
    # ASCII, because the reader's encoding is unknown, and so that no escape of a model's text reaches a terminal.
    print(json.dumps(value, indent=2, ensure_ascii=True))


def print_found(options: OutputOptions, found: Mapping[str, Any]) -> None:
    """Print what a command found: as JSON, or its text."""
    if options.as_json:
        print_json(found)
    else:
        print(visible(found["text"]))
