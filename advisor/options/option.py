"""An option as a field of a data class, and the checks that follow from what the field says."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from ensemble.common.files import LARGEST_NUMBER
from ensemble.common.text import shortened, visible
from ensemble.errors import InputError

T = TypeVar("T")
Source = Literal["models", "logs", "scores"]
"""Where a run's answers come from."""
Panel = Literal[
    "Options",
    "Models and questions",
    "Judge",
    "Logs",
    "Limits",
    "Choosing and verifying",
    "Decoding",
    "Running models",
    "Server",
    "Permissions",
    "Files and output",
]
"""The headings of options in ``--help``, in this order."""
_INSTEAD: Mapping[Source, str] = {
    "logs": "--logs, which gives responses instead of models",
    "scores": "--scores, which gives numbers instead of models",
}
_METADATA = "option"
_PLACES = ("FILE", "TASK", "RUN")
"""What the value of an option is called that may be a path."""
REQUIRED: Any = dataclasses.MISSING


@dataclass(frozen=True)
class Range:
    """The finite values of an option, and what messages call them; `above` and `below` are not among them."""

    words: str
    least: float = -math.inf
    most: float = LARGEST_NUMBER
    above: float = -math.inf
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most and self.above < value < self.below


AT_LEAST_0, AT_LEAST_1 = Range("0 or more", least=0), Range("at least 1", least=1)
PERCENT = Range("points from 0 to 100", least=0, most=100)


@dataclass(frozen=True)
class Option:
    """What is said of an option beside its type and its default."""

    help: str
    flag: str  # its name on the command line, and in messages
    also: str | None = None  # a second flag with the same meaning
    is_argument: bool = False  # it has a place on the command line instead of a flag
    panel: Panel | None = None  # its heading in ``--help``; None for that of its class
    # Of a command with many options only ``--help-all`` shows it; None for what its class says.
    is_rare: bool | None = None
    metavar: str | None = None  # the name of its value in ``--help``; None for the type
    shown_default: str | None = None  # its default in ``--help``; None for the value
    is_setting: bool = True  # it changes figures of a result, so a run folder keeps it
    sources: Collection[Source] = ("models", "logs", "scores")  # the sources of answers with which it has an effect
    # The option, and its values, without which this one has no effect; no values: all but the default.
    needs: tuple[str, tuple[str, ...]] | None = None
    unless: tuple[str, ...] = ()  # options with each of which it has no effect
    within: Range | None = None
    one_of: Collection[str] = ()  # its values, if it has only these
    read: Callable[[str], Any] | None = None  # reads a text of the command line; None for the type's form


def option(default: T, help: str, flag: str = "", **more: Any) -> T:
    """A field that is an option, as :class:`Option` says; its flag has the field's name by default."""
    return dataclasses.field(default=default, metadata={_METADATA: Option(help, flag, **more)})


def argument(help: str, metavar: str, default: Any = REQUIRED, **more: Any) -> Any:
    """A field that has a place on the command line instead of a flag; it is required unless it has a default."""
    found = Option(help, "", is_argument=True, metavar=metavar, is_setting=False, **more)
    return dataclasses.field(default=default, metadata={_METADATA: found})


def changed(group: type[Options], name: str, **changes: Any) -> Any:
    """The field of a group with another ``default`` or other words, for a command in which it means something else."""
    (field,) = (field for field in dataclasses.fields(group) if field.name == name)
    default = changes.pop("default", field.default)
    return dataclasses.field(
        default=default, metadata={_METADATA: dataclasses.replace(field.metadata[_METADATA], **changes)}
    )


@dataclass(frozen=True, kw_only=True)
class Options:
    """The base of all options: values are checked when they are put together.

    A class states the heading of its options in ``--help``, and whether only ``--help-all`` shows them: ``class
    LogsOptions(Options, panel="Logs", are_rare=True)``. An InputError says that a value is out of range, or that an
    option has no effect with the others.
    """

    def __init_subclass__(cls, panel: Panel | None = None, are_rare: bool = False) -> None:
        super().__init_subclass__()
        for field in vars(cls).values():
            if isinstance(field, dataclasses.Field) and (option := field.metadata.get(_METADATA)) is not None:
                is_rare = are_rare if option.is_rare is None else option.is_rare
                stated = dataclasses.replace(option, panel=option.panel or panel, is_rare=is_rare)
                field.metadata = MappingProxyType({_METADATA: stated})

    def __post_init__(self) -> None:
        declared = options_of(type(self))
        fields = (field for field in dataclasses.fields(self) if field.name in declared)
        given = {each.name: declared[each.name] for each in fields if getattr(self, each.name) != each.default}
        for name, each in given.items():
            value = getattr(self, name)
            if isinstance(value, Path) or (isinstance(value, str) and each.metavar in _PLACES):
                # A shell leaves the ~ of --out=~/x to the program. An unknown user's stays as it is.
                object.__setattr__(self, name, type(value)(os.path.expanduser(value)))  # noqa: PTH111
            if each.one_of and value not in each.one_of:
                raise InputError(f"{each.flag} {value}: not one of {', '.join(each.one_of)}")
            if each.within is not None and value not in each.within:
                limit = f", {LARGEST_NUMBER:g} at most" if value > LARGEST_NUMBER else ""
                raise InputError(f"{each.flag} {value:g}: give {each.within.words}{limit}")
        for name, each in given.items():
            self._check_source(each)
            if each.needs is not None:
                self._check_needs(name, each, each.needs, given)
            if other := next((given[field] for field in each.unless if field in given), None):
                raise InputError(f"{each.flag} has no effect with {other.flag}; leave out one of them")

    @property
    def source(self) -> Source | None:
        """Where the answers come from; None for a command that has one source only."""
        return None

    def stored_settings(self) -> dict[str, Any]:
        """The options that are set and change figures, by field, as JSON holds them."""
        settings = {}
        for name in (name for name, each in options_of(type(self)).items() if each.is_setting):
            value = getattr(self, name)
            # By identity: a seed of 0 is set, although 0 equals False.
            if value is not None and value is not False and value != ():
                value = list(value) if isinstance(value, tuple) else value
                settings[name] = str(value) if isinstance(value, Path) else value
        return settings

    def shared(self, kind: type[Any]) -> dict[str, Any]:
        """The values of the fields that another data class has, too."""
        names = (field.name for field in dataclasses.fields(kind))
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def _check_source(self, option: Option) -> None:
        source = self.source
        if source is None or source in option.sources:
            return
        if source in _INSTEAD and set(option.sources) != {"logs"}:
            reason, way_out = f"has no effect with {_INSTEAD[source]}", "leave out one of them"
        else:
            reason, way_out = "is for --logs, and has no effect without it", f"add --logs, or leave out {option.flag}"
        raise InputError(f"{option.flag} {reason}; {way_out}")

    def _check_needs(
        self, name: str, option: Option, needs: tuple[str, tuple[str, ...]], given: Mapping[str, Option]
    ) -> None:
        needed, values = needs
        if getattr(self, needed) in values or (not values and needed in given):
            return
        value = getattr(self, name)
        own = option.flag if isinstance(value, bool) else f"{option.flag} {value}"
        other = " ".join([options_of(type(self))[needed].flag, " or ".join(values)]).rstrip()
        raise InputError(f"{own} has no effect without {other}; add {other}, or leave out {option.flag}")


def options_of(options: type[Options]) -> dict[str, Option]:
    """The options of a class by field, with their flags; fields that are no options are left out."""
    found = {}
    for field in dataclasses.fields(options):
        if (each := field.metadata.get(_METADATA)) is not None:
            flag = each.flag or (each.metavar if each.is_argument else f"--{field.name.replace('_', '-')}")
            found[field.name] = dataclasses.replace(each, flag=flag)
    return found


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
    """The keyword arguments of a function in the types that its options have; InputError for another name or type."""
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
