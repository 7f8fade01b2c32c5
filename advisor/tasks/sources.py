"""Where a task's records come from, behind one protocol: files beside the task, files below --data, or the hub."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from advisor.tasks.datafiles import read_parallel, read_records
from advisor.tasks.dataspec import DataSpec, Files
from advisor.tasks.record import Record
from ensemble.errors import InputError


class Source(Protocol):
    """The splits of a task's data.

    Attributes:
        packages: Distributions that the records came through; their versions go into the signature.
    """

    packages: tuple[str, ...]

    def split_of(self, role: str) -> str:
        """Name of the split that serves as ``dev``, ``held_out`` or ``shots``; another name is a split's own.

        Shots come from the split of dev where the task names none for them.
        """

    def is_same(self, first: str, second: str) -> bool:
        """Whether two roles are served by the same data."""

    def records(self, split: str) -> list[Record]:
        """All records of a split, in the order of the data.

        Raises:
            InputError: There is no such split, or its data cannot be read.
        """


class FileSource:
    """Splits that are files.

    Args:
        spec: The task's ``data``, for which split serves as what, unless a split has the role's own name.
        file: The task file, for messages.
        base: The folder that the paths are relative to.
        splits: Files of each split; a path may be a pattern such as ``val/*.jsonl``.
        hint: What the user can do where a file is not there.
    """

    packages: tuple[str, ...] = ()

    def __init__(self, spec: DataSpec, file: Path, base: Path, splits: Mapping[str, Files], *, hint: str) -> None:
        self._spec, self._file, self._base, self._splits, self._hint = spec, file, base, splits, hint

    def split_of(self, role: str) -> str:
        """A split of the role's own name goes first, so that local data may be divided otherwise than the hub's."""
        if role in self._splits:
            return role
        if role == "shots" and role not in self._spec.roles:
            return self.split_of("dev")
        return self._spec.roles.get(role, role)

    def is_same(self, first: str, second: str) -> bool:
        """Whether two roles are served by the same files, under whatever names."""
        one, other = self.split_of(first), self.split_of(second)
        if one == other:
            return True
        # Conditions divide a file; those of two splits are taken to exclude each other.
        conditional = one in self._spec.where or other in self._spec.where
        return not conditional and one in self._splits and self._splits[one] == self._splits.get(other)

    def records(self, split: str) -> list[Record]:
        """Read the split's files, and leave out what does not belong to it."""
        return self._spec.belonging(split, self._read(split))

    def _read(self, split: str) -> list[Record]:
        files = self._splits.get(split)
        if files is None:
            raise InputError(f"{self._file}: there is no split '{split}'; choose among {_listed(self._splits)}")
        if not isinstance(files, str):
            return read_parallel({field: self._existing(path) for field, path in files.items()})
        if "*" not in files:
            return read_records(self._existing(files))
        paths = sorted(self._base.glob(files))
        if not paths:
            raise InputError(f"{self._base / files} matches no file; {self._hint}")
        return [record for path in paths for record in read_records(path, path.stem)]

    def _existing(self, relative: str) -> Path:
        path = self._base / relative
        if not path.exists():
            raise InputError(f"{path} is not there; {self._hint}")
        return path


def open_source(spec: DataSpec, file: Path, data_dir: Path | None) -> Source:
    """Choose the source: files beside the task file, else files below ``data_dir`` where one is given, else the hub.

    Args:
        spec: The task's ``data``.
        file: The task file.
        data_dir: The user's --data.

    Raises:
        InputError: The task wants a data folder and there is none, or it cannot use one.
    """
    if spec.files:
        return FileSource(spec, file, file.parent, spec.files, hint=f"correct the path in {file}")
    if data_dir is not None:
        if not data_dir.is_dir():
            raise InputError(f"{data_dir} is no folder; give --data the folder that holds {_first_path(spec.local)}")
        if not spec.local:
            raise InputError(f"{file}: data.local is missing, so --data says nothing; add it, or leave out --data")
        hint = "give --data the folder that the task's files are in" + (
            ", or leave it out to use the hub" if spec.hub else ""
        )
        return FileSource(spec, file, data_dir, spec.local, hint=hint)
    if spec.hub is None:
        raise InputError(
            f"{file}: this data is not on the hub; give --data the folder that holds {_first_path(spec.local)}"
        )
    from advisor.tasks.hub import HubSource  # the hub's libraries are slow to load

    return HubSource(spec, file)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _first_path(local: Mapping[str, Files]) -> str:
    for files in local.values():
        return files if isinstance(files, str) else next(iter(files.values()))
    return "the data"
