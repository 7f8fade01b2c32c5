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
        end = len(data) - held_back(data, self._stops)
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
    # A whole stop string would have ended the text, so at most all but its last byte can be held back.
    longest = max((len(stop) - 1 for stop in stops), default=0)
    return next(
        (n for n in range(min(longest, len(data)), 0, -1) if any(stop.startswith(data[-n:]) for stop in stops)), 0
    )
