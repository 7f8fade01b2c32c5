"""JSON, field by field: the share of fields in which the JSON object of the response equals an accepted one.

    >>> METRIC.score('{"name": "Ann", "age": 40, "city": "Rome"}', ('{"name": "Ann", "age": 41}',), ())
    (0.3333333333333333, '{"age":40,"city":"Rome","name":"Ann"}')

The fields are the keys of either object, so a missing and an additional one count as wrong. A field whose value is an
object or a list is right as a whole or not. Values that are no objects are compared as a whole, as by `json`.
"""

from __future__ import annotations

from typing import Any

from advisor.tasks.metrics._json import canonical
from advisor.tasks.metrics.json import Json


class JsonFields(Json):
    """The share of equal fields, 0 to 1, for the accepted value that fits best."""

    def _share(self, value: Any, reference: Any) -> float:
        if not (isinstance(value, dict) and isinstance(reference, dict) and (value or reference)):
            return super()._share(value, reference)
        keys = value.keys() | reference.keys()
        equal = sum(canonical(value[key]) == canonical(reference[key]) for key in value.keys() & reference.keys())
        return equal / len(keys)


METRIC = JsonFields()
