"""The store: every response, kept the moment it exists, so that nothing is computed twice.

An SQLite file. A response is filed under a hash of all that decides it: the members' files, the numeric type, the
prompt and the settings. Scores are not kept; they are computed from the responses.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from advisor.records import FinishReason
from ensemble.errors import InputError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, size INTEGER, changed INTEGER, sha256 TEXT) WITHOUT ROWID;
"""
_AT_A_TIME = 500
"""Keys in one query; SQLite allows 999 in old builds."""


@dataclass(frozen=True, slots=True)
class Response:
    """What a model, or an ensemble, wrote after a prompt.

    Attributes:
        text: Untrusted text.
        tokens: How many the primary emitted.
        finish_reason: Why it ended.
        seconds: Its share of the time that its batch took.
        error: One line of what went wrong, where there is no response.
    """

    text: str
    tokens: int
    finish_reason: FinishReason
    seconds: float
    error: str | None = None


def key_of(question: Mapping[str, Any]) -> str:
    """The key of a response: SHA-256 of all that decides it."""
    return hashlib.sha256(json.dumps(question, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


class Store:
    """An open store; a context manager that closes it.

    Args:
        folder: Where its file is, and is made if need be.

    Attributes:
        notes: What its user should know, a sentence each.

    Raises:
        InputError: The folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.notes: list[str] = []
        path = folder / "responses.sqlite"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._connection = self._open(path)
        except (OSError, sqlite3.OperationalError) as error:
            raise InputError(
                f"--cache-dir {folder}: responses cannot be kept there ({error}); give a folder that can be written"
            ) from None

    def _open(self, path: Path) -> sqlite3.Connection:
        try:
            return _connect(path)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            aside = path.with_name(f"{path.stem}.damaged-{int(time.time())}{path.suffix}")
            for ending in ("", "-wal", "-shm"):
                if Path(f"{path}{ending}").exists():
                    Path(f"{path}{ending}").rename(f"{aside}{ending}")
            self.notes.append(
                f"the store {path} is damaged ({error}); it was set aside as {aside.name}, a new one begun"
            )
            return _connect(path)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()

    def get(self, keys: Iterable[str]) -> dict[str, Response]:
        """The responses that are there, by key."""
        wanted = list(keys)
        found: dict[str, Response] = {}
        for start in range(0, len(wanted), _AT_A_TIME):
            part = wanted[start : start + _AT_A_TIME]
            marks = ",".join("?" * len(part))
            rows = self._connection.execute(f"SELECT key, value FROM responses WHERE key IN ({marks})", part)
            found.update({key: Response(**json.loads(value)) for key, value in rows})
        return found

    def put(self, key: str, response: Response) -> None:
        """Keep a response. The first one that was kept under a key stays."""
        value = json.dumps(asdict(response), ensure_ascii=True)
        with self._connection:
            self._connection.execute("INSERT OR IGNORE INTO responses VALUES (?, ?)", (key, value))

    def sha256(self, path: Path) -> str:
        """The hash of a file's contents, computed again only where its size or time of change is another."""
        status = path.stat()
        row = self._connection.execute(
            "SELECT sha256 FROM files WHERE path = ? AND size = ? AND changed = ?",
            (str(path), status.st_size, status.st_mtime_ns),
        ).fetchone()
        if row:
            return str(row[0])
        with path.open("rb") as file:
            digest = _sha256(file)
        with self._connection:
            self._connection.execute(
                "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)",
                (str(path), status.st_size, status.st_mtime_ns, digest),
            )
        return digest


def _sha256(file: Any) -> str:
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=60)
    # Write-ahead logging lets another run read and write at the same time; a response survives the death of this
    # process at any moment, and all but the last ones a power cut.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.executescript(_SCHEMA)
    connection.execute("SELECT count(*) FROM files").fetchone()
    return connection
