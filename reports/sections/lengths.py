"""Response lengths: a histogram of each candidate's responses on one logarithmic scale, with the mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from advisor.runs.schema.result import Result
from ensemble.common import text
from reports.charts.axes import NARROW, WIDE, both_widths, clipped, log_limits, mark
from reports.charts.rows import add_scale, row_axes
from reports.charts.svg import COLOURS, markup
from reports.report_data import ReportData

MOST_CANDIDATES = 40  # with more, the page would show little else
_HEIGHT = 0.42  # of the highest bar of a histogram, in rows


def values(report: ReportData) -> dict[str, Any] | None:
    """Return the template's values; None if no length is known."""
    result = report.result
    lengths = report.samples.lengths if report.samples else [()] * len(result.candidates)
    figure = both_widths(lambda width: _draw(result, lengths, width))
    return figure and {"figure": figure}


def _draw(result: Result, lengths_of: Sequence[Sequence[int]], width: int) -> str | None:
    rows = [(each, lengths) for each, lengths in zip(result.candidates, lengths_of, strict=True) if lengths]
    if not rows:
        return None
    rows = rows[:MOST_CANDIDATES]
    names = [result.short_names[each.name] for each, _ in rows]
    bold = set(result.selected) if result.can_decode else set(result.roles)
    axes = row_axes(names, width, row=50 if width == WIDE else 60, bold=[each.name in bold for each, _ in rows])
    means = [each.mean_length for each, _ in rows if each.mean_length is not None]
    # An empty response counts as one character, because a logarithm has no place for 0.
    every = [max(length, 1.0) for length in (*means, *(length for _, lengths in rows for length in lengths))]
    limits = log_limits(every, 1.12)
    add_scale(axes, "response length, characters (log scale)", limits, 5 if width == NARROW else 10, log=True)
    primary = result.primary
    # The rule reads tokens where models think, and these are lengths of answers.
    if result.can_decode and primary and primary.mean_length and result.length_unit == "characters":
        ratio = result.rules.max_length_ratio
        low, high = (clipped(end, limits) for end in (primary.mean_length / ratio, primary.mean_length * ratio))
        axes.axvspan(low, high, facecolor=COLOURS["band"], linewidth=0, zorder=0)
    edges = np.geomspace(*limits, (56 if width == WIDE else 36) + 1)
    for y, (candidate, lengths) in enumerate(rows):
        # Square roots keep rare lengths visible beside many equal ones.
        heights = np.sqrt(np.histogram(np.clip(lengths, *limits), edges)[0])
        base, height = y + 0.26, _HEIGHT * heights / max(heights.max(), 1)
        # One outline: a box for each bar would make this the largest part of the page.
        axes.stairs(base - height, edges, baseline=base, fill=True, facecolor=COLOURS["bar"], linewidth=0, zorder=2)
        axes.axhline(base, color=COLOURS["rule"], linewidth=1)
        if candidate.mean_length is not None:
            title = f"{candidate.name}: mean {text.length(candidate.mean_length)} characters"
            shape = candidate.status if result.can_decode else "selected"
            mark(axes, candidate.mean_length, base, shape, title=title)
    label = f"How the response lengths of {len(rows)} candidates are spread, with the mean of each."
    return markup(axes, label)
