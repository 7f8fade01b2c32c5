"""What of a file is recorded, and where two records differ."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

BY_MACHINE = re.compile(
    r"(.*_)?seconds(_.*)?|(ms|tokens)_per_(token|second)|peak_memory|threads|versions|machine|date|day|created|loads"
)
"""Keys whose values differ by machine, day or load. They stay, and a value that is not null is written as ``...``."""
IN_TEXTS = (
    (re.compile(r"http://127\.0\.0\.1:\d+"), "SERVER"),
    (re.compile(r"(?<=unite-advisor:)[\d.]+\w*"), "VERSION"),
    (re.compile(r"(?<=judge:judge@)[0-9a-f]{12}"), "SERVER"),
    (re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,52}\b"), r"\1"),
)
"""Parts of texts: addresses, the hash of a judge's, this project's version; of long hashes only their beginning."""
LONG = {"prompt": 40}
"""Texts that are read from files of this project: of one that is longer, its beginning and the hash of all of it."""
FEW = {"candidates": ("probabilities", 2)}
"""Of the items of a list that have a key, the first ones alone: of a trace, the likeliest tokens of a step."""
ROUNDED = re.compile(r"\.trace\.")
"""Where numbers are rounded to four digits, so that another processor may write the next one."""
NAMES = ("id", "model", "strategy", "method", "models", "members", "a", "b", "split")
"""What tells the items of a list apart: they are compared by these, so that one more moves no others."""


def recorded(value: Any, places: Mapping[str, str], key: str = "") -> Any:
    """A value as it is recorded: by the rules above, and with folders (``places``) by their names."""
    if BY_MACHINE.fullmatch(key):
        return None if value is None else "..."
    if isinstance(value, dict):
        return {name: recorded(each, places, name) for name, each in value.items()}
    if isinstance(value, list):
        having, few = FEW.get(key, ("", 0))
        is_few = value and isinstance(value[0], dict) and having in value[0]
        return [recorded(each, places) for each in (value[:few] if is_few else value)]
    if not isinstance(value, str):
        return value
    for folder, name in places.items():
        value = value.replace(folder, name)
    for pattern, name in IN_TEXTS:
        value = pattern.sub(name, value)
    if len(value) > LONG.get(key, math.inf):
        return f"{value[: LONG[key]]}... {hashlib.sha256(value.encode()).hexdigest()[:8]}"
    return value


def dump(value: Any, indent: str = "") -> str:
    """JSON with one line for what fits on one."""
    short = json.dumps(value, ensure_ascii=False)
    if len(indent + short) <= 160 or not isinstance(value, (dict, list)):
        return short
    deeper = f"{indent} "
    if isinstance(value, dict):
        items = [f"{json.dumps(name)}: {dump(each, deeper)}" for name, each in value.items()]
    else:
        items = [dump(each, deeper) for each in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n{deeper}" + f",\n{deeper}".join(items) + f"\n{indent}{end}"


def differences(old: Any, new: Any) -> Iterator[str]:
    """Where two records differ: the path, what was recorded, and what is there now."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    for path in {**before, **after}:
        if path not in after:
            yield f"{path}: recorded {_shown(before[path])}, now gone"
        elif path not in before:
            yield f"{path}: not recorded, now {_shown(after[path])}"
        elif not _equal(before[path], after[path], path):
            yield f"{path}: recorded {_shown(before[path])}, now {_shown(after[path])}"


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a record by their paths; items of a list are known by their names, which have an order, too."""
    if not isinstance(value, (dict, list)) or not value:
        yield path, value
        return
    if isinstance(value, dict):
        items = list(value.items())
    else:
        names = [_name(each) for each in value]
        is_named = None not in names and len(set(names)) == len(names)
        items = list(zip(names if is_named else range(len(value)), value, strict=True))
        if is_named:
            yield f"{path} in order", names
    for name, each in items:
        yield from _leaves(each, f"{path}.{name}")


def _name(item: Any) -> str | None:
    """What an item of a list is told apart by; None if it has no name."""
    values = [item[name] for name in NAMES if name in item] if isinstance(item, dict) else []
    texts = [each if isinstance(each, list) else [each] for each in values]
    return " ".join(each for text in texts for each in text if isinstance(each, str)) or None


def _equal(old: Any, new: Any, path: str) -> bool:
    if type(old) in (int, float) and type(new) in (int, float):
        return math.isclose(old, new, rel_tol=1e-12, abs_tol=2e-4 if ROUNDED.search(path) else 1e-9)
    return type(old) is type(new) and bool(old == new)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}..."
