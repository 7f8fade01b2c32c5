"""Fill the tables of docs/figures*.md from benchmarks/results: ``python -m benchmarks._rows decode equality``.

A row is ``| quantity | `key` | measured | target |``. Its measured value and target are written again; words after
``missed`` and rows of keys that are not in the results stay as they are.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._measure import RESULTS, ROOT, Figure

PAGES = sorted((ROOT / "docs").glob("figures*.md"))
_ROW = re.compile(r"^\|(?P<quantity>[^|]*)\| `(?P<key>\w+)` \|[^|]*\|(?P<target>[^|]*)\|$")


def main(given: Sequence[str] | None = None) -> int:
    """Write the pages again, and name the figures that they have no row for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", help="names of files in benchmarks/results, without .json")
    parser.add_argument("--pages", type=Path, nargs="+", default=PAGES, help="the pages")
    options = parser.parse_args(given)
    figures: dict[str, Figure] = {}
    for name in options.results:
        kept = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["figures"]
        figures |= {key: figure_of(key, one) for key, one in kept.items()}
    shown: set[str] = set()
    new = 0
    for page in options.pages:
        lines = page.read_text(encoding="utf-8").splitlines()
        filled = [row_of(line, figures) for line in lines]
        page.write_text("\n".join(filled) + "\n", encoding="utf-8")
        shown |= {match["key"] for line in lines if (match := _ROW.match(line))}
        new += sum(a != b for a, b in zip(lines, filled, strict=True))
    print(f"{new} rows are new")
    for key in sorted(key for key, figure in figures.items() if figure.limit and key not in shown):
        print(f"no row: {key}")
    return 0


def figure_of(key: str, kept: dict[str, Any]) -> Figure:
    """A figure as its file keeps it."""
    return Figure(key, kept["value"], kept["low"], kept["high"], kept["limit"], kept["note"])


def row_of(line: str, figures: dict[str, Figure]) -> str:
    """A line of the page, with what was measured if it is the row of one of the figures."""
    match = _ROW.match(line)
    if match is None or match["key"] not in figures:
        return line
    figure = figures[match["key"]]
    missed = figure.limit and not figure.held
    # A reason that was written by hand stays while the target is missed.
    reason = match["target"].partition("missed")[2].strip() if missed else ""
    target = f"{figure.limit}: missed" if missed else figure.limit
    measured = "not measured" if figure.value is None else rounded(figure.value)
    return (
        f"|{match['quantity']}| `{match['key']}` | {measured} | {' '.join(part for part in (target, reason) if part)} |"
    )


def rounded(value: float) -> str:
    """A value with two or three digits; whole numbers as they are."""
    if value == round(value):
        return str(round(value))
    return f"{value:.{max(0, 2 - max(0, math.floor(math.log10(abs(value)))) + (abs(value) < 0.1))}f}"


if __name__ == "__main__":
    sys.exit(main())
