"""The user's cache folder, the hash of a file, and files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

LARGEST_NUMBER = 1e18
"""That a file holds: a sum, a square or a ratio of larger ones may not be finite, and nothing measured comes near."""


def default_cache_dir() -> Path:
    """``unite-advisor`` in the user's cache folder (``XDG_CACHE_HOME``, or else ``~/.cache``)."""
    # Not Path.expanduser, which fails for a user without a name.
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")) / "unite-advisor"  # noqa: PTH111


def move_cache(beside: Path) -> str | None:
    """Take a folder beside another one for what is cached, if the user's cannot be written; a note on it, or None.

    The libraries follow, if they are imported later; the models that the hub's own cache has stay in use.
    """
    usual = default_cache_dir()
    places = [place.absolute() / ".cache" for place in (beside, Path(tempfile.gettempdir()))]
    folder = next((place for place in places if _can_write(place)), None)
    if _can_write(usual) or folder is None:
        return None
    if (usual.parent / "huggingface").is_dir():
        os.environ.setdefault("HF_HOME", str(usual.parent / "huggingface"))
    os.environ["XDG_CACHE_HOME"] = str(folder)
    return f"{usual} cannot be written, so what is cached goes to {folder}"


def _can_write(folder: Path) -> bool:
    """Whether a folder can be written, or made."""
    there = next((str(place) for place in (folder, *folder.parents) if os.path.exists(place)), "")  # noqa: PTH110
    # A ~ that is left is the home of a user without one.
    return folder.parts[:1] != ("~",) and os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)  # noqa: PTH112


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        # In chunks, because a file can be larger than the memory.
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


def remembered_sha256(path: Path, *, keep: bool = True) -> str:
    """The SHA-256 of a file, computed again only if its size, inode or times changed; the user's cache keeps it."""
    name = os.path.realpath(path)
    status = path.stat()
    # A copy may keep the old time of modification; the time of its directory entry is always new.
    state = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    note = default_cache_dir() / "hashes" / f"{hashlib.sha256(os.fsencode(name)).hexdigest()}.json"
    try:
        kept_state, digest = json.loads(note.read_text(encoding="utf-8"))
        if kept_state == state and re.fullmatch("[0-9a-f]{64}", digest):
            return str(digest)
    except (OSError, ValueError, TypeError):
        pass
    digest = sha256(path)
    with contextlib.suppress(OSError):
        if keep:
            write_text(note, json.dumps([state, digest]))
    return digest


def exists(path: str | Path) -> bool:
    """Whether a path exists; False for a text that cannot be a path, for example one that is too long."""
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long or unreadable; ~ with an unknown user; a null character
        return False


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file, and its folder, so that others see the old or the new content; an OSError leaves it unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The temporary folder is beside the file, because a rename is atomic only within one file system.
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        fresh = Path(folder) / path.name
        write(fresh)
        fresh.replace(path)


def write_text(path: Path, text: str) -> None:
    """Write a text file as UTF-8, whole or not at all; see :func:`write_whole`."""
    write_whole(path, lambda fresh: fresh.write_text(text, encoding="utf-8", newline="\n"))
