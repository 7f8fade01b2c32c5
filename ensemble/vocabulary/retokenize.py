"""What has been generated so far, as one member reads it.

A member that is not the primary reads ``C_i(text)``. Each step may change its last ids ("Jam" + "es" becomes "James"),
never its first ones; so the text in front of the last safe cut is tokenized once, and only what follows again.
"""

from __future__ import annotations

import re
from collections import deque

from ensemble.vocabulary.token_bytes import Vocabulary


class Continuation:
    """A growing text in one vocabulary's ids.

    Attributes:
        ids: ``C_i`` of all bytes so far.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.ids: list[int] = []
        self._settled = 0
        self._tail = b""

    def fork(self) -> Continuation:
        """A copy that can be extended without changing this one."""
        copy = Continuation(self._vocabulary)
        copy.ids, copy._settled, copy._tail = self.ids, self._settled, self._tail
        return copy

    def extend(self, data: bytes) -> int:
        """Append bytes to the text; how many of the ids before still stand, unchanged, at the front of ``ids``."""
        self._tail += data
        tail_ids = self._vocabulary.continue_ids(self._tail)
        old = self.ids
        new = old[: self._settled] + tail_ids
        same = self._settled
        while same < min(len(old), len(new)) and old[same] == new[same]:
            same += 1
        self.ids = new
        self._settle()
        return same

    def _settle(self) -> None:
        """Move the last safe cut forward, where there is one in the tail."""
        cut = last_cut(self._tail, self._vocabulary.cuts)
        if cut:
            self._settled += len(self._vocabulary.continue_ids(self._tail[:cut]))
            self._tail = self._tail[cut:]


def last_cut(data: bytes, cuts: re.Pattern[str] | None) -> int:
    """The last place of a pattern in a text; 0 where there is none."""
    if cuts is None:
        return 0
    text = data.decode(errors="surrogateescape")
    last = deque(cuts.finditer(text), maxlen=1)
    return len(text[: last[0].start()].encode(errors="surrogateescape")) if last else 0
