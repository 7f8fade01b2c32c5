"""Reads files of records piece by piece, with limits: they are untrusted, and may have hundreds of megabytes.

Compressed files are recognised by their first bytes and not by their names. The limits hold for what a file expands to.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import json
import lzma
import re
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from ensemble.common.text import counted
from ensemble.errors import InputError

_SPACES = re.compile(r"[ \t\n\r]*")
LARGEST_FILE = 2**32
"""Bytes that a file may expand to."""
LARGEST_ITEM = 2**26
"""Bytes of one line, or of one element of a JSON list."""
HEAD = 2**16
"""Bytes of the start of a file by which formats recognise their files."""
_PIECE = 2**20
ZIP = b"PK\x03\x04"
"""The first bytes of a zip file."""
_ZSTD = 93
# The others expand a piece to gigabytes at once.
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, _ZSTD)
_MAGIC = ((b"\x1f\x8b", gzip.open), (b"\xfd7zXZ\x00", lzma.open), (b"BZh", bz2.open))
_BROKEN = (
    *(EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile, struct.error),
    NotImplementedError,  # an unknown method of compression
)
Notes = list[str]
"""Sentences for the user on what was left out of a file, and why."""


class _Limited(io.RawIOBase):
    """A stream in pieces that ends with an error after too many bytes, in all or since the last :meth:`next_item`."""

    def __init__(self, stream: BinaryIO, place: str, piece: int = _PIECE) -> None:
        self._stream, self._place, self._piece = stream, place, piece
        self._total = self._item = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            return b"".join(iter(lambda: self.read(self._piece), b""))
        piece = self._stream.read(min(size, self._piece))
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
        # A buffered reader reads by this method.
        piece = self.read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def next_item(self) -> None:
        self._item = 0


@contextmanager
def open_stream(path: Path) -> Iterator[_Limited]:
    """Open a file, decompressed from gzip, xz or bzip2."""
    try:
        # Before opening: opening a pipe waits for its writer, and a device may have no end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path}: it is not a regular file; give one with the records")
        with path.open("rb") as raw:
            magic = raw.read(8)
        opened = next((opener for start, opener in _MAGIC if magic.startswith(start)), open)
        with opened(path, "rb") as stream:
            yield _Limited(cast(BinaryIO, stream), str(path))
    except _broken() as error:
        raise InputError(f"{path}: the compressed data is damaged ({error}); write it again") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); give another file") from error


def _broken() -> tuple[type[Exception], ...]:
    """What libraries raise for damaged data."""
    # The reader of inspect's logs loads it; it is not a dependency.
    zstandard = sys.modules.get("zstandard")
    return _BROKEN if zstandard is None else (*_BROKEN, zstandard.ZstdError)


def head_of(path: Path) -> bytes:
    """The first 64 kB of a file, decompressed; of a zip file, its own bytes. Empty if it cannot be read."""
    try:
        with open_stream(path) as stream:
            return stream.read(HEAD)
    except InputError:
        return b""


def zip_members(path: Path) -> list[str]:
    """The names of the at most 100,000 files in a zip file, each once."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = [info for info in archive.infolist() if info.filename and not info.is_dir()]
    except (*_BROKEN, OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a zip file ({error}); write it again") from error
    if len(infos) > 100_000:
        raise InputError(f"{path}: it has {len(infos):,} members; give a zip file with at most 100,000")
    # No more than these sizes is read, also if they are wrong.
    if sum(info.file_size for info in infos) > LARGEST_FILE:
        raise InputError(f"{path}: it expands to more than {LARGEST_FILE >> 30} GB; split it")
    # A name can occur twice; opening it gives the last member then.
    return list(dict.fromkeys(info.filename for info in infos))


def json_lines(path: Path, notes: Notes | None) -> Iterator[tuple[dict[str, Any], str]]:
    """The objects of a file with one on each line, and the place of each.

    Lines that are not JSON objects, such as a last line that was cut off, are left out, with one note for the file.
    Without notes they are an error.
    """
    broken: list[str] = []
    with open_stream(path) as stream:
        for number, line in enumerate(io.BufferedReader(stream, _PIECE), start=1):
            stream.next_item()
            if not line.strip():
                continue
            place = f"{path}:{number}"
            value = None
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:  # also bytes that are not UTF-8
                if notes is None:
                    raise InputError(f"{place}: not valid JSON: {str(error)[:100]}; correct the line") from error
            if isinstance(value, dict):
                yield value, place
            elif notes is None:
                raise InputError(f'{place}: a record must be a JSON object such as {{"question": ...}}; correct it')
            else:
                broken.append(place)
    if broken and notes is not None:
        what = counted(len(broken), "line", "is")
        notes.append(f"{path}: {what} left out, because it is not a JSON object; the first is {broken[0]}")


def json_items(path: Path, prefix: str = "item") -> Iterator[tuple[Any, str]]:
    """The elements of a JSON list, one at a time, and the place of each. NaN and infinite numbers are read.

    With the prefix ``samples.item`` it is a list in an object, with ``status`` one value of an object.
    """
    number = 0
    try:
        with open_stream(path) as stream:
            text = _JsonText(stream)
            for number, item in enumerate(_elements(text, prefix.split(".")), start=1):
                stream.next_item()
                yield item, f"{path} (element {number})"
            text.check_end()
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:100]
        raise InputError(f"{path}: not JSON after element {number} ({reason}); write it again") from error


def json_object(path: Path) -> dict[str, Any]:
    """The object that a file of at most 64 MB has, for example the description of a run."""
    data = content_of(path, LARGEST_ITEM)
    if data is None:
        raise InputError(f"{path}: it is larger than {LARGEST_ITEM >> 20} MB; give another file")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({str(error)[:100]}); write it again") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: not a JSON object; write it again")
    return value


def json_members(path: Path, names: Iterable[str], notes: Notes) -> Iterator[tuple[dict[str, Any], str]]:
    """The objects that members of a zip file have, and the place of each.

    Members that are damaged, too large, or not one JSON object are left out, with one note for the file.
    """
    broken: list[str] = []
    # A RuntimeError is a password.
    damaged: tuple[type[Exception], ...] = (*_broken(), InputError, ValueError, RuntimeError)
    try:
        with zipfile.ZipFile(path) as archive:
            for name in names:
                place, info = f"{path}/{name}", archive.getinfo(name)
                if info.compress_type not in _ZIP_METHODS:
                    raise InputError(f"{place}: it is compressed by neither deflate nor zstd; compress it again")
                # Zstandard expands all bytes that it gets at once: 4 kB (the least that zipfile reads) to 128 MB.
                piece = 2**12 if info.compress_type == _ZSTD else _PIECE
                try:
                    with archive.open(info) as stream:
                        value = json.loads(_Limited(cast(BinaryIO, stream), place, piece).read())
                except damaged:
                    value = None
                if isinstance(value, dict):
                    yield value, place
                else:
                    broken.append(place)
    except (zipfile.BadZipFile, struct.error, NotImplementedError, OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a zip file ({error}); write it again") from error
    if broken:
        notes.append(
            f"{path}: {counted(len(broken), 'member', 'is')} left out, because it is damaged, is not a JSON object or "
            f"is larger than {LARGEST_ITEM >> 20} MB; the first is {broken[0]}"
        )


def outline(head: bytes) -> frozenset[str]:
    """The keys of the first JSON value in the start of a file, down to the third level: ``eval``, ``item.a.b``."""
    found: set[str] = set()
    # Otherwise the head ends within the value, or it is not JSON.
    with contextlib.suppress(ValueError, RecursionError):
        # What follows the first value may be damaged.
        _outline(_JsonText(io.BytesIO(head), "replace"), (), found)
    return frozenset(found)


def content_of(path: Path, most: int) -> bytes | None:
    """The content of a file, decompressed; None if it is larger than ``most`` bytes."""
    data = bytearray()
    with open_stream(path) as stream:
        while len(data) <= most and (piece := stream.read(2**16)):
            data += piece
            stream.next_item()  # the limit is that of the whole file, and not that of one element
    return bytes(data) if len(data) <= most else None


class _JsonText:
    """JSON that is read value by value by the standard library: parsers in C for streams crashed on long numbers."""

    _parse = staticmethod(json.JSONDecoder().raw_decode)

    def __init__(self, stream: _Limited | io.BytesIO, errors: str = "strict") -> None:
        self._stream, self._decoder = stream, codecs.getincrementaldecoder("utf-8-sig")(errors)
        self._text, self._at, self._ended = "", 0, False

    def next_mark(self) -> str:
        """The next character that is not a space; empty at the end."""
        while True:
            self._at = cast("re.Match[str]", _SPACES.match(self._text, self._at)).end()
            if self._at < len(self._text) or not self._read_more():
                return self._text[self._at : self._at + 1]

    def skip(self, mark: str) -> None:
        """Go beyond the next character, which must be this one."""
        if self.next_mark() != mark:
            raise ValueError(f"expected {mark} at {self._text[self._at : self._at + 10]!r}")
        self._at += 1

    def value(self) -> Any:
        """The value that begins here."""
        self.next_mark()
        while True:
            try:
                value, end = self._parse(self._text, self._at)
            except json.JSONDecodeError as error:
                # An error far from the end is no cut; a string that does not end is an error at its start.
                cut = error.pos + 2**10 > len(self._text) or self._text[error.pos] == '"'
                if not (cut and self._read_more()):
                    raise
            else:
                # A number may go on in the next piece.
                if end < len(self._text) or not self._read_more():
                    self._at = end
                    return value

    def elements(self) -> Iterator[None]:
        """Stop at each element of the list that begins here; the caller reads it."""
        self.skip("[")
        more = self.next_mark() != "]"
        while more:
            yield
            if more := self.next_mark() == ",":
                self.skip(",")
        self.skip("]")

    def members(self) -> Iterator[str]:
        """The keys of the object that begins here; the caller reads the value of each."""
        self.skip("{")
        more = self.next_mark() != "}"
        while more:
            key = self.value()
            if not isinstance(key, str):
                raise ValueError("a key is not a string")
            self.skip(":")
            yield key
            if more := self.next_mark() == ",":
                self.skip(",")
        self.skip("}")

    def check_end(self) -> None:
        """Raise an error if something follows."""
        if self.next_mark():
            raise ValueError("more than one value")

    def _read_more(self) -> bool:
        """Read as much as is left, so that the time for a large value is linear in its size; False at the end."""
        rest = self._text[self._at :]
        pieces, missing = [rest], max(2**16, len(rest))
        while missing > 0 and not self._ended:
            piece = self._stream.read(missing)
            self._ended = not piece
            pieces.append(self._decoder.decode(piece, final=self._ended))
            missing -= len(piece)
        self._text, self._at = "".join(pieces), 0
        return len(self._text) > len(rest)


def _elements(text: _JsonText, prefix: Sequence[str]) -> Iterator[Any]:
    """The values at a path; the others are read and dropped."""
    mark = text.next_mark()
    if not prefix:
        yield text.value()
    elif mark == "[" and prefix[0] == "item":
        for _ in text.elements():
            yield from _elements(text, prefix[1:])
    elif mark == "{":
        for key in text.members():
            if key == prefix[0]:
                yield from _elements(text, prefix[1:])
            else:
                text.value()
    else:
        text.value()


def _outline(text: _JsonText, path: tuple[str, ...], found: set[str]) -> None:
    mark = text.next_mark()
    if len(path) == 3 or mark not in ("[", "{"):
        text.value()
    elif mark == "[":
        for _ in text.elements():
            _outline(text, (*path, "item"), found)
    else:
        for key in text.members():
            found.add(".".join((*path, key)))
            _outline(text, (*path, key), found)
