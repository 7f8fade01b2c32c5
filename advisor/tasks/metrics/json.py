r"""JSON: the JSON value of the response equals an accepted one.

    >>> METRIC.score('Here it is: {"age": 41.0, "name": "Ann"}', ('{"name": "Ann", "age": 41}',), ())
    (1.0, '{"age":41,"name":"Ann"}')

The value is the whole response, else the last fenced block, else the last object or list in the text. The order of
keys, white space, escapes and the spelling of numbers do not count. Not covered: lists in any order, values that only
mean the same ("41" and 41); see `json_fields` for a share of the fields.
"""

from __future__ import annotations

from typing import Any

from advisor.tasks.metrics._json import canonical, find_json, readable
from advisor.tasks.metrics._metric import Metric


def read(text: str) -> str:
    """The canonical form of the JSON value of a response, on one line; see :func:`find_json` for errors."""
    return canonical(find_json(text))


class Json(Metric):
    """1 if the JSON value of the response equals an accepted one, else 0."""

    def problem(self, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> str | None:
        """Each accepted text must be JSON."""
        for text in accepted:
            try:
                find_json(text)
            except ValueError as error:
                return f"the reference {text[:60]!r} is not valid JSON: {error}"
        return None

    def score(self, text: str, accepted: tuple[str, ...], _choices: tuple[str, ...], /) -> tuple[float, str | None]:
        """Compare the values; the answer is the canonical form of the response's value."""
        try:
            value = find_json(text)
        except ValueError:
            return 0.0, None
        shares = (self._share(value, reference) for reference in readable(accepted, find_json))
        return max(shares, default=0.0), canonical(value)

    def _share(self, value: Any, reference: Any) -> float:
        return float(canonical(value) == canonical(reference))


METRIC = Json()
