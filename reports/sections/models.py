"""The models of the pool: the leaderboard, the map, pairs, times, groups, and the lengths of responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.transforms import Bbox

from advisor.run.figures import GroupAccuracy, Measured
from advisor.run.result import CandidateFigures, Result
from ensemble.common import text
from reports.charts.axes import (
    NARROW,
    WIDE,
    add_scales,
    both_widths,
    clipped,
    draw_lines,
    log_limits,
    mark,
    point_axes,
    points_limits,
    write_names,
)
from reports.charts.rows import add_scale, row_axes
from reports.charts.svg import COLOURS, markup, named
from reports.report_data import ReportData
from reports.tables import Cell, Column, figures, leaderboard, make_table

_MOST_GROUPS, _MOST_MODELS = 40, 40
_SHADES = 9
# With fewer questions an interval is at least 40 points wide for most accuracies.
FEW = 20
_MOST_LENGTHS = 40  # candidates; with more, the page would show little else
_HEIGHT = 0.42  # of the highest bar of a histogram, in rows
MOST_CANDIDATES = 12  # in a matrix; with more, a map has no room for the names of all
_Square = tuple[int | None, str, str]  # the level of its colour, its value, and what it is


def models(report: ReportData) -> dict[str, Any]:
    """Return the template's values."""
    return {
        "finding": _finding(report.result),
        "table": leaderboard(report.result),
        "map": _accuracy_map(report.result),
        "pairs": pairs(report.result),
        "cost": cost(report.result),
    }


def _finding(result: Result) -> str:
    """Which model is the best one alone, and how far the next one is behind."""
    known = [(each.accuracy_all, each.model) for each in result.single_models if each.accuracy_all is not None]
    known = known or [(each.accuracy, each.name) for each in result.candidates if each.accuracy is not None]
    known.sort(key=lambda each: -each[0])
    if len(known) < 2:
        return f"{known[0][1]} is the only model with answers" if known else "The points of the models are not known"
    (best, name), (other, second) = known[:2]
    recommended = result.advice.recommendation
    if recommended is not None and recommended.is_single:
        # The first screen says which is the best one.
        number = text.in_words(len(known)).capitalize()
        return f"{number} models have {text.points(known[-1][0])} to {text.points(best)} points"
    behind = text.points(best - other)
    return f"Alone, {name} is the best of {text.in_words(len(known))}; {second} is {behind} points behind"


def group_models(report: ReportData) -> dict[str, Any] | None:
    """The accuracy of each model in each group; None if the questions have no groups."""
    result = report.result
    models = [candidate for candidate in result.candidates if candidate.groups]
    # All questions where all models answered them: figures on other questions would not be comparable.
    every = {each.model: each.groups for each in result.single_models if each.groups}
    has_all = bool(models) and all(candidate.name in every for candidate in models)
    groups_of = {each.name: (every[each.name] if has_all else each.groups) or {} for each in models}
    sizes: dict[str, int] = {}
    for own in groups_of.values():
        for name, group in own.items():
            sizes[name] = max(sizes.get(name, 0), group.n)
    if not sizes:
        return None
    shown = models[:_MOST_MODELS]
    # Of many groups the largest tell the most.
    names = sorted(sorted(sizes, key=lambda group: -sizes[group])[:_MOST_GROUPS])
    known_groups = [each for candidate in shown for each in groups_of[candidate.name].values()]
    accuracies = [each.accuracy for each in known_groups if each.accuracy is not None]
    low, high = min(accuracies, default=0.0), max(accuracies, default=0.0)

    def size(group: str) -> Cell:
        return Cell(f"{sizes[group]:,}", sizes[group], tag="few" if sizes[group] < FEW else "")

    def column(candidate: CandidateFigures) -> Column:
        def cell(name: str) -> Cell:
            group = groups_of[candidate.name].get(name, GroupAccuracy())
            if group.accuracy is None:
                return Cell(text.UNKNOWN, style="num")
            shade = min(int(_SHADES * (group.accuracy - low) / (high - low or 1.0)), _SHADES - 1)
            ends = text.interval(group.accuracy_ci) if group.accuracy_ci else ""
            return Cell(text.points(group.accuracy), group.accuracy, ends, style=f"num heat-{shade}")

        return Column(candidate.name, cell, "text", descending=True, style="model")

    columns = [Column("Group", Cell, "name"), Column("Questions", size, descending=True), *map(column, shown)]

    def spread(name: str) -> float:
        known = [own[name].accuracy or 0.0 for own in groups_of.values() if name in own]
        return max(known) - min(known) if sizes[name] >= FEW else 0.0

    widest = max(names, key=spread)
    return {
        "finding": f"The models differ most in {text.shortened(widest, 40)}: by {text.points(spread(widest))} points",
        "table": make_table("Groups and models", names, columns),
        "models": len(shown),
        "total": len(sizes),
        "left_out": len(models) - len(shown),
        "has_all": has_all,
        "few": FEW,
        "has_few": any(sizes[name] < FEW for name in names),
        "has_intervals": any(each.accuracy_ci for each in known_groups),
    }


def _accuracy_map(result: Result) -> dict[str, Any] | None:
    """The map; None if no candidate's length is known."""
    figure = both_widths(lambda width: _draw_map(result, width))
    return figure and {"figure": figure, "unnamed": len(result.candidates) > MOST_CANDIDATES}


def _draw_map(result: Result, width: int) -> str | None:
    known = [
        (candidate, length, candidate.accuracy)
        for candidate in result.candidates
        if candidate.accuracy is not None
        and (length := result.length_of(candidate)) is not None
        and candidate.status != "failed"
    ]
    if not known:
        return None
    wide = width == WIDE
    height = 420 if wide else 380
    axes = point_axes(width, height, *_limits(result, known), log=True)
    # What the file has outside of the scale is drawn at its end.
    points = [
        (each, clipped(length, axes.get_xlim()), clipped(accuracy, axes.get_ylim())) for each, length, accuracy in known
    ]
    roles = result.roles
    shapes = {
        each.name: each.status if result.can_decode else "selected" if each.name in roles else "rejected"
        for each in result.candidates
    }
    edges = _draw_region(axes, result) if result.can_decode else []
    intervals = [
        Bbox([[x, clipped(end, axes.get_ylim())] for end in candidate.accuracy_ci])
        for candidate, x, _ in points
        if candidate.accuracy_ci and (len(points) <= MOST_CANDIDATES or shapes[candidate.name] != "rejected")
    ]
    names = [
        (x, y, text.shortened(result.short_names[each.name], 28 if wide else 18), shapes[each.name] != "rejected")
        for each, x, y in points
        if len(points) <= MOST_CANDIDATES or shapes[each.name] != "rejected"
    ]
    names.sort(key=lambda name: not name[-1])  # the chosen ones first
    written = write_names(axes, names, [(x, y) for _, x, y in points], [*edges, *intervals])
    draw_lines(axes, edges, written, "band-edge", 1.2)
    draw_lines(axes, intervals, written, "muted", 1)
    for candidate, x, y in reversed(points):
        # The best candidates last, so that their marks lie above the others.
        long = f"{text.length(result.length_of(candidate))} {result.length_unit}"
        title = f"{candidate.name}: {text.points(candidate.accuracy)} points, {long}"
        mark(axes, x, y, shapes[candidate.name], title=title)
    add_scales(axes, f"mean response length, {result.length_unit} (log scale)", f"{result.measure}, points", width)
    label = f"Accuracy against mean response length of {len(points)} candidates; the leaderboard has the same numbers."
    return markup(axes, label)


def _limits(
    result: Result, known: list[tuple[CandidateFigures, float, float]]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return limits for lengths and accuracies that also have room for the region of the rules."""
    lengths = [length for _, length, _ in known]
    accuracies = [end for candidate, _, accuracy in known for end in (accuracy, *(candidate.accuracy_ci or ()))]
    primary = result.primary
    if result.can_decode and primary and (length := result.length_of(primary)) is not None:
        ratio = result.rules.max_length_ratio
        lengths += [length * ratio, length / ratio]
    if result.can_decode and primary and primary.accuracy is not None:
        accuracies.append(max(primary.accuracy - result.rules.max_gap, 0.0))
    # An empty response counts as one character, because a logarithm has no place for 0.
    return log_limits([max(length, 1.0) for length in lengths], 1.15), points_limits(accuracies)


def _draw_region(axes: Axes, result: Result) -> list[Bbox]:
    """Draw the accepted region, and return its edges, which names should not cross."""
    primary = result.primary
    if primary is None or primary.accuracy is None:
        return []
    (left, right), (floor, top) = axes.get_xlim(), axes.get_ylim()
    bottom = clipped(primary.accuracy - result.rules.max_gap, (floor, top))
    if length := result.length_of(primary):
        ratio = result.rules.max_length_ratio
        ends = length / ratio, length * ratio
        left, right = (clipped(end, axes.get_xlim()) for end in ends)
    region = Rectangle((left, bottom), right - left, top - bottom, linewidth=0, zorder=0.4, gid=named(region=1))
    region.set(facecolor=COLOURS["band"])
    axes.add_artist(region)
    level = [Bbox([[left, y], [right, y]]) for y in (bottom, top)]
    return level + [Bbox([[x, bottom], [x, top]]) for x in (left, right)]


def lengths(report: ReportData) -> dict[str, Any] | None:
    """Return the values of the lengths' template; None if no length is known."""
    result = report.result
    known = report.samples.lengths if report.samples else [()] * len(result.candidates)
    figure = both_widths(lambda width: _draw_lengths(result, known, width))
    means = [each.mean_length for each in result.candidates if each.mean_length is not None]
    if not figure or not means:
        return None
    shortest, longest = text.length(min(means)), text.length(max(means))
    spread = shortest if shortest == longest else f"{shortest} to {longest}"
    return {"figure": figure, "finding": f"Mean responses have {spread} characters"}


def _draw_lengths(result: Result, lengths_of: Sequence[Sequence[int]], width: int) -> str | None:
    rows = [(each, lengths) for each, lengths in zip(result.candidates, lengths_of, strict=True) if lengths]
    if not rows:
        return None
    rows = rows[:_MOST_LENGTHS]
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


@dataclass(frozen=True, slots=True)
class PairMeasure:
    """A measure of pairs: its key in ``result.json``, its texts, its format, and the fixed ends of its colours."""

    key: str
    title: str
    note: str
    written: Callable[[float | None], str]
    low: float | None = None
    high: float | None = None


def _percent(share: float | None) -> str:
    return text.UNKNOWN if share is None else f"{100 * share:.1f}"


# The measures of the page, in this order; others in ``result.json`` are ignored.
MEASURES = (
    PairMeasure("gap", "Gap", "Points of accuracy between the two. Lower fits better.", text.points, low=0.0),
    PairMeasure(
        "length_ratio", "Length ratio", "Longer over shorter mean response. Lower fits better.", text.decimals, low=1.0
    ),
    PairMeasure(
        "bleu", "BLEU", "Shared wording, up to 100. Low means different styles.", text.points, low=0.0, high=100.0
    ),
    PairMeasure(
        "both_wrong_same",
        "Same wrong answer",
        "Percent of questions. An ensemble seldom corrects these.",
        _percent,
        low=0.0,
    ),
    PairMeasure(
        "kappa",
        "Agreement",
        "Cohen’s kappa of being right. Lower leaves more to gain.",
        text.decimals,
        low=0.0,
        high=1.0,
    ),
    PairMeasure("oracle", "Oracle", "Points if the better answer were always taken.", text.points, high=100.0),
)


def pairs(result: Result) -> dict[str, Any] | None:
    """How alike each two candidates are; None without pairs."""
    by_index = _by_index(result)
    if not by_index:
        return None
    measures = [measure for measure in MEASURES if any(measure.key in known for known in by_index.values())]
    paired = {index for pair in by_index for index in pair}
    # Those of the recommendation first, then the best ones.
    order = sorted(paired, key=lambda index: (result.candidates[index].name not in result.roles, index))
    candidates = [(index, result.candidates[index]) for index in sorted(order[:MOST_CANDIDATES])]
    return {
        "matrices": [(measure, _matrix(measure, candidates, by_index, result.short_names)) for measure in measures],
        "left_out": len(paired) - len(candidates),
    }


def _by_index(result: Result) -> dict[tuple[int, int], dict[str, float]]:
    """The known measures of each pair, by the places of its candidates."""
    places = {candidate.model: index for index, candidate in enumerate(result.candidates)}
    return {
        (places[pair.a], places[pair.b]): pair.known()
        for pair in result.pairs
        if pair.a in places and pair.b in places and pair.a != pair.b
    }


def _matrix(
    measure: PairMeasure,
    candidates: list[tuple[int, CandidateFigures]],
    pairs: Mapping[tuple[int, int], Mapping[str, float]],
    short_names: Mapping[str, str],
) -> list[tuple[str, list[_Square]]]:
    """Return a measure as a staircase: for each candidate its name, and a cell for each candidate before it."""
    known = [pair[measure.key] for pair in pairs.values() if measure.key in pair]
    low = min(known, default=0.0) if measure.low is None else measure.low
    # Equal values would make a scale of no width.
    high = max(max(known, default=1.0) if measure.high is None else measure.high, low + 1e-9 * max(1.0, abs(low)))

    def cell(one: tuple[int, CandidateFigures], other: tuple[int, CandidateFigures]) -> _Square:
        (a, first), (b, second) = one, other
        # The file may have a pair in either order.
        value = (pairs.get((b, a)) or pairs.get((a, b)) or {}).get(measure.key)
        level = None if value is None else min(max(int(_SHADES * (value - low) / (high - low)), 0), _SHADES - 1)
        written = measure.written(value)
        return level, written, f"{first.name} and {second.name}: {written}"

    return [
        (text.shortened(short_names[one[1].name], 30), [cell(one, other) for other in candidates[:row]])
        for row, one in enumerate(candidates)
    ]


def cost(result: Result) -> dict[str, Any] | None:
    """What the responses took; None if no cost is known."""
    run = result.ensemble
    together = (run, *run.members) if run else ()
    # Responses of another tool have no cost.
    rows: list[Measured] = [each for each in (*together, *result.candidates) if each.has_cost]
    if not rows:
        return None

    def questions(each: Any) -> Cell:
        if run and each in together:
            n, split = run.n, run.split
        else:
            n, split = result.task.n if each.n is None else each.n, result.task.split
        return Cell(f"{n:,} {split.replace('_', '-')}", split)

    def request(each: Measured) -> Cell:
        median, slow = each.seconds_median, each.seconds_p95
        return Cell(text.UNKNOWN if median is None else f"{text.duration(median)} ({text.duration(slow)})", median)

    columns = [
        Column("Model", lambda each: Cell(each.name + (" ensemble" if each is run else "")), "name"),
        Column("Questions", questions, "text"),
        figures("seconds_total", "Time", text.seconds),
        Column("Request, median (95%)", request),
        figures("tokens_per_second", "Tokens/s", text.amount),
        figures("peak_memory", "Memory", text.memory),
    ]
    return {
        "table": make_table("Time", rows, columns, lambda each: "together" if each is run else ""),
    }
