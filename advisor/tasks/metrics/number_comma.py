r"""Number with a decimal comma: the last number in the response equals the reference.

    >>> METRIC.score("Das macht 3 mal 454 \u20ac und 2 ct, also 1.362,02 \u20ac.", ("1362,02",), ())
    (1.0, '1362,02')

It is the metric `number` with points and commas exchanged; single spaces group three digits, too. A task file takes it
by `metric: number` with `decimal: ","`. Not covered: texts in which both marks are decimal.
"""

from __future__ import annotations

import re

from advisor.tasks.metrics.number import Number, numbers_in

_SPACED = re.compile(r"(?<!\d)\d{1,3}(?: \d{3})+(?!\d)")
_EXCHANGED = str.maketrans(",.", ".,")


def _numbers(text: str) -> list[str]:
    joined = _SPACED.sub(lambda match: match[0].replace(" ", ""), text)
    return [number.translate(_EXCHANGED) for number in numbers_in(joined.translate(_EXCHANGED))]


METRIC = Number(_numbers)
