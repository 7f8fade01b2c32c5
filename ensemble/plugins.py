"""Methods, metrics and log formats of other packages, which their entry points name.

    [project.entry-points."unite_advisor.methods"]
    largest = "house.largest"

The entry point's name is the name that users give. Its value is a module with the same members as one of this project.
To find the names imports no module, so that the lists stay quick. A plug-in that cannot be used ends only the commands
that use its name, with one line that names its package.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from ensemble.errors import InputError, UniteError, first_line

# Options join names by commas and points (--methods a,b and --set a.k=5), and messages show them.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class Plugins:
    """The plug-ins of one kind, whose group of entry points is ``unite_advisor.`` and the plural of ``kind``.

    No plug-in may have a name of ``builtin``, and each has what ``members`` names. ``names`` are those that can be
    used, sorted, though a module may still fail when it is loaded; ``problems`` has a line for each that cannot.
    """

    def __init__(self, kind: str, builtin: Collection[str], members: Sequence[str]) -> None:
        self._kind, self._members = kind.replace("_", " "), members
        self._entries: dict[str, EntryPoint] = {}
        self.problems: dict[str, str] = {}
        # "-" and "_" are the same here: method names have the one, module names the other.
        taken = {name.replace("_", "-") for name in builtin}
        for entry in sorted(entry_points(group=f"unite_advisor.{kind}s"), key=lambda entry: entry.name):
            other = self._entries.setdefault(entry.name, entry)
            if not _NAME.fullmatch(entry.name):
                self.refuse(entry.name, "a name has only letters, digits, - and _")
            elif entry.name.replace("_", "-") in taken:
                self.refuse(entry.name, "unite-advisor has a built-in one of this name")
            elif other is not entry:
                self.refuse(entry.name, f"{_package(entry)} has one of this name, too")

    @property
    def names(self) -> tuple[str, ...]:
        """See the class."""
        return tuple(name for name in self._entries if name not in self.problems)

    def __contains__(self, name: str) -> bool:
        """Whether a package has a plug-in of this name, also one that cannot be used."""
        return name in self._entries

    def refuse(self, name: str, reason: str) -> None:
        """Note that a plug-in cannot be used."""
        entry = self._entries[name]
        package = "its package" if entry.dist is None else entry.dist.name
        self.problems[name] = (
            f"{self._kind} {name} of {_package(entry)} (entry point {entry.group}: {entry.name} = {entry.value}) "
            f"cannot be used: {reason}; uninstall {package}, or correct it"
        )

    def check(self, name: str) -> None:
        """Raise an InputError if a name is that of a plug-in that cannot be used."""
        if name in self.problems:
            raise InputError(self.problems[name])

    def version(self, name: str) -> dict[str, str]:
        """The distribution of a plug-in with its version, for a dictionary of versions; empty for other names."""
        dist = self._entries[name].dist if name in self.names else None
        return {} if dist is None else {dist.name: dist.version}

    def label(self, name: str) -> str:
        """A name as lists show it: with the package if it is that of a plug-in."""
        package = self.package(name)
        return name if package is None else f"{name} ({package})"

    def package(self, name: str) -> str | None:
        """The distribution and version of a plug-in that can be used; None for other names."""
        return _package(self._entries[name]) if name in self.names else None

    def source(self, name: str) -> Path:
        """The file of a plug-in's module, importing only the packages around it; LookupError if it does not exist."""
        try:
            # `module` raises AttributeError for a value that is not MODULE or MODULE:NAME.
            spec = find_spec(self._entries[name].module)
        except Exception as error:  # the code of other packages may raise anything
            raise LookupError(f"its module cannot be found: {_described(error)}") from error
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            raise LookupError("it is not a module with a Python file")
        return Path(spec.origin)

    def load(self, name: str) -> ModuleType:
        """The module of a plug-in; InputError if it cannot be used."""
        self.check(name)
        try:
            module = self._entries[name].load()
        except Exception as error:  # the code of other packages may raise anything
            self.refuse(name, f"it cannot be loaded ({_described(error)})")
            raise InputError(self.problems[name]) from error
        if missing := [member for member in self._members if not hasattr(module, member)]:
            self.refuse(name, f"it has no {' and no '.join(missing)}")
            self.check(name)
        loaded: ModuleType = module
        return loaded

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Run code of a plug-in, whose errors other than a UniteError become an InputError; others run as they are."""
        try:
            yield
        except UniteError:
            raise
        except Exception as error:  # the code of other packages may raise anything
            # An error in this project's own code must keep its traceback.
            if name not in self.names:
                raise
            raise InputError(
                f"{self._kind} {self.label(name)}: {_described(error)}; correct the package, or uninstall it"
            ) from error


def version_of(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _package(entry: EntryPoint) -> str:
    return "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
