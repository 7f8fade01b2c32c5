"""The page of ``advisor compare``: one self-contained HTML file in the look of the report, without a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ensemble.common import text
from reports.charts.axes import WIDE, both_widths, interval, linear_limits, mark, reference
from reports.charts.rows import add_scale, row_axes, write_value
from reports.charts.svg import COLOURS, markup, plain_style
from reports.page import write_html
from reports.tables import compared_groups, compared_models, compared_pairs, has_baseline, pair_name

_SHAPES = {"better": "ensemble", "worse": "rejected", "equal": "selected", "unclear": "selected"}


def write_comparison(path: Path, comparison: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]) -> Path:
    """Write the page of a comparison, in the form of ``--json``, with some of its pairs to a file; return its path."""
    with plain_style():
        figure = both_widths(lambda width: _draw(comparison, pairs, width))
    return write_html(
        path,
        "compare.html.j2",
        styles=("style.css", "figures.css"),
        comparison=comparison,
        pairs=pairs,
        with_baseline=has_baseline(comparison, pairs),
        models=compared_models(comparison),
        differences=compared_pairs(comparison, pairs),
        groups=[(pair, compared_groups(pair, comparison["confidence"])) for pair in pairs if pair["groups"]],
        headline=_headline(comparison, pairs),
        confidence=text.percent(comparison["confidence"]),
        figure=figure,
    )


def _headline(comparison: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]) -> str:
    if len(pairs) > 1:
        return f"{len(comparison['models'])} models on the same {comparison['n']:,} questions"
    (pair,) = pairs
    return text.verdict(pair["verdict"], pair["b"], pair["a"], comparison["margin"])


def _draw(comparison: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]], width: int) -> str:
    """Draw the difference of each pair with its interval; the band is the margin of equality."""
    short = has_baseline(comparison, pairs)
    names = [pair_name(pair, with_baseline=short) for pair in pairs]
    margin = comparison["margin"]
    # Two names are too long beside a line.
    axes = row_axes(names, width, right=62, above=not short)
    ends = [end for pair in pairs for end in pair["difference_ci"]]
    add_scale(axes, "difference, points", linear_limits([*ends, -margin, margin], 0.04), 9 if width == WIDE else 5)
    axes.axvspan(-margin, margin, facecolor=COLOURS["band"], linewidth=0, zorder=0)
    reference(axes, 0)
    for y, (name, pair) in enumerate(zip(names, pairs, strict=True)):
        shape, (low, high) = _SHAPES[pair["verdict"]], pair["difference_ci"]
        interval(axes, low, high, y, shape)
        title = f"{name}: {text.difference(pair['difference'])} points, {text.difference_interval((low, high))}"
        mark(axes, pair["difference"], y, shape, title=title)
        write_value(axes, y, text.difference(pair["difference"]), 58)
    label = f"Differences of {len(pairs)} pairs with intervals, in points; the table has the numbers."
    return markup(axes, label)
