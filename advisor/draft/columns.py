"""The columns of some records: their values as texts, and which column has a usual name."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

from advisor.tasks.data_files import Record, field_name, is_field
from ensemble.common.text import shortened, visible
from ensemble.errors import InputError

# Keys of an object that templates would read as its methods.
_METHODS = frozenset(dir(dict))


class Columns:
    """The values of records by column. A key of an object is a column, too: ``choices.text``.

    Args:
        records: The records; not empty.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self.values: dict[str, list[object]] = {}
        for number, record in enumerate(records):
            for name, value in _flat(record.values):
                # Earlier records may lack the column.
                self.values.setdefault(name, [None] * number).append(value)
            for values in self.values.values():
                values.extend([None] * (number + 1 - len(values)))
        self.count = len(records)

    def named(self, given: str) -> str:
        """The column that a user named, by its name in the data or in templates.

        Raises:
            InputError: There is no such column.
        """
        for name in (given, field_name(given)):
            if name in self.values:
                return name
        raise InputError(f"there is no column '{given}'; choose among {self.listed()}")

    def add(self, expression: str, values: Sequence[object]) -> str:
        """Add what an expression of a template gives for each record; the expression."""
        self.values[expression] = list(values)
        return expression

    def listed(self) -> str:
        """All names, for messages."""
        return ", ".join(shortened(visible(name), 40) for name in list(self.values)[:30])

    def usual(self, names: Sequence[str], taken: Iterable[str] = ()) -> str | None:
        """The first column that has one of some usual names; case, spaces and hyphens do not count."""
        known = {_usual(name): name for name in reversed(self.values) if name not in set(taken)}
        return next((known[name] for name in names if name in known and self.filled(known[name])), None)

    def texts(self, name: str) -> list[list[str]]:
        """For each record the texts of a column: one, several of a list, or none of an empty cell."""
        return [texts_of(value) for value in self.values[name]]

    def filled(self, name: str) -> float:
        """The share of records in which a column has a text."""
        return sum(bool(texts) for texts in self.texts(name)) / self.count

    def is_list(self, name: str) -> bool:
        """Whether most values of a column are lists."""
        kinds = [isinstance(value, (list, tuple)) for value in self.values[name] if value is not None]
        return sum(kinds) > len(kinds) / 2

    def has_floats(self, name: str) -> bool:
        """Whether a column has numbers, and no texts, of which one is not whole."""
        values = [value for value in self.values[name] if value is not None]
        return not any(isinstance(value, str) for value in values) and any(isinstance(value, float) for value in values)

    def distinct(self, name: str) -> int:
        """How many different texts a column has."""
        return len({tuple(texts) for texts in self.texts(name) if texts})

    def different(self) -> list[int]:
        """The records that are not the same throughout as an earlier one."""
        rows = zip(*self.values.values(), strict=True)
        return list({repr(row): number for number, row in reversed(list(enumerate(rows)))}.values())

    def words(self, name: str) -> float:
        """The median number of words of a column's first texts; 0 if it has none."""
        return statistics.median([len(texts[0].split()) for texts in self.texts(name) if texts] or [0])


def texts_of(value: object) -> list[str]:
    """A text or number, or those of a list, as texts that are not blank."""
    items = value if isinstance(value, (list, tuple)) else [value]
    texts = [str(item) for item in items if isinstance(item, (str, int, float))]
    return [text for text in texts if text.strip()]


def _flat(values: Mapping[str, object]) -> Iterable[tuple[str, object]]:
    for name, value in values.items():
        # A column with another name is there a second time, under one that templates can read.
        if name.startswith("_") or not is_field(name):
            continue
        if isinstance(value, dict):
            keys = [key for key in value if isinstance(key, str) and is_field(key) and key not in _METHODS]
            yield from ((f"{name}.{key}", value[key]) for key in keys)
        else:
            yield name, value


def _usual(name: str) -> str:
    # answerKey is answer_key, and so are "Answer key" and "answer-key".
    return re.sub(r"[\s_-]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)).strip("_").lower()
