"""Which files of a local model decide what it writes, and how they are told apart."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from ensemble.errors import InputError
from ensemble.models.spec import Checkpoint

_DECIDING = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "*.py")
_CHUNK = 2**20


def files_of(checkpoint: Checkpoint) -> list[Path]:
    """The local files that decide what a model writes; none for a model on the hub, whose commit does."""
    if not checkpoint.is_local:
        return []
    folder = Path(checkpoint.location)
    if checkpoint.gguf is not None:
        return [folder / checkpoint.gguf]
    return sorted({path for pattern in _DECIDING for path in folder.glob(pattern)})


def sha256(path: Path) -> str:
    """The hash of a file's contents."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def hashes_of(checkpoint: Checkpoint) -> dict[str, str]:
    """SHA-256 by the names of a local model's files; empty for one on the hub.

    Raises:
        InputError: A file cannot be read.
    """
    try:
        return {path.name: sha256(path) for path in files_of(checkpoint)}
    except OSError as error:
        raise InputError(f"{checkpoint.path_or_id}: cannot be read ({error}); mend that") from error


def check_unchanged(checkpoint: Checkpoint, saved: Mapping[str, str], since: str = "the ensemble was saved") -> None:
    """Make sure that a local model is still made of the same files.

    Args:
        checkpoint: The model.
        saved: SHA-256 by the names of its files.
        since: When they were those, for messages.

    Raises:
        InputError: It is not; names a file that differs.
    """
    # Names first: hashing many gigabytes can wait until nothing quicker is wrong.
    found = {path.name for path in files_of(checkpoint)}
    if odd := sorted(found ^ set(saved)):
        what = "is not there any more" if odd[0] in saved else "was not there"
        raise InputError(f"{checkpoint.path_or_id}: changed since {since} ({odd[0]} {what})")
    for name, digest in hashes_of(checkpoint).items():
        if digest != saved[name]:
            raise InputError(f"{checkpoint.path_or_id}: changed since {since} ({name} differs)")
