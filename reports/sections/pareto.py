"""Accuracy and cost: every strategy as a point, and the front of those that no other one beats in both."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from advisor.runs.schema.result import Result, StrategyFigures
from ensemble.common import text
from reports.charts.canvas import Canvas, Point
from reports.charts.differences import shape_of
from reports.charts.labels import Box, write_names
from reports.charts.rows import NARROW, WIDE, both_widths
from reports.charts.scales import Scale, points_scale
from reports.report_data import ReportData
from reports.sections.strategies import MOST_STRATEGIES

LEFT, RIGHT, TOP, BOTTOM = 34, 12, 12, 46
_NAME_SIZE = 12.5
_MOST_NAMES = 20
_LONGEST = {WIDE: 30, NARROW: 20}
# The attribute, what it is, and how a value is written; the first one that all strategies have is the axis.
_COSTS: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("price_per_1000", "price of 1,000 questions", text.price),
    ("seconds_per_question", "time of a question", text.duration),
    ("calls_per_question", "calls a question", text.decimals),
)
# A single model that is so many points worse than the best strategy would press the others together in the drawing.
_FARTHEST = 15
# From this ratio of the largest to the smallest cost on, a linear scale would press most points together.
_LOG_FROM = 10


def values(report: ReportData) -> dict[str, Any] | None:
    """Return the template's values; None if fewer than two strategies have an accuracy and a cost."""
    result = report.result
    rows = result.strategies[:MOST_STRATEGIES]
    found = next((cost for cost in _COSTS if rows and all(getattr(row, cost[0]) is not None for row in rows)), None)
    if found is None:
        return None
    key, what, written = found
    every = _every(result)
    known = [(row, getattr(row, key)) for row in every if row.accuracy is not None and getattr(row, key) is not None]
    if len(known) < 2:
        return None
    known.sort(key=lambda each: (-(each[0].accuracy or 0.0), each[1]))
    front = {id(row) for row in front_of(known)}
    chosen = result.recommended
    points = [(row, cost, id(row) in front, chosen is not None and row.key == chosen.key) for row, cost in known]
    best = known[0][0].accuracy or 0.0
    drawn = [each for each in points if each[0] in rows or each[2] or (each[0].accuracy or 0.0) >= best - _FARTHEST]
    return {
        "what": what,
        "unknown": len(every) - len(known),
        "far": len(points) - len(drawn),
        "farthest": _FARTHEST,
        "rows": [(row, _name(row), written(cost), cost, on_front, is_best) for row, cost, on_front, is_best in points],
        "recommended": chosen is not None,
        "figure": both_widths(lambda width: _draw(result, drawn, what, written, width)),
    }


def front_of(rows: Sequence[tuple[StrategyFigures, float]]) -> list[StrategyFigures]:
    """Return the strategies that are more accurate than all that cost the same or less, the cheapest first.

    Args:
        rows: Strategies with their costs.
    """
    front: list[StrategyFigures] = []
    for row, _ in sorted(rows, key=lambda each: (each[1], -(each[0].accuracy or 0.0))):
        if not front or (row.accuracy or 0.0) > (front[-1].accuracy or 0.0):
            front.append(row)
    return front


def _every(result: Result) -> list[StrategyFigures]:
    """All strategies, and the single models that the comparison has no row for."""
    rows = result.strategies[:MOST_STRATEGIES]
    singles = {row.members for row in rows if row.is_single}
    alone = (
        StrategyFigures(
            strategy="single",
            members=(each.model,),
            n=each.n,
            accuracy=each.accuracy,
            calls_per_question=1,
            seconds_per_question=each.seconds_per_question,
            price_per_1000=each.price_per_1000,
        )
        for each in result.single_models[:MOST_STRATEGIES]
    )
    return [*rows, *(row for row in alone if row.members not in singles)]


def _name(row: StrategyFigures) -> str:
    return text.strategy(*row.key)


def _draw(
    result: Result,
    points: Sequence[tuple[StrategyFigures, float, bool, bool]],
    what: str,
    written: Callable[[float | None], str],
    width: int,
) -> str:
    canvas = Canvas(width, 400 if width == WIDE else 380)
    costs, accuracies = [cost for _, cost, *_ in points], [row.accuracy or 0.0 for row, *_ in points]
    # Room for the mark of a point at the edge.
    x, y = _cost_scale(costs, width), points_scale(accuracies, BOTTOM + 8, canvas.height - TOP, pad=1.0)
    measure = result.measure
    _draw_frame(canvas, x, y, measure, what)
    places = [((x(cost), y(row.accuracy or 0.0)), row, on_front, best) for row, cost, on_front, best in points]
    edges = _draw_front(canvas, sorted(at for at, _, on_front, _ in places if on_front), x.end)
    bounds = Box(x.start + 2, BOTTOM + 2, width - 2, canvas.height)
    _write_names(canvas, result, places, edges, bounds)
    for (at, row, _, best), (_, cost, *_) in reversed(list(zip(places, points, strict=True))):
        gain = (
            ""
            if row.measured_gain is None or row.is_single
            else f", {text.difference(row.measured_gain)} points measured"
        )
        title = f"{_name(row)}: {text.points(row.accuracy)} points{gain}, {what} {written(cost)}"
        colour = "selected" if row.is_single else shape_of(row.measured_gain or 0.0)
        canvas.mark(*at, "primary" if best else colour, colour=colour, title=title)
    return canvas.markup(f"{measure.capitalize()} against the {what} of {len(points)} strategies; the table has both.")


def _cost_scale(costs: Sequence[float], width: int) -> Scale:
    least, most = min(costs), max(costs)
    if least > 0 and most / least > _LOG_FROM:
        return Scale(least / 1.25, most * 1.25, LEFT, width - RIGHT, log=True)
    pad = 0.06 * (most - least) or 0.5
    return Scale(max(least - pad, 0.0), most + pad, LEFT, width - RIGHT)


def _draw_frame(canvas: Canvas, x: Scale, y: Scale, measure: str, what: str) -> None:
    for value in y.ticks(7):
        canvas.line((x.start, y(value)), (x.end, y(value)), "rule", width=0.8)
        canvas.text(x.start - 7, y(value), f"{value:g}", size=11.5, colour="muted", align="right")
    canvas.line((x.start, BOTTOM), (x.end, BOTTOM), "muted")
    unit = {"price of 1,000 questions": ", dollars", "time of a question": ", seconds"}.get(what, "")
    for value in x.ticks(5 if canvas.width == NARROW else 9):
        canvas.line((x(value), BOTTOM), (x(value), BOTTOM - 4), "muted")
        canvas.text(x(value), BOTTOM - 14, f"{value:,.3g}", size=11.5, colour="muted", align="center")
    canvas.text(0, 9, f"↑ {measure}, points", size=11.5, colour="muted")
    scale = " (log)" if x.log else ""
    canvas.text(x.end, 9, f"{what}{unit}{scale} →", size=11.5, colour="muted", align="right")


def _draw_front(canvas: Canvas, front: Sequence[Point], end: float) -> list[Box]:
    """Draw the front as steps, because nothing is known to lie between two strategies; return the steps' boxes."""
    corners: list[Point] = []
    for at in front:
        corners += [(at[0], corners[-1][1]), at] if corners else [at]
    corners.append((end, corners[-1][1]))
    boxes = []
    for (left, bottom), (right, top) in itertools.pairwise(corners):
        canvas.line((left, bottom), (right, top), "accent", width=2)
        boxes.append(Box(left - 2, bottom - 2, right + 2, top + 2))
    return boxes


def _write_names(
    canvas: Canvas,
    result: Result,
    places: Sequence[tuple[Point, StrategyFigures, bool, bool]],
    edges: Sequence[Box],
    bounds: Box,
) -> None:
    longest = _LONGEST[WIDE if canvas.width == WIDE else NARROW]
    named = []
    for number, (at, row, on_front, best) in enumerate(places, start=1):
        # Dozens of single models may share one cost: then most have their names only on hover, and in the table.
        if number <= _MOST_NAMES or on_front or best:
            short = text.strategy(row.strategy, [result.short_names.get(name, name) for name in row.members], row.draws)
            named.append((at, text.shortened(short, longest), f"no. {number}", on_front or best, best))
    # The recommended one gets the best place, then the front.
    named.sort(key=lambda each: (not each[4], not each[3]))
    labels = [(at, name, short, bold) for at, name, short, bold, _ in named]
    write_names(canvas, labels, _NAME_SIZE, [at for at, *_ in places], edges, bounds)
