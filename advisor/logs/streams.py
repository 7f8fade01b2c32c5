"""Reads the files of logs piece by piece, with limits: logs are untrusted, and may have hundreds of megabytes.

Compressed files are recognised by their first bytes and not by their names. The limits hold for what a file expands to.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import ijson

from ensemble.errors import InputError

LARGEST_FILE = 2**32
"""Bytes that a file may expand to."""
LARGEST_ITEM = 2**26
"""Bytes of one line, or of one element of a JSON list."""
HEAD = 2**16
"""Bytes of the start of a file by which formats recognise their files."""
_MAGIC = ((b"\x1f\x8b", gzip.open), (b"\xfd7zXZ\x00", lzma.open), (b"BZh", bz2.open))
_BROKEN = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile, NotImplementedError)
Notes = list[str]
"""Sentences for the user on what was left out of a log, and why."""


class _Limited(io.RawIOBase):
    """A stream that ends with an error after too many bytes, in all or since the last :meth:`next_item`."""

    def __init__(self, stream: BinaryIO, place: str) -> None:
        self._stream, self._place = stream, place
        self._total = self._item = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        # ijson and the loops below read pieces; without a size the limit holds all the same.
        try:
            piece = self._stream.read(LARGEST_ITEM + 1 if size < 0 else size)
        except _BROKEN as error:
            raise InputError(f"{self._place}: the compressed data is damaged ({error}); write the log again") from error
        self._total += len(piece)
        self._item += len(piece)
        if self._total > LARGEST_FILE:
            raise InputError(f"{self._place}: it expands to more than {LARGEST_FILE >> 30} GB; split it, or unpack it")
        if self._item > LARGEST_ITEM:
            raise InputError(
                f"{self._place}: one element is larger than {LARGEST_ITEM >> 20} MB; remove it, or give another file"
            )
        return piece

    def readinto(self, buffer: Any) -> int:
        # ijson reads by this method where a stream has it.
        piece = self.read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def next_item(self) -> None:
        self._item = 0


@contextmanager
def open_log(path: Path, member: str | None = None) -> Iterator[_Limited]:
    """Open a file, decompressed; for a zip file, one member of it.

    Args:
        path: The file; it may be compressed by gzip, xz or bzip2.
        member: The name of a member, if the file is a zip file.

    Raises:
        InputError: It cannot be read, or it is damaged; while reading, it is too large.
    """
    place = str(path) if member is None else f"{path}/{member}"
    try:
        # Before opening: opening a pipe waits for its writer, and a device may have no end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path}: it is not a regular file; give a file or a folder with logs")
        if member is not None:
            with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
                yield _Limited(cast(BinaryIO, stream), place)
            return
        with path.open("rb") as raw:
            magic = raw.read(8)
        opened = next((opener for start, opener in _MAGIC if magic.startswith(start)), open)
        with opened(path, "rb") as stream:
            yield _Limited(cast(BinaryIO, stream), place)
    except _BROKEN as error:
        raise InputError(f"{place}: the compressed data is damaged ({error}); write the log again") from error
    except KeyError:
        raise InputError(f"{path}: it has no member {member!r}; write the log again") from None
    except RuntimeError as error:  # a zip file with a password
        raise InputError(f"{place}: cannot be read ({error}); unpack it") from error
    except OSError as error:
        raise InputError(f"{place}: cannot be read ({error.strerror or error}); give another file") from error


def head_of(path: Path) -> bytes:
    """The first 64 kB of a file, decompressed; of a zip file, its own bytes. Empty if it cannot be read.

    A file of a folder that cannot be read is no log: :func:`advisor.logs.sources.find_sources` lists it.
    """
    try:
        with open_log(path) as stream:
            return stream.read(HEAD)
    except InputError:
        return b""


def zip_members(path: Path) -> list[str]:
    """The names of the files in a zip file.

    Raises:
        InputError: It cannot be read, or has over 100,000 members.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
    except (*_BROKEN, OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a zip file ({error}); write the log again") from error
    if len(names) > 100_000:
        raise InputError(f"{path}: it has {len(names):,} members; give a zip file with at most 100,000")
    return names


def json_lines(path: Path, notes: Notes, member: str | None = None) -> Iterator[tuple[dict[str, Any], str]]:
    """The objects of a file with one JSON object on each line, and the place of each.

    Lines that are not JSON objects, such as a last line that was cut off, are left out, with one note for the file.

    Raises:
        InputError: See :func:`open_log`.
    """
    broken: list[str] = []
    with open_log(path, member) as stream:
        for number, line in enumerate(_lines(stream), start=1):
            if not line.strip():
                continue
            place = f"{path}:{number}"
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):  # also bytes that are not UTF-8
                value = None
            if isinstance(value, dict):
                yield value, place
            else:
                broken.append(place)
    if broken:
        what = "1 line is" if len(broken) == 1 else f"{len(broken):,} lines are"
        notes.append(f"{path}: {what} left out, because it is not a JSON object; the first is {broken[0]}")


def json_items(path: Path, prefix: str = "item", member: str | None = None) -> Iterator[tuple[Any, str]]:
    """The elements of a JSON list, one at a time, and the place of each.

    Args:
        path: The file.
        prefix: The path of the elements in ijson's form: ``item`` if the file is a list, ``samples.item`` if it is an
            object with the list ``samples``.
        member: The name of a member, if the file is a zip file.

    Raises:
        InputError: See :func:`open_log`; or the file is not JSON, or is cut off.
    """
    number = 0
    with open_log(path, member) as stream:
        try:
            # Pieces far below the limit of an element, which counts what was read since the last one.
            for number, item in enumerate(ijson.items(stream, prefix, use_float=True, buf_size=2**16), start=1):
                stream.next_item()
                yield item, f"{path} (element {number})"
        except (ijson.JSONError, UnicodeDecodeError, ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())[:100]
            raise InputError(f"{path}: not JSON after element {number} ({reason}); write the log again") from error


def _lines(stream: _Limited) -> Iterator[bytes]:
    # The parts of a long line are joined once, at its end, so that the time is linear in its length.
    parts: list[bytes] = []
    while piece := stream.read(2**20):
        first, *others = piece.split(b"\n")
        parts.append(first)
        for line in others:
            stream.next_item()
            yield b"".join(parts)
            parts = [line]
    if rest := b"".join(parts):
        yield rest
