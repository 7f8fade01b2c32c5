"""How many forms of values are read, refused or read wrong: ``python -m benchmarks.reading``; ``--json`` for an object.

The forms are those of ``tests/forms.py``, each as an object, and as a text in JSON and in Python, as a cell has it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from advisor.tasks.tables.values import UnknownFormError, accepted_texts, option_texts, parsed_text, response_text
from tests import forms

Kind = tuple[str, Mapping[str, Any], Callable[[Any], object], object]
KINDS: tuple[Kind, ...] = (
    ("responses", forms.RESPONSES, response_text, forms.TEXT),
    ("responses of unknown forms", forms.UNKNOWN_RESPONSES, response_text, None),
    ("references", forms.REFERENCES, accepted_texts, ("City 5", "Town 5")),
    ("references in a cell", forms.SPELLED_REFERENCES, accepted_texts, ("City 5", "Town 5")),
    ("options", forms.OPTIONS, option_texts, ("red", "green", "blue")),
    ("options in a cell", forms.SPELLED_OPTIONS, option_texts, ("red", "green", "blue")),
)
"""The name of a kind, its forms, what reads them, and the right value; None where each must be refused."""


def spellings(value: Any) -> Iterator[Any]:
    """A value as it is, and as the texts that a table may have for it."""
    yield value
    if not isinstance(value, str):
        yield parsed_text(json.dumps(value))
        yield parsed_text(repr(value))


def measure() -> dict[str, Any]:
    """The numbers of forms that were tried, read, refused and read wrong, and the reason of each refusal."""
    figures: dict[str, Any] = {"tried": 0, "read": 0, "refused": 0, "wrong": 0, "reasons": {}}
    for kind, known, read, right in KINDS:
        for name, form in known.items():
            for value in spellings(form):
                figures["tried"] += 1
                try:
                    found = read(value)
                except UnknownFormError as error:
                    figures["refused"] += 1
                    figures["reasons"][f"{kind}: {name}"] = str(error)
                    continue
                figures["read" if found == right else "wrong"] += 1
    return figures


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    figures = measure()
    if parser.parse_args().json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:8} {value}" if name != "reasons" else "")
    for name, reason in figures["reasons"].items():
        print(f"{name}: {reason}")


if __name__ == "__main__":
    main()
