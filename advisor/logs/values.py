"""Values of untrusted logs: what can be used of them."""

from __future__ import annotations

import math
from typing import Any

from ensemble.errors import InputError

LONGEST_NAME = 500
"""Characters of a model's name."""
CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"})
"""How tools write that a response was cut off at a token limit, in lower case."""
# Floats hold every whole number up to here.
_LARGEST = 2**53
_LONGEST_LINE = 300


def text_of(value: object) -> str | None:
    """A text, or a finite number as text; None for other types and for absent values."""
    if isinstance(value, str):
        # JSON can spell half a surrogate pair, which no UTF-8 file can hold.
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, int):
        # Python refuses to write integers with thousands of digits.
        return str(value) if abs(value) < 10**100 else None
    return str(value) if math.isfinite(value) else None


def texts_of(value: object) -> tuple[str, ...] | None:
    """A list of texts or numbers as texts; None for anything else, or if the list is empty."""
    texts = [text_of(item) for item in value] if isinstance(value, (list, tuple)) else []
    known = tuple(text for text in texts if text is not None)
    return known if known and len(known) == len(texts) else None


def score_of(value: object) -> float | None:
    """A score between 0 and 1: a number in this range, or a truth value; None for anything else."""
    # NaN is in no range.
    return float(value) if isinstance(value, (int, float)) and 0 <= value <= 1 else None


def count_of(value: object) -> int | None:
    """A whole number of at least 0; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _LARGEST:
        return None
    return int(value) if value == int(value) else None


def amount_of(value: object) -> float | None:
    """A time or a sum of at least 0; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _LARGEST:
        return None
    return float(value)


def line_of(value: object) -> str | None:
    """A text in one line, cut after 300 characters; None for other types and blank texts."""
    return " ".join((text_of(value) or "")[:_LONGEST_LINE].split()) or None


def object_at(value: object, key: str) -> dict[str, Any]:
    """The object that an object has under a key; empty if one of the two is something else."""
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def check_name(name: str, place: str) -> str:
    """Check a model's name.

    Raises:
        InputError: It is empty or too long, or has characters that cannot be printed.
    """
    if not name.strip() or not name.isprintable() or len(name) > LONGEST_NAME:
        raise InputError(
            f"{place}: the model's name {name[:50]!a} is not a printable text of 1 to {LONGEST_NAME} characters; "
            "correct the log"
        )
    return name
