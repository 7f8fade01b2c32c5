"""The text of a stream in pieces: whole characters, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class Pieces:
    """Cuts a growing text into pieces. A piece that was returned is final.

    Args:
        stops: The stop strings, as bytes.

    Attributes:
        read: Bytes of the text read so far. The bytes after them may begin a stop string.
    """

    def __init__(self, stops: Sequence[bytes]) -> None:
        self._stops = stops
        # Keeps the bytes of an incomplete character until the rest of it arrives.
        self._reader = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0
        self.read = 0

    def grow(self, data: bytes) -> str:
        """The next piece of a text that has grown to these bytes; empty if they complete no character."""
        # Only the bytes after the last piece: bytes that did not begin a stop string will not begin one later.
        end = len(data) - held_back(data[self.read :], self._stops)
        piece = self._reader.decode(data[self.read : end])
        self.read = end
        self._length += len(piece)
        return piece

    def finish(self, text: str) -> str:
        """The last piece of a finished text; empty if nothing is left."""
        # By characters, not bytes: invalid UTF-8 was replaced, which changes the number of bytes.
        rest = text[self._length :]
        self._length = len(text)
        return rest


def held_back(data: bytes, stops: Sequence[bytes]) -> int:
    """How many bytes at the end of a text may begin a stop string."""
    return max((_begun(data, stop) for stop in stops), default=0)


def _begun(data: bytes, stop: bytes) -> int:
    """Bytes of the longest beginning of a stop string that is the end of a text."""
    text = memoryview(data)
    # A whole stop string would have ended the text, so at most all but its last byte can be held back.
    count = min(len(stop) - 1, len(data))
    # Only beginnings with the text's last byte are compared: a long stop string has as many as it has bytes.
    while count > 0 and (count := stop.rfind(data[-1:], 0, count) + 1):
        if stop.startswith(text[-count:]):
            return count
        count -= 1
    return 0


def first_stop(data: bytes | bytearray, searched: int, stops: tuple[bytes, ...]) -> int | None:
    """The place of the first stop string in a text; None if it has none.

    Args:
        data: The text.
        searched: Bytes at the front in which no stop string ends.
        stops: The stop strings.
    """
    # By their ends, which are among the new bytes: to search for a string takes time for the whole of it, and one that
    # is compared differs in its first bytes or is longer than the text.
    places = [
        end - len(stop)
        for end in range(searched + 1, len(data) + 1)
        if data.endswith(stops, 0, end)
        for stop in stops
        if data.endswith(stop, 0, end)
    ]
    return min(places, default=None)
