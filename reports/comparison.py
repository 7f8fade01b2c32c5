"""The page of ``advisor compare``: one self-contained HTML file in the look of the report, without a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ensemble.common import text
from reports.charts.canvas import Canvas, plain_style
from reports.charts.rows import COLUMN, WIDE, axis, both_widths
from reports.charts.scales import Scale
from reports.page import content_hash, contents, make_environment, write_html

_STYLES = ("style.css", "figures.css")
_SHAPES = {"better": "ensemble", "worse": "rejected", "equal": "selected", "unclear": "selected"}


def write_comparison(path: Path, comparison: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]) -> Path:
    """Write the page of a comparison to a file, and return its path.

    Args:
        path: The file.
        comparison: The figures, in the form of ``advisor compare --json``.
        pairs: The pairs of it that are shown.

    Raises:
        InputError: The file cannot be written.
    """
    with plain_style():
        figure = both_widths(lambda width: _draw(comparison, pairs, width))
    style = contents(*_STYLES)
    page = (
        make_environment()
        .get_template("compare.html.j2")
        .render(
            comparison=comparison,
            pairs=pairs,
            with_baseline=_with_baseline(comparison, pairs),
            # The JSON has the order that the user gave.
            models=sorted(comparison["models"], key=lambda model: -float(model["accuracy"])),
            headline=_headline(comparison, pairs),
            confidence=text.percent(comparison["confidence"]),
            figure=figure,
            style=Markup(style),
            style_hash=content_hash(style),
        )
    )
    return write_html(path, page)


def _headline(comparison: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]) -> str:
    if len(pairs) > 1:
        return f"{len(comparison['models'])} models on the same {comparison['n']:,} questions"
    (pair,) = pairs
    return text.verdict(pair["verdict"], pair["b"], pair["a"], comparison["margin"])


def _with_baseline(comparison: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]) -> bool:
    return all(pair["a"] == comparison["baseline"] for pair in pairs)


def _draw(comparison: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]], width: int) -> str:
    """Draw the difference of each pair with its interval; the band is the margin of equality."""
    wide, short = width == WIDE, _with_baseline(comparison, pairs)
    # Two names are too long beside a line.
    beside = wide and short
    start, step, foot = (COLUMN, 30, 44) if beside else (8, 46, 44)
    canvas = Canvas(width, step * len(pairs) + foot)
    margin = comparison["margin"]
    ends = [end for pair in pairs for end in pair["difference_ci"]] + [-margin, margin]
    pad = 0.04 * (max(ends) - min(ends))
    x = Scale(min(ends) - pad, max(ends) + pad, start, width - 62)
    canvas.box(x(-margin), foot, x(margin), canvas.height, "band")
    axis(canvas, x, foot, "difference, points", 9 if wide else 5)
    canvas.line((x(0), foot), (x(0), canvas.height), "muted", dash=(3, 3))
    for index, pair in enumerate(pairs):
        y, shape = canvas.height - step * index - (step / 2 if beside else 31), _SHAPES[pair["verdict"]]
        name = pair["b"] if short else f"{pair['b']} – {pair['a']}"
        canvas.text(
            0 if beside else x.start, y + (0 if beside else 17), text.shortened(name, 24 if beside else width // 9)
        )
        low, high = pair["difference_ci"]
        canvas.line((x(low), y), (x(high), y), shape, width=2)
        title = f"{name}: {text.difference(pair['difference'])} points, {text.difference_interval((low, high))}"
        canvas.mark(x(pair["difference"]), y, shape, title=title)
        canvas.text(width - 4, y, text.difference(pair["difference"]), size=12.5, align="right")
    return canvas.markup(f"Differences of {len(pairs)} pairs with intervals, in points; the table has the numbers.")
