"""From numbers to pixels: linear and logarithmic scales, and where their ticks go."""

from __future__ import annotations

import math
from collections.abc import Sequence

_STEPS = (1, 2, 5, 10)
_LEAST = 1e-9


class Scale:
    """Numbers from ``low`` to ``high`` on pixels from ``start`` to ``end``; others go to the nearer end."""

    def __init__(self, low: float, high: float, start: float, end: float, *, log: bool = False) -> None:
        # A logarithm needs numbers above 0, and equal ends would make a scale of no length.
        self.low = max(low, _LEAST) if log else low
        self.high = max(high, self.low + _LEAST * max(1.0, abs(self.low)))
        self.start, self.end, self.log = start, end, log

    def __call__(self, value: float) -> float:
        """Return the pixel of a number."""
        low, high, at = (
            math.log(max(number, _LEAST)) if self.log else number for number in (self.low, self.high, value)
        )
        # A value outside the scale must not draw outside the canvas.
        share = min(max((at - low) / (high - low), 0.0), 1.0)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int) -> list[float]:
        """Return at most ``most`` round numbers on the scale."""
        return _log_ticks(self.low, self.high, most) if self.log else _linear_ticks(self.low, self.high, most)


def points_scale(values: Sequence[float], start: float, end: float, pad: float = 3.0) -> Scale:
    """Return a scale for accuracies, a little wider than the values, inside 0 to 100."""
    # The file may have accuracies outside of 0 to 100; they are drawn at the nearer end.
    low, high = min(max(min(values) - pad, 0.0), 99.0), min(max(values) + pad, 100.0)
    # Equal values would make a scale of no length.
    return Scale(low, max(high, low + 1.0), start, end)


def length_scale(values: Sequence[float], start: float, end: float, pad: float = 1.15) -> Scale:
    """Return a logarithmic scale for lengths, with equal distances for equal ratios; an empty response counts as 1."""
    at_least_one = [max(value, 1.0) for value in values]
    return Scale(min(at_least_one) / pad, max(at_least_one) * pad, start, end, log=True)


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    # The smallest power of ten whose multiples can be few enough.
    power = 10 ** math.floor(math.log10((high - low) / most))
    step = next(size * power for size in _STEPS if (high - low) / (size * power) <= most)
    # The tolerance keeps ticks at the very ends, where the division is inexact.
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    # From many ticks per power of ten to one, until they fit.
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**power for power in powers for digit in digits if low <= digit * 10.0**power <= high]
        if len(ticks) <= most:
            break
    if len(ticks) < 3:  # a narrow scale is nearly a linear one
        ticks = [tick for tick in _linear_ticks(low, high, most) if tick == round(tick)] or ticks or [low]
    return ticks[:: math.ceil(len(ticks) / most)]
