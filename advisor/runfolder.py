"""Writing a run folder: each file whole, or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ensemble.errors import InputError


def check_out(out: Path) -> None:
    """Make sure that a run folder can be written, writing nothing.

    Raises:
        InputError: It is a file, or no part of its path can be written.
    """
    nearest = next(path for path in [out, *out.absolute().parents] if path.exists())
    if not nearest.is_dir():
        raise InputError(f"--out {out}: {nearest} is a file; give a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"--out {out}: {nearest} cannot be written; give another folder")


def write_run(out: Path, result: Mapping[str, Any], samples: Iterable[Mapping[str, Any]]) -> None:
    """Write ``samples.jsonl`` and ``result.json``, the latter last."""
    out.mkdir(parents=True, exist_ok=True)
    # Escaped to ASCII, so that no line separator in a response is taken for the end of a line.
    replace(out / "samples.jsonl", "".join(f"{json.dumps(sample)}\n" for sample in samples))
    replace(out / "result.json", f"{json.dumps(result, indent=2, allow_nan=False)}\n")


def replace(path: Path, text: str) -> None:
    """Put a text in a file's place at once: whoever reads it sees the old one or the new one, whole."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        # A temporary file is its owner's alone; a result is as readable as any other file.
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
