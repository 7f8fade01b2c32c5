"""A run folder: opened and checked once, and its files, each read when it is needed and written as a whole."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ensemble.common.files import exists, write_text
from ensemble.common.schema import read_json, read_lines, validated, written
from ensemble.common.text import shortened
from ensemble.errors import InputError, UniteError

if TYPE_CHECKING:
    from advisor.run.evaluation import Evaluation
    from advisor.run.figures import Sample
    from advisor.run.result import Result


WAY_OUT = "run `advisor select` again, or restore the file"
TASK = "task"
"""The folder with the user's task file and its data, in a run folder."""
LARGEST_SAMPLES = 2**29
"""Bytes of ``samples.jsonl`` that commands read besides the report, which shows what it has room for."""


class Run:
    """A run folder. It may come from a stranger, so all that is read of it is checked."""

    def __init__(self, folder: Path, way_out: str = WAY_OUT) -> None:
        self.folder, self._way_out = folder, way_out

    @classmethod
    def open(cls, folder: Path, way_out: str = WAY_OUT) -> Run:
        """Open a run folder; `way_out` is the end of messages on its ``result.json``."""
        path = folder / "result.json"
        # A pipe or a device in its place would be read without end.
        if not (exists(path) and path.is_file()):
            is_missing = "this folder has no result.json" if exists(folder) else "no such folder"
            problem = "this is a file" if exists(folder) and folder.is_file() else is_missing
            raise InputError(f"{folder}: {problem}; give a run folder that `advisor select` wrote")
        return cls(folder, way_out)

    @property
    def file(self) -> Path:
        """``result.json``, which names the models and their servers."""
        return self.folder / "result.json"

    @property
    def place(self) -> str:
        """The file of the result, for messages."""
        return str(self.file)

    @cached_property
    def result(self) -> Result:
        """``result.json``; an InputError if it is broken."""
        from advisor.run.result import Result

        return validated(Result, read_json(self.file, self._way_out), self.place, self._way_out)

    def samples(self) -> Iterator[Sample]:
        """The lines of ``samples.jsonl``, one after the other; an InputError if it is missing or broken."""
        return self._samples(clean=True)

    def samples_for(self, use: str) -> Iterator[Sample]:
        """The lines of ``samples.jsonl`` with texts as they were written, for a command that cannot do without them.

        `use` says for messages what the file is needed for.
        """
        path = self.folder / "samples.jsonl"
        if not path.is_file() or path.stat().st_size > LARGEST_SAMPLES:
            raise InputError(
                f"{path}: {use}, and it is missing, or larger than {LARGEST_SAMPLES >> 20} MiB; run `advisor select` "
                "again"
            )
        return self._samples(clean=False)

    def _samples(self, *, clean: bool) -> Iterator[Sample]:
        from advisor.run.figures import Sample

        return read_lines(Sample, self.folder / "samples.jsonl", WAY_OUT, clean=clean)

    @cached_property
    def evaluation(self) -> Evaluation | None:
        """``evaluation.json``; None without one, because most runs were never evaluated."""
        from advisor.run.evaluation import Evaluation

        path, way_out = self.folder / "evaluation.json", "run `advisor evaluate` again, or delete the file"
        return validated(Evaluation, read_json(path, way_out), str(path), way_out) if path.exists() else None


_MOST_SETTINGS = 3  # in a message
_LONGEST_SETTING = 60  # characters


def folder_name(name: str) -> str:
    """A folder name for a task: letters, digits, and ``_.-``, which do not begin it."""
    # A leading dot would hide the folder, and a leading hyphen would look like an option.
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "run"


def check_out(out: Path) -> None:
    """Check that a run folder can be written, without leaving a file."""
    try:
        # The folder itself need not exist: the nearest one that does decides.
        nearest = next(path for path in [out, *out.absolute().parents] if path.exists())
    except OSError as error:
        raise InputError(f"--out {out}: cannot be used ({error}); give another folder") from None
    if not nearest.is_dir():
        raise InputError(f"--out {out}: {nearest} is a file; give a folder")
    try:
        # A real write, because some file systems refuse what their permissions allow.
        tempfile.TemporaryDirectory(dir=nearest).cleanup()
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"--out {out}: cannot write to {nearest} ({reason}); give another folder") from None


def check_settings(out: Path, settings: Mapping[str, Any]) -> None:
    """Check that a run folder is new, or has a run with the same settings, whose result would be the same.

    The settings are the options by parameter name, and ``models``, as JSON holds them.
    """
    path, way_out = out / "result.json", "give another --out, or --force to replace it"
    if not path.exists():
        return
    earlier = Run.open(out, way_out).result.provenance.settings
    if earlier is None:
        raise InputError(f"--out {out}: it has a run whose settings are not known; {way_out}")
    names = [name for name in {**earlier, **settings} if earlier.get(name) != settings.get(name)]
    if len(names) > 1 and "questions" in names:
        names.remove("questions")  # the other settings say why the questions differ
    if names:
        other = "; ".join(_difference(name, earlier.get(name), settings.get(name)) for name in names[:_MOST_SETTINGS])
        more = f"; and {len(names) - _MOST_SETTINGS} more" if len(names) > _MOST_SETTINGS else ""
        raise InputError(f"--out {out}: it has a run with other settings ({other}{more}); {way_out}")


def keep_first_date(out: Path, result: Result) -> Result:
    """The result with the time at which it was first written; the same result in this folder keeps its date and loads.

    Where all responses are stored, no model is loaded again.
    """

    def on(date: str, **changed: object) -> Result:
        provenance = result.provenance.model_copy(update={"date": date, **changed})
        return result.model_copy(update={"provenance": provenance})

    path = out / "result.json"
    if path.is_file():
        # A file that cannot be read is replaced: then --force was given.
        with suppress(InputError, OSError, UnicodeError):
            first = Run.open(out).result.provenance
            if first.date:
                same = on(first.date, **({"loads": first.loads} if "loads" in first.model_fields_set else {}))
                if path.read_text(encoding="utf-8") == _json(written(same)):
                    return same
    return on(datetime.now(timezone.utc).isoformat(timespec="seconds"))


def write_run(
    out: Path, result: Result, samples: Iterable[Sample], files: Mapping[str, Path] = MappingProxyType({})
) -> None:
    """Write ``samples.jsonl`` and ``result.json``; a folder with a ``result.json`` is complete.

    The files of the task are copied to their paths in the folder :data:`TASK`, for later commands and other machines.
    The files of an earlier run in this folder stay until the new ones are written. A process that is killed at any
    moment leaves the old files, the new ones, or no ``result.json``.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        # In the folder itself, because a rename is atomic only within one file system.
        with tempfile.TemporaryDirectory(dir=out) as folder:
            fresh = Path(folder)
            # ASCII escapes keep Unicode's line separators in a response from ending a line.
            with (fresh / "samples.jsonl").open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{json.dumps(written(sample), allow_nan=False)}\n" for sample in samples)
            (fresh / "result.json").write_text(_json(written(result)), encoding="utf-8", newline="\n")
            for name, path in files.items():
                place = fresh / TASK / name
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)
            # The old result goes first and the new one comes last: at no moment is a result beside another run's
            # samples. The old report would show another run's figures.
            for name in ("result.json", "report.html"):
                (out / name).unlink(missing_ok=True)
            shutil.rmtree(out / TASK, ignore_errors=True)
            for name in (*([TASK] if files else []), "samples.jsonl", "result.json"):
                (fresh / name).replace(out / name)
    except OSError as error:
        raise _unwritable(out, error) from error


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Keep a run folder from other processes that would write into it meanwhile; UniteError if one does already.

    The system ends the lock of a process that is killed. On Windows, and where the file system has none, nothing is
    locked.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    made, note = [each for each in (out, *out.parents) if not each.exists()], out / ".running"
    out.mkdir(parents=True, exist_ok=True)
    folder = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        other = note.read_text(encoding="utf-8")[:20] if note.is_file() else "another"
        raise UniteError(
            f"{out}: the process {other} writes into this folder now; wait until it ends, or give another --out"
        ) from None
    except OSError:  # the file system has no locks
        pass
    try:
        with suppress(OSError):  # where it cannot be written, the command itself says so
            note.write_text(str(os.getpid()), encoding="utf-8")
        yield
    finally:
        # A run that failed leaves no empty folders.
        with suppress(OSError):
            note.unlink(missing_ok=True)
            for each in made:
                each.rmdir()
        os.close(folder)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file; see :func:`replace`."""
    replace(path, _json(content))


def replace(path: Path, text: str) -> None:
    """Write a text file in one step: a reader finds the old file or the new one, never a part."""
    try:
        write_text(path, text)
    except OSError as error:
        raise _unwritable(path, error) from error


def _difference(name: str, earlier: Any, now: Any) -> str:
    """A setting of an earlier run beside that of this one. The earlier file may be a stranger's."""
    if name == "questions":
        return "its questions were others"
    option = name if name == "models" else f"--{name.replace('_', '-')}"
    return f"{option} was {_shown(earlier)}, and is {_shown(now)}"


def _shown(value: Any) -> str:
    if value is None or value is True:
        return "not given" if value is None else "given"
    return shortened(", ".join(map(str, value)) if isinstance(value, list) else str(value), _LONGEST_SETTING)


def _json(content: Mapping[str, Any]) -> str:
    return f"{json.dumps(content, indent=2, allow_nan=False)}\n"


def _unwritable(path: Path, error: OSError) -> UniteError:
    return UniteError(
        f"{path}: cannot be written ({error}); correct that or give another --out, then run the command again: "
        "the cache keeps all responses"
    )
