"""Fingerprints of local models: the files that decide what a model writes, and their hashes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ensemble.common.files import sha256
from ensemble.errors import InputError
from ensemble.models.model_files import BESIDE_GGUF, DECIDING, TEMPLATE
from ensemble.models.spec import Checkpoint


def files_of(checkpoint: Checkpoint) -> list[Path]:
    """The local files that decide what a model writes; empty for a model on the hub, which its commit identifies."""
    if not checkpoint.is_local:
        return []
    folder = Path(checkpoint.location)
    patterns = DECIDING if checkpoint.gguf is None else BESIDE_GGUF
    # By name, because hashes are kept by name. The one file of a folder below goes before another of its name.
    files = {path.name: path for pattern in (*patterns, str(TEMPLATE)) for path in folder.glob(pattern)}
    if checkpoint.gguf is not None:
        files[checkpoint.gguf] = folder / checkpoint.gguf
    return sorted(files.values())


def hashes_of(checkpoint: Checkpoint) -> dict[str, str]:
    """The SHA-256 of each file of a local model, by the file's name; empty for a model on the hub.

    Raises:
        InputError: A file cannot be read.
    """
    try:
        return {path.name: sha256(path) for path in files_of(checkpoint)}
    except OSError as error:
        raise InputError(f"cannot be read ({error}); make its files readable", of=checkpoint.path_or_id) from error


def check_unchanged(checkpoint: Checkpoint, saved: Mapping[str, str], since: str = "the ensemble was saved") -> None:
    """Check that a local model still has the same files.

    Args:
        checkpoint: The model.
        saved: The SHA-256 of each file, by the file's name.
        since: The event when they were saved, for the message.

    Raises:
        InputError: A file differs, is missing or is new; the message names it.
    """
    # Names are compared first, because the hashes of many gigabytes take minutes.
    names = {path.name for path in files_of(checkpoint)}
    if different := sorted(names ^ set(saved)):
        what = "is missing" if different[0] in saved else "is new"
        raise InputError(f"changed since {since} ({different[0]} {what})", of=checkpoint.path_or_id)
    # After the names, so that every name is in both.
    for name, digest in hashes_of(checkpoint).items():
        if digest != saved[name]:
            raise InputError(f"changed since {since} ({name} differs)", of=checkpoint.path_or_id)
