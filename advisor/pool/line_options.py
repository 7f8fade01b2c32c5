"""The options of a line of the pool file: each is declared here once, with the values that it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ensemble.errors import InputError
from ensemble.models.gguf import SUFFIX
from ensemble.models.spec import CHAT_TEMPLATES, DTYPES, QUANTIZATIONS, READS, Price

Read = Callable[[str], Any]
"""Reads the text of a value; raises ValueError with what the value should be."""


def _one_of(allowed: Sequence[str]) -> Read:
    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"not one of {', '.join(allowed)}")
        return text

    return read


def _flag(text: str) -> bool:
    # A text, not a bare flag, because bool("false") would be True.
    return bool(_one_of(("true", "false"))(text) == "true")


def _gguf_file(text: str) -> str:
    if not text.lower().endswith(SUFFIX):
        raise ValueError(f"give the name of a file that ends in {SUFFIX}")
    return text


def _number(text: str, expected: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(expected)
    return number


def _cores(text: str) -> float:
    expected = "give a whole number, at least 1"
    number = _number(text, expected)
    if number < 1 or number % 1:
        raise ValueError(expected)
    return number


def _gpus(text: str) -> float:
    number = _number(text, "give a number, 0 or more")
    # Ray shares one GPU between several models, but a model cannot have one GPU and a half.
    if number > 1 and number % 1:
        raise ValueError("give a whole number, or a part of one GPU")
    return number


def _dollars(text: str) -> float:
    return _number(text, "give dollars per million tokens, a number of at least 0")


OPTIONS: Mapping[str, Read] = {
    "name": str,
    "dtype": _one_of(DTYPES),
    "device": str,
    "chat_template": _one_of(CHAT_TEMPLATES),
    "trust_remote_code": _flag,
    "source": str,
    "target": str,
    "reads": _one_of(READS),
    "gguf_file": _gguf_file,
    "quantization": _one_of(QUANTIZATIONS),
    "num_cpus": _cores,
    "num_gpus": _gpus,
    "price_in": _dollars,
    "price_out": _dollars,
}
"""The options of a model that is loaded. Lines of servers have theirs in :mod:`ensemble.servers.address`, and some of
these."""


def split_options(words: Sequence[str], place: str) -> dict[str, str]:
    """The options of a line as texts, by name.

    Args:
        words: The options, as ``key=value``.
        place: File and line, for messages.

    Raises:
        InputError: A word is not an option, or an option is given twice.
    """
    texts: dict[str, str] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or key not in OPTIONS:
            raise InputError(f"{word!r} is not an option of a model; the options are {', '.join(OPTIONS)}", of=place)
        if key in texts:
            raise InputError("an option is given twice", of=place)
        texts[key] = text
    return texts


def read_options(texts: Mapping[str, str], place: str) -> dict[str, Any]:
    """The values of all options by name; None for those that a line does not have.

    Args:
        texts: The options of the line.
        place: File and line, for messages.

    Raises:
        InputError: A value is not one of those that its option takes.
    """
    values: dict[str, Any] = dict.fromkeys(OPTIONS)
    for key, text in texts.items():
        try:
            values[key] = OPTIONS[key](text)
        except ValueError as error:
            raise InputError(f"{key}={text}: {error}", of=place) from None
    return values


def price_of(values: Mapping[str, Any], place: str) -> Price | None:
    """The prices among the values of :func:`read_options`; None without them.

    Raises:
        InputError: One of the two is missing.
    """
    price_in, price_out = values["price_in"], values["price_out"]
    if price_in is None and price_out is None:
        return None
    if price_in is None or price_out is None:
        missing = "price_in" if price_in is None else "price_out"
        raise InputError(f"{missing}= is missing; give both prices, in dollars per million tokens", of=place)
    return Price(price_in, price_out)
