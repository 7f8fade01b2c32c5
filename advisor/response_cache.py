"""The store: every response, kept the moment it exists, so that nothing is computed twice.

An SQLite file. A response is filed under a hash of all that decides it: the members' files, the numeric type, the
prompt and the settings. Scores are not kept; they are computed from the responses.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from advisor.records import FinishReason
from ensemble.errors import InputError, UniteError
from ensemble.models.fingerprint import sha256

_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS measured (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, size INTEGER, changed INTEGER, sha256 TEXT) WITHOUT ROWID;
"""
_VERSION = 1
"""Of the schema, and of what the keys are made of."""
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
        settled: Whether asking again would bring the same; what is not is never kept.
        options: Of a choice task: the log-probability of each option, None where it cannot be written.
        steps: Choices that were made; see :class:`ensemble.decode.sequences.Counts`.
        combined: Steps in which several members decided.
        handled: Entries whose probabilities were looked at, over all steps.
    """

    text: str
    tokens: int
    finish_reason: FinishReason
    seconds: float
    error: str | None = None
    settled: bool = True
    options: tuple[float | None, ...] = ()
    steps: int = 0
    combined: int = 0
    handled: int = 0


def key_of(question: Mapping[str, Any]) -> str:
    """The key of a response: SHA-256 of all that decides it."""
    return hashlib.sha256(json.dumps(question, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


class Store:
    """An open store; a context manager that closes it.

    A damaged file is set aside under another name, and a new one begun.

    Args:
        folder: Where its file is, and is made if need be.
        say: Called with what the user should know, a sentence each.

    Raises:
        InputError: The folder cannot be written.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda _: None) -> None:
        self._path = folder / "responses.sqlite"
        self._say = say
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._connection = self._open()
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error  # a system's own words, without its number
            raise InputError(
                f"--cache-dir {folder}: responses cannot be kept there ({reason}); give a folder that can be written"
            ) from None

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
            rows = self._execute(f"SELECT key, value FROM responses WHERE key IN ({marks})", part)
            found.update({key: response for key, value in rows if (response := _read(value)) is not None})
        return found

    def put(self, key: str, response: Response) -> None:
        """Keep a response: when this returns, the death of this process no longer loses it."""
        # Replaced, not ignored: what is there may be a row that could not be read.
        self._execute("INSERT OR REPLACE INTO responses VALUES (?, ?)", (key, json.dumps(asdict(response))))

    def value(self, key: str) -> Any:
        """What was measured and kept under a key, as JSON has it; None where there is nothing that can be read."""
        rows = self._execute("SELECT value FROM measured WHERE key = ?", (key,))
        try:
            return json.loads(rows[0][0]) if rows else None
        except ValueError:
            return None

    def keep(self, key: str, value: Any) -> None:
        """Keep something that was measured of a model, in a form that JSON holds."""
        self._execute("INSERT OR REPLACE INTO measured VALUES (?, ?)", (key, json.dumps(value)))

    def sha256(self, path: Path) -> str:
        """The hash of a file's contents, computed again only where its size or its time of change is another."""
        status = path.stat()
        # The time of change can be set back by whoever copies a file; that of the change of its entry cannot.
        place = (str(path), status.st_size, max(status.st_mtime_ns, status.st_ctime_ns))
        rows = self._execute("SELECT sha256 FROM files WHERE path = ? AND size = ? AND changed = ?", place)
        if rows:
            return str(rows[0][0])
        digest = sha256(path)
        self._execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", (*place, digest))
        return digest

    def _execute(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            try:
                return _transact(self._connection, sql, values)
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise
                self._connection.close()
                self._connection = self._begin_anew(error)
                return _transact(self._connection, sql, values)
        except (OSError, sqlite3.Error) as error:
            raise UniteError(
                f"the store {self._path} cannot be read and written ({error}); free the disk or mend the folder, and "
                "the same command goes on from there"
            ) from error

    def _open(self) -> sqlite3.Connection:
        try:
            return _connect(self._path)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
        try:
            # Another run may have begun anew in the meantime, and its store is not to be set aside.
            return _connect(self._path)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            return self._begin_anew(error)

    def _begin_anew(self, damage: sqlite3.DatabaseError) -> sqlite3.Connection:
        aside = self._path.with_name(f"{self._path.stem}.damaged-{time.time_ns()}{self._path.suffix}")
        for ending in ("", "-wal", "-shm"):
            if Path(f"{self._path}{ending}").exists():
                Path(f"{self._path}{ending}").rename(f"{aside}{ending}")
        self._say(f"the store {self._path} is damaged ({damage}); it was set aside as {aside.name}, a new one begun")
        return _connect(self._path)


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file itself is at fault; a lock, a full disk or a missing right is one of the derived errors."""
    return type(error) is sqlite3.DatabaseError


def _transact(connection: sqlite3.Connection, sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
    with connection:
        return connection.execute(sql, values).fetchall()


def _read(value: str) -> Response | None:
    """A response as it was kept; None where it cannot be read."""
    try:
        kept = json.loads(value)
        return Response(**{**kept, "options": tuple(kept["options"])})
    except (KeyError, TypeError, ValueError):
        return None


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=60)
    try:
        # Write-ahead logging lets another run read and write at the same time; a response survives the death of this
        # process at any moment, and all but the last ones a power cut.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"it has the form {version}, and this version of advisor reads {_VERSION}")
        connection.executescript(f"{_SCHEMA} PRAGMA user_version = {_VERSION};")
        connection.execute("SELECT count(*) FROM files").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
