"""The generated text in the ids of one member.

A member that is not the primary reads ``C_i(text)``. A step may change its last ids ("Jam" + "es" becomes "James"), but
not those before a border that no later text moves. So the text before the border is tokenized once, and only a few
characters at every step, on any text.
"""

from __future__ import annotations

import codecs
import re
import string

from ensemble.vocabulary.borders import Borders
from ensemble.vocabulary.safe_cuts import last_cut
from ensemble.vocabulary.token_bytes import Vocabulary

_LAST_RUN = re.compile("[\udc80-\udcff]+\\Z|[^\udc80-\udcff]+\\Z")
"""The last run of bytes that are UTF-8, or are not."""
_LETTERS = frozenset(string.ascii_letters.encode()[n : n + 1] for n in range(len(string.ascii_letters)))


class Continuation:
    """A growing text in one vocabulary's ids.

    Attributes:
        ids: ``C_i`` of all bytes so far. :meth:`extend` replaces the list and never changes it.
        settled: How many ids at the front never change again, whatever follows.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.ids: list[int] = []
        self.settled = 0
        # The bytes after the settled ids, and at how many of them to look for a border again; 0: as usual.
        self._tail = b""
        self._patience = 0

    def fork(self) -> Continuation:
        """A copy that can be extended without changing this one."""
        copy = Continuation(self._vocabulary)
        # The list is shared, because extend() replaces it and never changes it.
        copy.ids, copy.settled, copy._tail, copy._patience = self.ids, self.settled, self._tail, self._patience
        return copy

    def extend(self, data: bytes) -> int:
        """Append bytes to the text; the number of ids at the front of ``ids`` that did not change."""
        # Most of prose is a space and a word after a letter. Their ids are known from the first time.
        if self._tail[-1:] in _LETTERS and (ids := self._vocabulary.word_ids(data)) is not None:
            self.settled = len(self.ids)
            self.ids = self.ids + ids
            self._tail = data
            self._patience = 0
            return self.settled
        self._tail += data
        old, settled, new = self.ids, self.settled, self._vocabulary.continue_ids(self._tail)
        same, most = 0, min(len(old) - settled, len(new))
        # A member's cache keeps the ids that did not change, so only the others are run again.
        while same < most and old[settled + same] == new[same]:
            same += 1
        self.ids = old[:settled]
        self.ids += new
        borders = self._vocabulary.borders
        if len(self._tail) >= (self._patience or (borders.patience if borders else 0)):
            self._settle(borders, new)
        return settled + same

    def _settle(self, borders: Borders | None, new: list[int]) -> None:
        """Settle the ids before the last border; without borders only the safe cuts are known."""
        cut = 0
        if borders is not None:
            # The first bytes of a character at the end are left out: others may follow.
            text, _ = codecs.utf_8_decode(self._tail, "surrogateescape", False)
            run = _LAST_RUN.search(text)
            last = run[0] if run else ""
            cut = len(text[: len(text) - len(last)].encode(errors="surrogateescape"))
            if "\udc80" <= last[:1] <= "\udcff":
                cut += borders.last_of_bytes(last.encode(errors="surrogateescape"))
            else:
                cut += len(last[: borders.last(last)].encode())
        if not cut:
            cut = last_cut(self._tail, self._vocabulary.cuts)
        if cut:
            self._tail = self._tail[cut:]
            self.settled = len(self.ids) - self._count(new)
        # Without a border the next look comes at twice as much text, so looking costs little on average.
        self._patience = 0 if cut else 2 * len(self._tail)

    def _count(self, new: list[int]) -> int:
        """How many ids at the end of ``new`` are those of the tail."""
        count, left = 0, len(self._tail)
        while left > 0 and count < len(new):
            count += 1
            left -= len(self._vocabulary.token_bytes(new[-count]) or b"")
        data = b"".join(self._vocabulary.token_bytes(index) or b"" for index in new[len(new) - count :])
        # Where ids do not have the bytes of the text (composed or unknown characters), the tail is read again.
        return count if data == self._tail else len(self._vocabulary.continue_ids(self._tail))
