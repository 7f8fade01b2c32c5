"""Response lengths: a histogram of each candidate's responses on one logarithmic scale, with the mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from advisor.runs.schema.result import CandidateFigures, Result
from ensemble.common import text
from reports.charts.canvas import Canvas
from reports.charts.rows import COLUMN, NARROW, WIDE, axis, both_widths, row_name
from reports.charts.scales import Scale, length_scale
from reports.report_data import ReportData

MOST_CANDIDATES = 40  # with more, the page would show little else
_HEIGHT = 26.0


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
    start, step, foot = (COLUMN, 50, 44) if width == WIDE else (8, 60, 44)
    canvas = Canvas(width, step * len(rows) + foot)
    means = [each.mean_length for each, _ in rows if each.mean_length is not None]
    x = length_scale([float(length) for _, lengths in rows for length in lengths] + means, start, width - 12, pad=1.12)
    primary = result.primary
    if primary and primary.mean_length:
        ratio = result.rules.max_length_ratio
        canvas.box(x(primary.mean_length / ratio), foot, x(primary.mean_length * ratio), canvas.height, "band")
    axis(canvas, x, foot, "response length, characters (log scale)", 5 if width == NARROW else 10)
    for index, (candidate, lengths) in enumerate(rows):
        base = canvas.height - step * (index + 1) + 12
        _histogram(canvas, lengths, x, base)
        name, above = result.short_names[candidate.name], base + (8 if width == WIDE else 0)
        row_name(canvas, name, x, above, 38, bold=candidate.status != "rejected")
        _mean(canvas, candidate, x, base)
    return canvas.markup(f"How the response lengths of {len(rows)} candidates are spread, with the mean of each.")


def _histogram(canvas: Canvas, lengths: Sequence[int], x: Scale, base: float) -> None:
    bins = 56 if canvas.width > NARROW else 36
    counts = [0] * bins
    for length in lengths:
        share = (x(max(length, 1)) - x.start) / (x.end - x.start)
        counts[min(int(share * bins), bins - 1)] += 1
    # Square roots keep rare lengths visible beside many equal ones.
    heights = [_HEIGHT * math.sqrt(count / max(counts)) for count in counts]
    step = (x.end - x.start) / bins
    # One outline: a box for each bar would make this the largest part of the page.
    corners = [(x.start + (index + side) * step, base + heights[index]) for index in range(bins) for side in (0, 1)]
    canvas.area([(x.start, base), *corners, (x.end, base)], "bar")
    canvas.line((x.start, base), (x.end, base), "rule")


def _mean(canvas: Canvas, candidate: CandidateFigures, x: Scale, base: float) -> None:
    if candidate.mean_length is not None:
        title = f"{candidate.name}: mean {text.length(candidate.mean_length)} characters"
        canvas.mark(x(candidate.mean_length), base, candidate.status, title=title)
