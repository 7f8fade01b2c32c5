"""A finished run: its folder, opened and checked once, and its files, each read when it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ensemble.common.files import exists
from ensemble.common.schema import Schema, read_json, read_lines, validated
from ensemble.errors import InputError

if TYPE_CHECKING:
    from advisor.runs.schema.evaluation import Evaluation
    from advisor.runs.schema.result import Result
    from advisor.runs.schema.samples import Sample

_Model = TypeVar("_Model", bound=Schema)
WAY_OUT = "run `advisor select` again, or restore the file"
LARGEST_SAMPLES = 2**29
"""Bytes of ``samples.jsonl`` that commands read besides the report, which shows what it has room for."""


class Run:
    """A run folder. It may come from a stranger, so all that is read of it is checked.

    Attributes:
        folder: The folder.
    """

    def __init__(self, folder: Path, way_out: str = WAY_OUT) -> None:
        self.folder, self._way_out = folder, way_out

    @classmethod
    def open(cls, folder: Path, way_out: str = WAY_OUT) -> Run:
        """Open a run folder.

        Args:
            folder: The folder.
            way_out: The end of messages on its ``result.json``.

        Raises:
            InputError: It is not a run folder.
        """
        path = folder / "result.json"
        # A pipe or a device in its place would be read without end.
        if not (exists(path) and path.is_file()):
            is_missing = "this folder has no result.json" if exists(folder) else "no such folder"
            problem = "this is a file" if exists(folder) and folder.is_file() else is_missing
            raise InputError(f"{folder}: {problem}; give a run folder that `advisor select` wrote")
        return cls(folder, way_out)

    @property
    def place(self) -> str:
        """The file of the result, for messages."""
        return str(self.folder / "result.json")

    @cached_property
    def result(self) -> Result:
        """``result.json``.

        Raises:
            InputError: It is broken, or an older version wrote it.
        """
        from advisor.runs.schema.result import Result

        return _versioned(Result, self.folder / "result.json", self._way_out)

    @property
    def has_samples(self) -> bool:
        """Whether there is a ``samples.jsonl``."""
        return (self.folder / "samples.jsonl").exists()

    def samples(self) -> Iterator[Sample]:
        """The lines of ``samples.jsonl``, one after the other.

        Raises:
            InputError: The file is missing, or a line is broken.
        """
        return self._samples(clean=True)

    def samples_for(self, use: str) -> Iterator[Sample]:
        """The lines of ``samples.jsonl`` with texts as they were written, for a command that cannot do without them.

        Args:
            use: What the file is needed for, for messages.

        Raises:
            InputError: The file is missing or too large, or a line is broken.
        """
        path = self.folder / "samples.jsonl"
        if not path.is_file() or path.stat().st_size > LARGEST_SAMPLES:
            raise InputError(
                f"{path}: {use}, and it is missing, or larger than {LARGEST_SAMPLES >> 20} MiB; run `advisor select` "
                "again"
            )
        return self._samples(clean=False)

    def _samples(self, *, clean: bool) -> Iterator[Sample]:
        from advisor.runs.schema.samples import Sample

        return read_lines(Sample, self.folder / "samples.jsonl", WAY_OUT, clean=clean)

    @cached_property
    def evaluation(self) -> Evaluation | None:
        """``evaluation.json``; None without one, because most runs were never evaluated.

        Raises:
            InputError: It is broken, or an older version wrote it.
        """
        from advisor.runs.schema.evaluation import Evaluation

        path = self.folder / "evaluation.json"
        return (
            _versioned(Evaluation, path, "run `advisor evaluate` again, or delete the file") if path.exists() else None
        )


def _versioned(model: type[_Model], path: Path, way_out: str) -> _Model:
    values: dict[str, Any] = read_json(path, way_out)
    version = values.get("schema_version")
    if type(version) is int and version < 2:
        command = "select" if path.name == "result.json" else "evaluate"
        raise InputError(
            f"{path}: an older version wrote it; run `advisor {command}` again with the same options: stored responses "
            "are used"
        )
    return validated(model, values, str(path), way_out)
