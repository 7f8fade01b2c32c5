"""Every drawing of the report: the map, the ensemble against its members, the lengths, the pair matrices, the methods.

A drawing that would be too small on a phone is made twice, once for a narrow page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports import words
from reports.evaluation import Evaluation
from reports.examples import Samples
from reports.mapping import draw_map
from reports.matrices import Matrix, draw_matrices
from reports.methods import draw_methods
from reports.model import Candidate, EnsembleRun, Result
from reports.rows import COLUMN, NARROW, WIDE, Drawing, Row, axis, both, interval_mark, row_name
from reports.scales import Scale, length_scale, points_scale
from reports.svg import Canvas, plain_style


@dataclass(frozen=True, slots=True)
class Figures:
    """The report's drawings; None where the run has nothing to draw."""

    delta: str | None
    map: Drawing | None
    ensemble: Drawing | None
    lengths: Drawing | None
    matrices: tuple[Matrix, ...]
    methods: Drawing | None


def draw(result: Result, samples: Samples | None, evaluation: Evaluation | None = None) -> Figures:
    """Draw everything that the run has the numbers for."""
    with plain_style():
        return Figures(
            delta=draw_delta(result.ensemble),
            map=both(draw_map(result, WIDE, 420), draw_map(result, NARROW, 380)),
            ensemble=both(draw_ensemble(result, WIDE), draw_ensemble(result, NARROW)),
            lengths=both(draw_lengths(result, samples, WIDE), draw_lengths(result, samples, NARROW)),
            matrices=draw_matrices(result),
            methods=both(draw_methods(evaluation, WIDE), draw_methods(evaluation, NARROW)),
        )


def draw_delta(run: EnsembleRun | None) -> str | None:
    """Draw the difference to the best single model with its interval, beside zero; None where either is unknown."""
    if run is None or run.delta is None or run.delta_ci is None:
        return None
    low, high = run.delta_ci
    reach = max(high, 0.0) - min(low, 0.0) or 1.0
    canvas = Canvas(NARROW, 64)
    x = Scale(min(low, 0.0) - 0.12 * reach, max(high, 0.0) + 0.12 * reach, 6, NARROW - 6)
    y, zero = 42.0, x(0.0)
    canvas.line((x.start, y), (x.end, y), "rule")
    canvas.line((zero, y - 16), (zero, y + 16), "muted", dash=(3, 3))
    canvas.line((x(low), y), (x(high), y), "ensemble", width=4)
    canvas.mark(x(run.delta), y, "ensemble")
    # The ends are named below the line and zero above it: they may be close together.
    aside = 6 if zero < NARROW / 2 else -6
    canvas.text(zero + aside, y + 14, "no difference", size=12, colour="muted", align="left" if aside > 0 else "right")
    for end, align in ((low, "left"), (high, "right")):
        canvas.text(x(end), y - 20, words.difference(end), size=12, colour="muted", align=align)
    return canvas.markup(
        f"The difference is {words.difference(run.delta)}, interval {words.difference_interval(run.delta_ci)}."
    )


def draw_ensemble(result: Result, width: int) -> str | None:
    """Draw the ensemble and its members, each with its interval; None where nothing was run together."""
    run, short_names = result.ensemble, result.short_names
    if run is None or run.accuracy is None:
        return None
    rows = [Row(f"{run.method} ensemble", "ensemble", run.accuracy, run.accuracy_ci)]
    rows += [
        Row(short_names.get(each.model, each.model), "selected", each.accuracy, each.accuracy_ci)
        for each in run.members
        if each.accuracy is not None
    ]
    start, step, foot = (COLUMN, 38, 44) if width == WIDE else (8, 46, 44)
    canvas = Canvas(width, step * len(rows) + foot)
    ends = [end for row in rows for end in (row.accuracy, *(row.interval or ()))]
    x = points_scale(ends, start, width - 52, pad=1.5)
    axis(canvas, x, foot, "accuracy, points", 5 if width == NARROW else 10)
    if run.best_single is not None:
        at = x(run.best_single)
        canvas.line((at, foot), (at, canvas.height), "muted", dash=(3, 3))
    for index, row in enumerate(rows):
        _interval_row(canvas, row, x, canvas.height - step * index - (step / 2 if width == WIDE else 31))
    label = f"Accuracy of the ensemble and of its {len(rows) - 1} members, with intervals; the table has the numbers."
    return canvas.markup(label)


def draw_lengths(result: Result, samples: Samples | None, width: int) -> str | None:
    """Draw how each candidate's response lengths are spread, on one logarithmic scale; None without samples."""
    rows = [
        (each, samples.lengths[each.index]) for each in result.candidates if samples and samples.lengths[each.index]
    ]
    if not rows:
        return None
    short_names = result.short_names
    rows = rows[:40]  # with more the page would be nothing else
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
        _spread(canvas, candidate, short_names[candidate.model], lengths, x, canvas.height - step * (index + 1) + 12)
    return canvas.markup(f"How the response lengths of {len(rows)} candidates are spread, with the mean of each.")


def _interval_row(canvas: Canvas, row: Row, x: Scale, y: float) -> None:
    bold = row.shape == "ensemble"
    row_name(canvas, row.name, x, y, 17, bold=bold)
    interval_mark(canvas, row, x, y)
    canvas.text(canvas.width - 4, y, words.points(row.accuracy), size=13, bold=bold, align="right")


def _spread(canvas: Canvas, candidate: Candidate, name: str, lengths: Sequence[int], x: Scale, base: float) -> None:
    """Draw a histogram over equal steps of the scale, with the mean as the candidate's mark."""
    bins, tall = 56 if canvas.width > NARROW else 36, 26.0
    counts = [0] * bins
    for length in lengths:
        share = (x(max(length, 1)) - x.start) / (x.end - x.start)
        counts[min(int(share * bins), bins - 1)] += 1
    # The root keeps rare lengths in sight beside a spike of equal ones.
    heights = [tall * math.sqrt(count / max(counts)) for count in counts]
    step = (x.end - x.start) / bins
    for index, height in enumerate(heights):
        if height:
            left = x.start + index * step
            canvas.box(left + 0.5, base, left + step - 0.5, base + height, "bar")
    canvas.line((x.start, base), (x.end, base), "rule")
    row_name(canvas, name, x, base + (8 if canvas.width == WIDE else 0), 38, bold=candidate.status != "rejected")
    if candidate.mean_length is not None:
        title = f"{candidate.model}: mean {words.length(candidate.mean_length)} characters"
        canvas.mark(x(candidate.mean_length), base, candidate.status, title=title)
