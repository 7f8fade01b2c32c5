"""A text that grows, in pieces that can be shown at once: whole characters, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class Pieces:
    """The pieces of one text; nothing that was given out is ever taken back.

    Args:
        stops: Strings that the text ends before, as bytes.

    Attributes:
        read: How many bytes of the text may be given out, whole characters or not; the rest may begin a stop string.
    """

    def __init__(self, stops: Sequence[bytes]) -> None:
        self._stops = stops
        self._reader = codecs.getincrementaldecoder("utf-8")("replace")
        self._given = 0
        self.read = 0

    def grow(self, data: bytes) -> str:
        """The next piece of a text that has these bytes by now; empty where nothing can be given out yet."""
        end = len(data) - held_back(data, self._stops)
        piece = self._reader.decode(data[self.read : end])
        self.read = end
        self._given += len(piece)
        return piece

    def finish(self, text: str) -> str:
        """The last piece of a text that is finished; empty where nothing is left."""
        rest = text[self._given :]
        self._given = len(text)
        return rest


def held_back(data: bytes, stops: Sequence[bytes]) -> int:
    """Bytes at the end of a text that may be the beginning of a stop string."""
    longest = max((len(stop) - 1 for stop in stops), default=0)
    return next(
        (n for n in range(min(longest, len(data)), 0, -1) if any(stop.startswith(data[-n:]) for stop in stops)), 0
    )
