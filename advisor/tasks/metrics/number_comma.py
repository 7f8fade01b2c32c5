r"""Number with a decimal comma: the number that the response gives as its answer equals the reference.

    >>> METRIC.score("Das macht 3 mal 454 \u20ac und 2 ct, also 1.362,02 \u20ac.", ("1362,02",), ())
    (1.0, '1362,02')

It is the metric `number` with points and commas exchanged. A task file takes it by `metric: number` with
`decimal: ","`. Not covered: texts in which both marks are decimal.
"""

from __future__ import annotations

from advisor.tasks.metrics._reading import FOLDED
from advisor.tasks.metrics.number import Number

_EXCHANGED = str.maketrans(",.", ".,")

METRIC = Number(lambda text: text.translate(FOLDED).translate(_EXCHANGED), ",")
