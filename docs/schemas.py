"""Replace ``<!-- schema MODULE:CLASS -->`` by a table of the keys that the class states."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

_MARK = re.compile(r"<!-- schema (\S+):(\w+) -->")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Hook of mkdocs: change the text of a page before mkdocs converts it to HTML."""
    return _MARK.sub(lambda mark: _table(getattr(import_module(mark[1]), mark[2])), markdown)


def _table(model: Any) -> str:
    # A description may have several lines, and an unescaped | ends the cell of the table.
    rows = (
        (name, " ".join((field.description or "").split()).replace("|", r"\|"))
        for name, field in model.model_fields.items()
    )
    return "\n".join(("| key | content |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in rows)))
