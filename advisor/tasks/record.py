"""One entry of a task's data, as it was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Record:
    """The fields of one entry, and where it was found.

    Attributes:
        values: The fields by name, and some of ours, whose names begin with ``_``.
        place: File and line, or data set and index, for messages.
        part: Stem of the file (or configuration of the data set) where the split has several, else empty.
        index: Counted from 0 within its file or data set.
    """

    values: Mapping[str, object]
    place: str
    part: str = ""
    index: int = 0

    def with_fields(self, **fields: object) -> Record:
        """The same record with fields added, in place of its own of that name."""
        return replace(self, values={**self.values, **fields})
