"""What a model's tokens cost: ``price_in`` and ``price_out`` of a line of the pool file."""

from __future__ import annotations

import math

from ensemble.errors import InputError
from ensemble.models.spec import Price

OPTIONS = ("price_in", "price_out")


def read_price(options: dict[str, str], place: str) -> Price | None:
    """Take the prices out of the options of a pool line; None without them.

    Args:
        options: All options of the line, by name; the prices are removed.
        place: File and line, for messages.

    Raises:
        InputError: A price is not a number of at least 0, or one of the two is missing.
    """
    texts = {name: options.pop(name) for name in OPTIONS if name in options}
    if not texts:
        return None
    if missing := next((name for name in OPTIONS if name not in texts), None):
        raise InputError(f"{place}: {missing}= is missing; give both prices, in dollars per million tokens")
    return Price(*(_number(name, texts[name], place) for name in OPTIONS))


def _number(name: str, text: str, place: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise InputError(f"{place}: {name}={text}: give dollars per million tokens, a number of at least 0")
    return number
