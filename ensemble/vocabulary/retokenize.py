"""The generated text in the ids of one member.

A member that is not the primary reads ``C_i(text)``. A step may change its last ids ("Jam" + "es" becomes "James"), but
not those before the last safe cut. So the text before the cut is tokenized once, and only the rest at every step.
"""

from __future__ import annotations

from collections.abc import Sequence

from ensemble.vocabulary.safe_cuts import last_cut
from ensemble.vocabulary.token_bytes import Vocabulary


class Continuation:
    """A growing text in one vocabulary's ids.

    Attributes:
        ids: ``C_i`` of all bytes so far. :meth:`extend` replaces the list and never changes it.
        settled: How many ids at the front never change again, whatever follows.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.ids: list[int] = []
        # The ids before the last safe cut are final; the bytes after it are kept.
        self.settled = 0
        self._tail = b""

    def fork(self) -> Continuation:
        """A copy that can be extended without changing this one."""
        copy = Continuation(self._vocabulary)
        # The list is shared, because extend() replaces it and never changes it.
        copy.ids, copy.settled, copy._tail = self.ids, self.settled, self._tail
        return copy

    def extend(self, data: bytes) -> int:
        """Append bytes to the text; the number of ids at the front of ``ids`` that did not change."""
        self._tail += data
        old, new = self.ids, self.ids[: self.settled] + self._vocabulary.continue_ids(self._tail)
        same = self.settled
        # A member's cache keeps the ids that did not change, so only the others are run again.
        while same < min(len(old), len(new)) and old[same] == new[same]:
            same += 1
        self.ids = new
        if cut := last_cut(self._tail, self._vocabulary.cuts):
            self.settled += len(self._vocabulary.continue_ids(self._tail[:cut]))
            self._tail = self._tail[cut:]
        return same


def extend_all(readers: Sequence[Continuation], data: Sequence[bytes]) -> None:
    """Append bytes to the texts of several readers, which may be of different vocabularies.

    Args:
        readers: The readers; each is changed, so each may be there once.
        data: For each reader the bytes to append.
    """
    for reader, part in zip(readers, data, strict=True):
        reader.extend(part)
