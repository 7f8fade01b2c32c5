"""Fusion at equal cost: the gain of each arm over its cost."""

from __future__ import annotations

from typing import Any

from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from advisor.runs.schema.arms import ArmsSection
from ensemble.common import text
from reports.charts.axes import WIDE, both_widths, clipped, linear_limits, log_limits, mark
from reports.charts.differences import shape_of
from reports.charts.scatter import add_scales, point_axes, write_names
from reports.charts.svg import COLOURS, markup
from reports.report_data import ReportData

_LOG_FROM = 10
"""From this ratio of the largest to the smallest cost on, a linear scale would press the cheap arms together."""


def values(report: ReportData) -> dict[str, Any] | None:
    """Return the template's values; None for a run without arms."""
    section = report.result.arms
    if section is None:
        return None
    return {
        "section": section,
        "rows": [(arm, section.cost_of(arm), text.share(section.share_of(arm))) for arm in section.arms],
        "left_out": [(each.arm.replace("_", " "), each.reason) for each in section.left_out],
        "interval": text.interval_name(section.confidence),
        "figure": both_widths(lambda width: _draw(section, width)),
    }


def _draw(section: ArmsSection, width: int) -> str | None:
    known = [
        (arm, arm.cost_per_1000, arm.gain, arm.gain_ci or (arm.gain, arm.gain))
        for arm in section.arms
        if arm.gain is not None and arm.cost_per_1000
    ]
    if len(known) < 2:
        return None
    costs, ends = [cost for _, cost, *_ in known], [end for *_, own in known for end in own]
    log = max(costs) > _LOG_FROM * min(costs)
    axes = point_axes(
        width, 400, log_limits(costs, 1.25) if log else linear_limits(costs, 0.08), linear_limits(ends), log=log
    )
    axes.axhline(0, color=COLOURS["muted"], linewidth=1, zorder=1)
    names = [(cost, gain, text.shortened(arm.title, 34), arm.arm == "fusion") for arm, cost, gain, _ in known]
    # The fusion gets its place first.
    names.sort(key=lambda each: not each[3])
    zero = Bbox([[axes.get_xlim()[0], 0], [axes.get_xlim()[1], 0]])
    lines = [zero, *(Bbox([[cost, own[0]], [cost, own[1]]]) for _, cost, _, own in known)]
    write_names(axes, names if width == WIDE else names[:1], [(cost, gain) for _, cost, gain, _ in known], lines)
    for arm, cost, gain, (low, high) in known:
        shape = "selected" if arm.arm in ("single", "cheapest") else shape_of(gain)
        ends_shown = [clipped(end, axes.get_ylim()) for end in (low, high)]
        axes.add_artist(Line2D([cost, cost], ends_shown, color=COLOURS[shape], linewidth=2, zorder=3))
        title = f"{arm.title}: {text.difference(gain)} points, {section.cost_of(arm)} {section.unit} of 1,000"
        mark(axes, cost, gain, shape, title=title)
    add_scales(axes, f"{section.unit} of 1,000 questions{' (log)' if log else ''}", "gain, points", width)
    return markup(axes, f"Gain over cost of {len(known)} arms, with intervals; the table has the numbers.")
