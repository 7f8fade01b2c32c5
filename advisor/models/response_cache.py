"""The response cache: an SQLite file with every response, by a hash of everything that determines it."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from advisor.records import FinishReason
from ensemble.errors import InputError, UniteError
from ensemble.models.thinking import ThinkingReader, ThinkingTags, has_thought

_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS measured (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
_VERSION = 1  # of the schema and of the keys: with other keys, no response would be found
_LOCK_SECONDS = 60.0  # a run waits so long for another one that writes
_KEYS_PER_QUERY = 500  # old builds of SQLite allow 999


# A count of a thousand digits is valid JSON, and no float can hold it.
Count = Annotated[int, Field(ge=0, lt=2**63)]
LogProbability = Annotated[float, Field(lt=1e300)]  # minus infinity for what cannot be; NaN is nothing


@dataclass(frozen=True, slots=True)
class Response:
    """The response of a model or an ensemble to a prompt. The cache stores its fields as JSON."""

    text: str  # untrusted: as the model wrote it, and after :func:`split_thinking` its answer alone
    tokens: Count  # those of the primary, with the thinking: of all members' if they think apart
    finish_reason: FinishReason
    seconds: Annotated[float, Field(ge=0, lt=1e300)]  # its share of its batch's time
    error: str | None = None  # the reason in one line, if the question failed
    settled: bool = True  # another attempt gives the same; a response that is not settled is never stored
    # For a choice task, their log-probabilities; None for one that cannot be tokenized.
    options: tuple[LogProbability | None, ...] = ()
    steps: Count = 0  # see :class:`ensemble.decode.sequences.Counts`
    combined: Count = 0  # steps in which several members took part
    handled: Count = 0  # vocabulary entries whose probabilities were read, summed over all steps
    prompt_tokens: Count = 0  # as the primary counts them; 0 if they are not known
    # What a server or the decoder gave apart, and after :func:`split_thinking` all of it; None if it is not shown.
    thinking: str | None = None
    thinking_tokens: Count = 0  # as a server or the decoder counts them; 0 if it does not say it
    # Functions that the model calls, by name and arguments; such a response is never stored.
    calls: tuple[tuple[str, str], ...] = ()

    def stored(self) -> dict[str, Any]:
        """As the cache has it. Without thinking, the row is that of versions that did not know it."""
        new = {"thinking", "thinking_tokens", "calls"}
        return {name: value for name, value in asdict(self).items() if name not in new or value}


def split_thinking(responses: Iterable[Response], tags: ThinkingTags | None = None) -> list[Response]:
    """A model's responses, each with its thinking apart; the cache keeps them as written, so that tags may change."""
    responses = list(responses)
    # Where a server gave the thinking apart, no template is to be known by the text: it is the answer.
    whole = [(each.text, each.finish_reason == "length") for each in responses if not each.thinking]
    reader = ThinkingReader(whole, tags)
    parted = []
    for each in responses:
        thinking, text = reader.read(each.text, cut=each.finish_reason == "length")
        given = "\n\n".join(part for part in (each.thinking, thinking) if part and part.strip())
        tokens = each.thinking_tokens if given or has_thought(each.thinking, each.thinking_tokens) else 0
        parted.append(replace(each, text=text, thinking=given or None, thinking_tokens=tokens))
    return parted


def key_of(question: Mapping[str, Any]) -> str:
    """The key of a response: SHA-256 of everything that determines it."""
    # Sorted, because the order in which a caller lists the parts must not change the key.
    return hashlib.sha256(json.dumps(question, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


class ResponseCache:
    """An open response cache; with `read_only` the file must exist, and storing fails."""

    def __init__(self, folder: Path, say: Callable[[str], None] = lambda _: None, *, read_only: bool = False) -> None:
        self._path = folder / "responses.sqlite"
        self._say = say
        self.read_only = read_only
        self._has_said_unreadable = False
        try:
            if read_only:
                self._connection = _connect(self._path, read_only=True)
                return
            folder.mkdir(parents=True, exist_ok=True)
            self._connection = self._open()
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error  # the system's message without its number
            access = "read" if read_only else "written"
            raise InputError(
                f"--cache-dir {folder}: the folder cannot be {access} ({reason}); give a folder that can be {access}"
            ) from None

    def __enter__(self) -> ResponseCache:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()

    def get(self, keys: Iterable[str]) -> dict[str, Response]:
        """The stored responses, by key."""
        wanted = list(keys)
        found: dict[str, Response] = {}
        for start in range(0, len(wanted), _KEYS_PER_QUERY):
            part = wanted[start : start + _KEYS_PER_QUERY]
            marks = ",".join("?" * len(part))
            rows = self._execute(f"SELECT key, value FROM responses WHERE key IN ({marks})", part)
            for key, value in rows:
                if (response := _read(value)) is not None:
                    found[key] = response
                else:
                    self._say_unreadable()
        return found

    def put(self, key: str, response: Response) -> None:
        """Store a response. After this call, the end of this process does not lose it."""
        # REPLACE, not IGNORE: the existing row may be one that could not be read.
        self._execute("INSERT OR REPLACE INTO responses VALUES (?, ?)", (key, json.dumps(response.stored())))

    def value(self, key: str, fits: Callable[[Any], bool] = lambda _: True) -> Any:
        """The stored measurement of a key, as JSON; None if it does not exist, cannot be read or does not fit."""
        rows = self._execute("SELECT value FROM measured WHERE key = ?", (key,))
        value = _parse(rows[0][0]) if rows else None
        if value is not None and fits(value):
            return value
        if rows and rows[0][0] != "null":
            self._say_unreadable()
        return None

    def keep(self, key: str, value: Any) -> None:
        """Store a measurement of a model, a value that JSON can represent."""
        self._execute("INSERT OR REPLACE INTO measured VALUES (?, ?)", (key, json.dumps(value)))

    def _say_unreadable(self) -> None:
        # Once: a whole file of such rows must not fill the terminal.
        if not self._has_said_unreadable:
            self._say(f"the response cache {self._path} has rows that cannot be read; they are computed again")
        self._has_said_unreadable = True

    def _execute(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            try:
                return _transact(self._connection, sql, values)
            except sqlite3.DatabaseError as error:
                if not _is_damage(error) or self.read_only:
                    raise
                self._connection.close()
                self._connection = self._replace_damaged(error)
                return _transact(self._connection, sql, values)
        except (OSError, sqlite3.Error) as error:
            raise UniteError(
                f"the response cache {self._path} cannot be read and written ({error}); free disk space or repair the "
                "folder, then run the same command again: it continues from the stored responses"
            ) from error

    def _open(self) -> sqlite3.Connection:
        try:
            return _connect(self._path)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
        try:
            # Another run may have replaced the file in the meantime; its new file must not be renamed.
            return _connect(self._path)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            return self._replace_damaged(error)

    def _replace_damaged(self, damage: sqlite3.DatabaseError) -> sqlite3.Connection:
        aside = self._path.with_name(f"{self._path.stem}.damaged-{time.time_ns()}{self._path.suffix}")
        # The write-ahead log belongs to the file: a new file must not take it over.
        for ending in ("", "-wal", "-shm"):
            if Path(f"{self._path}{ending}").exists():
                Path(f"{self._path}{ending}").rename(f"{aside}{ending}")
        self._say(
            f"the response cache {self._path} is damaged ({damage}); it was renamed to {aside.name}, a new one is used"
        )
        return _connect(self._path)


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    # A lock, a full disk or a missing permission raises a subclass of DatabaseError.
    return type(error) is sqlite3.DatabaseError


def _transact(connection: sqlite3.Connection, sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
    with connection:
        return connection.execute(sql, values).fetchall()


_STORED = TypeAdapter(Response)


def _read(value: str) -> Response | None:
    """A stored response; None if it cannot be read."""
    try:
        return _STORED.validate_json(value, strict=True)
    except ValidationError:
        return None


def _parse(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _write_ahead(connection: sqlite3.Connection) -> None:
    # SQLite does not wait for this lock: of two runs that make the same file at once, one would fail.
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return


def _connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    place: str | Path = path
    if read_only:
        # Without a write-ahead log no run has the file open. "immutable" then keeps SQLite from making a log beside it.
        place = f"{path.absolute().as_uri()}?{'mode=ro' if Path(f'{path}-wal').exists() else 'immutable=1'}"
    connection = sqlite3.connect(place, timeout=_LOCK_SECONDS, uri=read_only)
    # One row with other bytes must not make all rows of a query unreadable.
    connection.text_factory = lambda data: data.decode(errors="replace")
    try:
        # The first question, because all that follows may change the file.
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > _VERSION:
            raise InputError(
                f"{path}: a newer version of advisor wrote this file (format {version}, and this one reads "
                f"{_VERSION}); update advisor, or give another --cache-dir"
            )
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"its format is {version}, and this version of advisor reads format {_VERSION}")
        if not read_only:
            # With write-ahead logging another run can read and write at the same time. A response survives a crash of
            # this process at any moment; a power cut loses only the last ones.
            _write_ahead(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.executescript(f"{_SCHEMA} PRAGMA user_version = {_VERSION};")
        connection.execute("SELECT 1 FROM responses LIMIT 1").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
