"""Writing a run folder. Each file is written as a whole, or not at all."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.runs.run import Run
from ensemble.common.files import write_text
from ensemble.common.schema import written
from ensemble.common.text import shortened
from ensemble.errors import InputError, UniteError

if TYPE_CHECKING:
    from advisor.runs.schema.result import Result
    from advisor.runs.schema.samples import Sample

_MOST_SETTINGS = 3  # in a message
_LONGEST_SETTING = 60  # characters


def folder_name(name: str) -> str:
    """A folder name for a task: letters, digits, and ``_.-``, which do not begin it."""
    # A leading dot would hide the folder, and a leading hyphen would look like an option.
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "run"


def check_out(out: Path) -> None:
    """Check that a run folder can be written, without leaving a file.

    Raises:
        InputError: The path is a file, or no part of it can be written.
    """
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

    Args:
        out: The run folder.
        settings: The options of the new run by parameter name, and ``models``, as JSON holds them.

    Raises:
        InputError: It has a run with other settings, or a result that cannot be read.
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


def dated(out: Path, result: Result) -> Result:
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


def write_run(out: Path, result: Result, samples: Iterable[Sample]) -> None:
    """Write ``samples.jsonl`` and ``result.json``; a folder with a ``result.json`` is complete.

    The files of an earlier run in this folder stay until the new ones are written. A process that is killed at any
    moment leaves the old files, the new ones, or no ``result.json``.

    Raises:
        UniteError: The folder cannot be written.
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
            # The old result goes first and the new one comes last: at no moment is a result beside another run's
            # samples. The old report would show another run's figures.
            for name in ("result.json", "report.html"):
                (out / name).unlink(missing_ok=True)
            for name in ("samples.jsonl", "result.json"):
                (fresh / name).replace(out / name)
    except OSError as error:
        raise _unwritable(out, error) from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file; see :func:`replace`."""
    replace(path, _json(content))


def replace(path: Path, text: str) -> None:
    """Write a text file in one step: a reader finds the old file or the new one, never a part.

    Raises:
        UniteError: The file cannot be written.
    """
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
