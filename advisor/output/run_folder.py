"""Writing a run folder: each file whole, or not at all."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ensemble.errors import InputError, UniteError


def folder_name(name: str) -> str:
    """A task's name as that of a folder: letters, digits, and ``_.-`` that do not begin it."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "run"


def check_out(out: Path) -> None:
    """Make sure that a run folder can be written, leaving nothing there.

    Raises:
        InputError: It is a file, or no part of its path can be written.
    """
    try:
        nearest = next(path for path in [out, *out.absolute().parents] if path.exists())
    except OSError as error:
        raise InputError(f"--out {out}: cannot be used ({error}); give another folder") from None
    if not nearest.is_dir():
        raise InputError(f"--out {out}: {nearest} is a file; give a folder")
    try:
        # Tried, since some file systems take nothing that their permissions would allow.
        tempfile.TemporaryDirectory(dir=nearest).cleanup()
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"--out {out}: nothing can be written to {nearest} ({reason}); give another folder") from None


def write_run(out: Path, result: Mapping[str, Any], samples: Iterable[Mapping[str, Any]]) -> None:
    """Write ``samples.jsonl`` and ``result.json``, the latter last."""
    # Escaped to ASCII, so that no line separator in a response is taken for the end of a line.
    replace(out / "samples.jsonl", "".join(f"{json.dumps(sample, allow_nan=False)}\n" for sample in samples))
    replace(out / "result.json", f"{json.dumps(result, indent=2, allow_nan=False)}\n")


def replace(path: Path, text: str) -> None:
    """Put a text in a file's place at once: whoever reads it sees the old one or the new one, whole.

    Raises:
        UniteError: It cannot be written.
    """
    try:
        _replace(path, text)
    except OSError as error:
        raise UniteError(
            f"{path}: cannot be written ({error}); mend that or give another --out, and run the same command again: "
            "all responses are kept"
        ) from error


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text, encoding="utf-8", newline="\n")
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
