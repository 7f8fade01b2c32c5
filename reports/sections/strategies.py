"""What to run as a headline, its gain and how certain that is; and every strategy: its accuracy, cost and groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from advisor.run.result import Result, StrategyFigures
from advisor.run.sentences import summary
from ensemble.common import text
from reports.charts.axes import (
    WIDE,
    add_scales,
    both_widths,
    clipped,
    linear_limits,
    log_limits,
    mark,
    point_axes,
    points_limits,
    write_names,
)
from reports.charts.rows import Mark, accuracy_and_cost, draw_difference, draw_differences, shape_of
from reports.charts.svg import COLOURS, markup
from reports.report_data import ReportData
from reports.tables import MOST_STRATEGIES, Cell, Column, figures, make_table, words
from reports.tables import strategies as strategies_table

_MOST_KNOWN_GROUPS = 1000  # a run gives no gains for more
_MOST_DRAWN = 20
_MOST_GROUPS = 40
_MOST_NAMED = 20
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


def strategies(report: ReportData) -> dict[str, Any] | None:
    """Return the template's values; None without strategies."""
    result = report.result
    rows, recommended = result.strategies[:MOST_STRATEGIES], result.advice.recommendation
    if not rows:
        return None
    return {
        "table": strategies_table(result),
        "total": len(result.strategies),
        "best_single": next((row.best_single_model for row in rows if row.best_single_model), ""),
        "interval": text.interval_name(result.advice.confidence),
        "notes": strategy_certainty(result, recommended) if recommended else "",
        "not_compared": [
            (each.strategy.replace("_", " "), each.same_as.replace("_", " "))
            for each in result.advice.not_compared[:MOST_STRATEGIES]
        ],
        "figure": both_widths(lambda width: _draw(result, width)),
    }


def groups(report: ReportData) -> dict[str, Any] | None:
    """Return the values of the groups' template; None if the recommended strategy has no groups."""
    result = report.result
    recommended = result.advice.recommendation
    # A single model gains nothing over itself.
    is_gain = recommended is not None and not recommended.is_single
    every = (recommended.groups or ())[:_MOST_KNOWN_GROUPS] if recommended and is_gain else ()
    if not every:
        return None
    # What is hurt must not be among those that are left out.
    rows = sorted(every, key=lambda each: (each.shown != "no", each.gain or 0.0))[:_MOST_GROUPS]
    drawn = [
        (each.group, [Mark(each.gain, each.gain_ci, shape_of(each.gain), "gain")], each.shown == "no")
        for each in rows
        if each.gain is not None
    ]
    if recommended is not None and (gain := recommended.measured_gain) is not None:
        pooled = Mark(gain, recommended.measured_gain_ci, shape_of(gain), "gain")
        drawn.insert(0, ("all questions", [pooled], False))
    label = f"Gain in {len(rows)} groups of questions, with intervals; the table has the numbers."
    interval = text.interval_name(result.advice.confidence)
    columns = [
        Column("Group", lambda each: Cell(each.group), "name"),
        figures("n", "Questions", text.thousands),
        figures("gain", "Gain", text.difference, interval=interval),
        figures("observed", "Before shrinking", text.difference),
        Column("Shown", lambda each: Cell(text.shown(each.shown))),
    ]
    return {
        "table": make_table("Groups", rows, columns),
        "total": len(every),
        "hurt": any(each.shown == "no" for each in every),
        "interval": interval,
        "figure": both_widths(lambda width: draw_differences(drawn, width, label)),
    }


def _draw(result: Result, width: int) -> str | None:
    """Draw the accuracy of each strategy on the left, and its calls a question on the right."""
    recommended = result.advice.recommendation
    drawn = [
        (row.key.title([result.short_names.get(name, name) for name in row.members]), row)
        for row in result.strategies[:_MOST_DRAWN]
    ]
    best = max((row.accuracy for _, row in drawn if row.is_single and row.accuracy is not None), default=None)
    key = recommended.key if recommended else None
    rows = [(name, row, _shape(row), row.key == key, row.calls_per_question) for name, row in drawn]
    return accuracy_and_cost(rows, width, best, "calls a question", text.decimals, log=False, measure=result.measure)


def _shape(row: StrategyFigures) -> str:
    # The colour of a gain is not that of a loss.
    if row.is_single:
        return "selected"
    return shape_of(row.measured_gain)


def pareto(report: ReportData) -> dict[str, Any] | None:
    """Return the values of the template of accuracy and cost; None if fewer than two strategies have both."""
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
    chosen = result.advice.recommendation if result.advice.no_advice is None else None
    points = [(row, cost, id(row) in front, chosen is not None and row.key == chosen.key) for row, cost in known]
    best = known[0][0].accuracy or 0.0
    drawn = [each for each in points if each[0] in rows or each[2] or (each[0].accuracy or 0.0) >= best - _FARTHEST]
    columns = [
        Column("No.", lambda each: Cell(str(points.index(each) + 1))),
        Column("Strategy", lambda each: Cell(each[0].title, tag="recommended" if each[3] else ""), "name"),
        Column(
            result.measure.capitalize(),
            lambda each: Cell(text.points(each[0].accuracy), each[0].accuracy),
            descending=True,
        ),
        Column(what.capitalize(), lambda each: Cell(written(each[1]), each[1])),
        words("On the line", lambda each: "yes" if each[2] else "no"),
    ]
    return {
        "what": what,
        "unknown": len(every) - len(known),
        "far": len(points) - len(drawn),
        "farthest": _FARTHEST,
        "table": make_table("Accuracy and cost", points, columns),
        "recommended": chosen is not None,
        "figure": both_widths(lambda width: _draw_costs(result, drawn, what, written, width)),
    }


def front_of(rows: Sequence[tuple[StrategyFigures, float]]) -> list[StrategyFigures]:
    """Return the strategies that are more accurate than all that cost the same or less, the cheapest first."""
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


def _draw_costs(
    result: Result,
    points: Sequence[tuple[StrategyFigures, float, bool, bool]],
    what: str,
    written: Callable[[float | None], str],
    width: int,
) -> str:
    wide = width == WIDE
    costs, accuracies = [cost for _, cost, *_ in points], [row.accuracy or 0.0 for row, *_ in points]
    least, most = min(costs), max(costs)
    log = least > 0 and most / least > _LOG_FROM
    x_limits = log_limits(costs, 1.25) if log else linear_limits(costs, 0.06)
    axes = point_axes(
        width,
        420 if wide else 400,
        x_limits,
        points_limits(accuracies, pad=1.0 + 0.05 * (max(accuracies) - min(accuracies))),
        log=log,
    )
    places = [
        (cost, clipped(row.accuracy or 0.0, axes.get_ylim()), row, on_front, best)
        for row, cost, on_front, best in points
    ]
    avoid = _draw_front(axes, sorted((x, y) for x, y, _, on_front, _ in places if on_front))
    named = []
    for number, (x, y, row, on_front, best) in enumerate(places, start=1):
        # Dozens of single models may share one cost: then most have their names only on hover, and in the table.
        if number <= _MOST_NAMED or on_front or best:
            short = row.key.title([result.short_names.get(name, name) for name in row.members])
            named.append((not best, not on_front, (x, y, text.shortened(short, 30 if wide else 20), on_front or best)))
    # The recommended one gets its place first, then the front.
    named.sort(key=lambda each: each[:2])
    write_names(axes, [name for *_, name in named], [(x, y) for x, y, *_ in places], avoid)
    for x, y, row, _, best in reversed(places):
        measured = None if row.is_single else row.measured_gain
        gain = "" if measured is None else f", {text.difference(measured)} points measured"
        title = f"{row.title}: {text.points(row.accuracy)} points{gain}, {what} {written(x)}"
        mark(axes, x, y, _shape(row), title=title, data={"recommended": 1} if best else None)
        if best:
            axes.add_artist(Line2D([x], [y], linestyle="", marker="o", ms=20, mfc="none", mec=COLOURS["ink"], zorder=4))
    unit = {"price of 1,000 questions": ", dollars", "time of a question": ", seconds"}.get(what, "")
    add_scales(axes, f"{what}{unit}{' (log)' if log else ''}", f"{result.measure}, points", width)
    return markup(
        axes,
        f"{result.measure.capitalize()} against the {what} of {len(points)} strategies; the table has both.",
    )


def _draw_front(axes: Axes, front: Sequence[tuple[float, float]]) -> list[Bbox]:
    """Draw the front as steps, because nothing is known to lie between two strategies; return their boxes."""
    xs, ys = [*(x for x, _ in front), axes.get_xlim()[1]], [*(y for _, y in front), front[-1][1]]
    axes.step(xs, ys, where="post", color=COLOURS["accent"], linewidth=2)
    flat = [Bbox([[left, y], [right, y]]) for left, right, y in zip(xs, xs[1:], ys, strict=False)]
    return flat + [Bbox([[x, low], [x, high]]) for x, low, high in zip(xs[1:], ys, ys[1:], strict=False)]


PRINTED_WARNINGS = 5  # the style sheet for print hides the others


def verdict(report: ReportData) -> dict[str, Any]:
    """Return the template's values."""
    result = report.result
    recommended = result.advice.recommendation if result.advice.no_advice is None else None
    gain = ends = None
    # A single model has no gain: it is what the others are compared with.
    if recommended is not None and not recommended.is_single:
        gain, ends = recommended.expected_gain, recommended.expected_gain_ci
    return {
        "headline": headline(result),
        "recommended": recommended,
        "gain": gain,
        "gain_ci": ends,
        "printed": PRINTED_WARNINGS,
        "unchecked": _unchecked(result),
        "interval": text.interval_name(result.advice.confidence),
        "baseline": result.best_single.name if result.best_single else "the best single model",
        "summary": summary(result),
        "use": _commands(result),
        "figure": draw_difference(gain, ends),
    }


def decoded_set(report: ReportData) -> dict[str, Any]:
    """Return the values of the template of the set: its figures and verdict where something else is the headline."""
    result, run = report.result, report.result.ensemble
    if result.advice.recommendation is None:
        return {"figures": [], "advice": "", "certainty": ""}
    figures = []
    if run is not None and run.measured_gain is not None:
        figures = [
            ("Measured gain", f"{text.difference(run.measured_gain)} points"),
            (text.interval_name(result.advice.confidence), text.difference_interval(run.measured_gain_ci)),
            ("One-sided p", text.chance(run.p_adjusted)),
        ]
    return {"figures": figures, "advice": result.advice.text, "certainty": certainty(result)}


def _commands(result: Result) -> list[str]:
    """The commands that use the recommended strategy, in the folder of the report."""
    recommended = result.advice.recommendation
    if recommended is None:
        return []
    # Logs have the names of models, and not their places.
    pool = "" if result.can_decode else " --pool models.txt"
    group = " --group NAME" if recommended.key.groups else ""
    return [f'advisor run . "..."{group}{pool}', f"advisor serve .{pool}"]


def headline(result: Result) -> str:
    """Return what to run in a few words; without a recommendation the verdict."""
    if result.advice.no_advice is not None:
        return "No advice yet."
    recommended = result.advice.recommendation
    return verdict_headline(result) if recommended is None else recommended.key.headline()


def verdict_headline(result: Result) -> str:
    """Return the verdict on the set that decodes together in a few words."""
    if result.advice.verdict == "better":
        size = len(result.chosen)
        return f"Ensemble these {text.in_words(size)} models." if size > 1 else "Ensemble the chosen models."
    if result.advice.verdict == "unclear":
        return "Too close to call."
    # The best member on held-out questions may be another one than the primary on dev.
    if result.ensemble and result.ensemble.best_single_model:
        return f"Use {result.ensemble.best_single_model} alone."
    return f"Use {result.primary.name if result.primary else 'the best model'} alone."


def certainty(result: Result, details: str = "the leaderboard") -> str:
    """Return how certain the verdict on the set that decodes together is; `details` is what to look at for more."""
    run = result.ensemble
    if run is None:
        return ""
    return f"{_changes('The ensemble', run.gained, run.lost)} {_close_calls(result, details)}".strip()


def strategy_certainty(result: Result, recommended: StrategyFigures) -> str:
    """Return what the figures of the recommended strategy come from, as sentences."""
    if recommended.is_single:
        return _other_best(result)
    changes = _changes("The recommended strategy", recommended.gained, recommended.lost)
    return f"{changes} {_other_best(result)}".strip()


def measured_gain(result: Result) -> str:
    """Return the gain of the set that decodes together, with its interval and p, as a clause; empty if not known."""
    run = result.ensemble
    if run is None or run.measured_gain is None:
        return ""
    details = f"{text.interval_name(result.advice.confidence)} {text.difference_interval(run.measured_gain_ci)}"
    p = "" if run.p_adjusted is None else f", p {text.p_value(run.p_adjusted)}"
    return f"{text.difference(run.measured_gain)} points ({details}{p})"


def _unchecked(result: Result) -> str:
    recommended = result.advice.recommendation
    # A model without the hashes of its files may be another one tomorrow, such as a server's.
    unpinned = sum(not model.files for model in result.provenance.models.values())
    missing = (
        "" if result.held_out else "held-out questions",
        "the time" if recommended and recommended.seconds_per_question is None else "",
        "the price" if recommended and recommended.price_per_1000 is None else "",
        f"the version of {text.counted(unpinned, 'model')}" if unpinned else "",
        "other tasks and other wordings of the prompt",
    )
    return f"Not checked: {', '.join(each for each in missing if each)}."


def _changes(subject: str, gained: int | None, lost: int | None) -> str:
    if gained is None or lost is None:
        return ""
    recovered, broken = f"{gained:,}" if gained else "no", f"{lost:,}" if lost else "none"
    noun = "question" if gained == 1 else "questions"
    return f"{subject} recovered {recovered} {noun} that the best single model gets wrong, and broke {broken}."


def _other_best(result: Result) -> str:
    """Say it if the most accurate model on dev is not the one that gains are measured against."""
    primary, best = result.primary, result.best_single
    if primary is None or best is None or best is primary:
        return ""
    return (
        f"{primary.name} is the most accurate model on the dev questions, {best.name} on the dev and held-out "
        f"questions together; gains are measured against {best.name}."
    )


def _close_calls(result: Result, details: str) -> str:
    close_calls = sum(bool(candidate.close_call) for candidate in result.candidates)
    if not close_calls:
        return ""
    noun = "decision of the rules was a close call" if close_calls == 1 else "decisions of the rules were close calls"
    return f"{text.in_words(close_calls).capitalize()} {noun}; see {details}."
