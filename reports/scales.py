"""From numbers to pixels: linear and logarithmic scales, and where their ticks go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_STEPS = (1, 2, 5, 10)


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers from ``low`` to ``high`` on pixels from ``start`` to ``end``; outside values land on the nearer end."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a number."""
        low, high, at = (math.log(max(number, 1e-9)) if self.log else number for number in (self.low, self.high, value))
        share = min(max((at - low) / (high - low), 0.0), 1.0)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int) -> list[float]:
        """Return round numbers on the scale, ``most`` at most."""
        return _log_ticks(self.low, self.high, most) if self.log else _linear_ticks(self.low, self.high, most)


def points_scale(values: Sequence[float], start: float, end: float, pad: float = 3.0) -> Scale:
    """Return a scale for accuracies, a little wider than the values, inside 0 to 100."""
    low, high = max(min(values) - pad, 0.0), min(max(values) + pad, 100.0)
    return Scale(low, max(high, low + 1.0), start, end)


def length_scale(values: Sequence[float], start: float, end: float, pad: float = 1.15) -> Scale:
    """Return a logarithmic scale for lengths, on which equal ratios are equally long; an empty response counts as 1."""
    at_least_one = [max(value, 1.0) for value in values]
    return Scale(min(at_least_one) / pad, max(at_least_one) * pad, start, end, log=True)


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    power = 10 ** math.floor(math.log10((high - low) / most))
    step = next(size * power for size in _STEPS if (high - low) / (size * power) <= most)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        found = [digit * 10.0**power for power in powers for digit in digits if low <= digit * 10.0**power <= high]
        if len(found) <= most:
            break
    if len(found) < 3:  # a narrow scale is nearly a linear one
        found = [tick for tick in _linear_ticks(low, high, most) if tick == round(tick)] or found or [low]
    return found[:: math.ceil(len(found) / most)]
