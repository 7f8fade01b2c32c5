"""In which fields an answer that is a JSON object differs from the reference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

MOST_FIELDS = 8  # in the page: a reader sees then that the whole answer is another one
_ABSENT = object()


def field_differences(answer: str | None, references: Sequence[str]) -> tuple[str, ...]:
    """The fields in which an answer differs from the reference that is the most like it, in words.

    Args:
        answer: What was read from a response.
        references: The accepted texts.

    Returns:
        For example ``age is 40, not 41``; empty if the answer or all references are no JSON objects.
    """
    own = _object(answer)
    accepted = [each for each in map(_object, references) if each is not None]
    if own is None or not accepted:
        return ()
    words = min((_compared(own, each) for each in accepted), key=len)
    more = len(words) - MOST_FIELDS
    return (*words[:MOST_FIELDS], *([f"{more} more fields"] if more > 0 else []))


def _compared(own: dict[str, Any], reference: dict[str, Any]) -> list[str]:
    words = []
    for name in dict.fromkeys([*reference, *own]):
        value, wanted = own.get(name, _ABSENT), reference.get(name, _ABSENT)
        if value is _ABSENT:
            words.append(f"{name} is missing")
        elif wanted is _ABSENT:
            words.append(f"{name} is not in the reference")
        elif value != wanted or isinstance(value, bool) != isinstance(wanted, bool):
            words.append(f"{name} is {_short(value)}, not {_short(wanted)}")
    return words


def _object(text: str | None) -> dict[str, Any] | None:
    # Most answers are no objects, and parsing costs time.
    if text is None or not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:39]}…"
