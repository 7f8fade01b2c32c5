"""The generated text in the ids of one member.

A member that is not the primary reads ``C_i(text)``. A step may change its last ids ("Jam" + "es" becomes "James"), but
not those before a border that no later text moves. So the text before the border is tokenized once, and only a few
characters at every step, on any text.
"""

from __future__ import annotations

import string

from ensemble.vocabulary.token_bytes import Vocabulary

_LETTERS = frozenset(string.ascii_letters.encode()[n : n + 1] for n in range(len(string.ascii_letters)))


class Continuation:
    """A growing text in one vocabulary's ids: ``C_i`` of all bytes so far, which :meth:`extend` changes in place."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.ids: list[int] = []
        self.settled = 0  # ids at the front that never change again, whatever follows
        # The bytes after the settled ids, and at how many of them to look for a border again; 0: as usual.
        self._tail = b""
        self._patience = 0
        # Whether a fork has the same list of ids. A copy of all ids at every step would grow with the text.
        self._is_shared = False

    def fork(self) -> Continuation:
        """A copy that can be extended without changing this one."""
        copy = Continuation(self._vocabulary)
        copy.ids, copy.settled, copy._tail, copy._patience = self.ids, self.settled, self._tail, self._patience
        self._is_shared = copy._is_shared = True
        return copy

    def extend(self, data: bytes) -> int:
        """Append bytes to the text; the number of ids at the front of ``ids`` that did not change."""
        if self._is_shared:
            self.ids, self._is_shared = [*self.ids], False
        # Most of prose is a space and a word after a letter. Their ids are known from the first time.
        if self._tail[-1:] in _LETTERS and (ids := self._vocabulary.word_ids(data)) is not None:
            self.settled = len(self.ids)
            self.ids += ids
            self._tail = data
            self._patience = 0
            return self.settled
        self._tail += data
        settled, old = self.settled, self.ids[self.settled :]
        # The ids of a few characters after a border are kept, too: numbers and signs leave the same ones repeatedly.
        if (known := self._vocabulary.short_text(self._tail)) is not None:
            new, cut, before = known
            is_due = False
        else:
            new, cut, before = self._vocabulary.continue_ids(self._tail), 0, 0
            borders = self._vocabulary.borders
            is_due = len(self._tail) >= (self._patience or (borders.patience if borders else 0))
            if is_due:
                cut, before = self._vocabulary.last_border(self._tail, new)
        same, most = 0, min(len(old), len(new))
        # A member's cache keeps the ids that did not change, so only the others are run again.
        while same < most and old[same] == new[same]:
            same += 1
        self.ids[settled + same :] = new[same:]
        if cut:
            self._tail = self._tail[cut:]
            self.settled = settled + before
            self._patience = 0
        elif is_due:
            # The next look comes at twice as much text, so looking costs little on average.
            self._patience = 2 * len(self._tail)
        return settled + same
