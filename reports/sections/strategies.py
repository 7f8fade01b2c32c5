"""What to run as a headline, its gain and how certain that is; and every strategy: its accuracy, cost and groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from advisor.run.result import Result, StrategyFigures
from advisor.run.sentences import commands, summary
from advisor.strategies import ADVICE
from advisor.strategies.group_router import GroupRouter
from advisor.strategies.router import Router
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
from reports.charts.rows import draw_gains, shape_of
from reports.charts.svg import COLOURS, markup
from reports.report_data import SURE, ReportData
from reports.sections.models import group_models
from reports.tables import MOST_STRATEGIES, Cell, Column, figures, make_table
from reports.tables import strategies as strategies_table

_MOST_KNOWN_GROUPS = 1000  # a run gives no gains for more
_MOST_GROUPS = 40
_MOST_NAMED = 8
# The attribute, what it is, and how a value is written; the first one that all strategies have is the axis.
_COSTS: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("price_per_1000", "price of 1,000 questions", text.price),
    ("seconds_per_question", "time of a question", text.duration),
    ("calls_per_question", "calls a question", text.decimals),
)
# What is so many points worse than the best strategy would press the others together in the drawing.
_FARTHEST = 15
# From this ratio of the largest to the smallest cost on, a linear scale would press most points together.
_LOG_FROM = 10
_MOST_TIMES = 1000
_NEAR = 0.07
"""How near a ratio of costs is to a whole number that is said in its place, as a share."""


def strategies(report: ReportData) -> dict[str, Any] | None:
    """Return the template's values; None without strategies."""
    result = report.result
    rows = result.strategies[:MOST_STRATEGIES]
    if not rows:
        return None
    return {
        "finding": _finding(result),
        "table": strategies_table(result),
        "total": len(result.strategies),
        "other_best": _other_best(result),
        "not_chosen": _not_chosen(result),
        "not_compared": [
            [f"{name} model" if name == "single" else name.replace("_", " ") for name in (each.strategy, each.same_as)]
            for each in result.advice.not_compared[:MOST_STRATEGIES]
        ],
        **_costs(result),
    }


def _finding(result: Result) -> str:
    """What the comparison found, in a few words."""
    recommended, alone = result.advice.recommendation, result.alone
    if recommended is None or result.advice.no_advice is not None:
        return "What the answers say so far"
    if recommended.is_single:
        if all(each.is_single for each in result.strategies):
            return "There was no combination to compare"
        return f"No combination is worth its cost: {recommended.members[0]} alone is the choice"
    size, kind = text.in_words(len(recommended.members)), recommended.strategy
    subject = f"{size} models together beat"
    if kind in (Router.KIND, GroupRouter.KIND):
        subject = f"one of {size} models for each question beats"
    elif len(recommended.members) == 1:
        subject = "several answers of one model beat"
    verb = "" if (recommended.probability or 0) >= SURE else "probably "
    words = subject.rsplit(" ", 1)
    return f"{words[0].capitalize()} {verb}{words[1]} any one{_at_cost(recommended, alone)}"


def _not_chosen(result: Result) -> str:
    """The strategy that is expected to gain more than the learned vote that is recommended; empty without one."""
    row = result.advice.recommendation
    if row is None or row.strategy != ADVICE or result.advice.no_advice is not None:
        return ""
    top = max(result.strategies, key=lambda each: each.expected_gain or 0.0)
    return top.title if (result.level(top) or 0.0) > (result.level(row) or 0.0) else ""


def _at_cost(row: StrategyFigures, alone: StrategyFigures | None) -> str:
    """How many times the cost of the best single model a strategy takes: by its price, or else by its calls."""
    for key, what in (("price_per_1000", "price"), ("calls_per_question", "calls")):
        own, other = getattr(row, key), getattr(alone, key, None)
        # A file may have any numbers.
        if own is not None and other and (times := own / other) < _MOST_TIMES:
            near = round(times)
            if near == 1 and abs(times - near) < _NEAR:
                return f", at the same {what}" if what == "price" else ", with as many calls"
            number = f"{times:.1f} times"
            if abs(times - near) < _NEAR * times and near > 1:
                number = "twice" if near == 2 else f"{text.in_words(near)} times"
            return f", at {number} the {what}"
    return ""


def groups(report: ReportData) -> dict[str, Any] | None:
    """Return the template's values; None if the questions have no groups."""
    gains, by_model = _group_gains(report.result), group_models(report)
    if gains is None:
        return by_model and {"gains": None, "models": by_model, "finding": by_model["finding"]}
    losing, every = gains["losing"], gains["total"]
    number = text.in_words(losing) if losing else "none"
    finding = f"Of {text.counted(every, 'group')}, {number} {'loses' if losing < 2 else 'lose'}"
    return {"gains": gains, "models": by_model, "finding": finding}


def _group_gains(result: Result) -> dict[str, Any] | None:
    """The gains of the recommended strategy in each group; None if it has no groups."""
    recommended = result.advice.recommendation
    # A single model gains nothing over itself.
    is_gain = recommended is not None and not recommended.is_single
    every = (recommended.groups or ())[:_MOST_KNOWN_GROUPS] if recommended and is_gain else ()
    if not every:
        return None
    # What is hurt must not be among those that are left out.
    rows = sorted(every, key=lambda each: (each.shown != "no", each.gain or 0.0))[:_MOST_GROUPS]
    drawn = [(each.group, each.gain, each.gain_ci, each.shown == "no") for each in rows if each.gain is not None]
    label = f"Gain in {len(rows)} groups of questions, with intervals; the table has the numbers."
    interval = text.interval_name(result.advice.confidence)
    columns = [
        Column("Group", lambda each: Cell(each.group), "name"),
        figures("n", "Questions", text.thousands),
        figures("gain", "Gain", text.difference, interval=interval),
        Column("Shown", lambda each: Cell(text.shown(each.shown))),
    ]
    return {
        "table": make_table("Groups", rows, columns),
        "total": len(every),
        "losing": sum(text.is_loss(each.gain) for each in every),
        "interval": interval,
        "figure": both_widths(lambda width: draw_gains(drawn, width, label)),
    }


def _shape(row: StrategyFigures) -> str:
    # The colour of a gain is not that of a loss.
    if row.is_single:
        return "selected"
    return shape_of(row.expected_gain)


def _costs(result: Result) -> dict[str, Any]:
    """The drawing of points and costs, and how many models are not in it; no drawing of fewer than two strategies."""
    rows = result.strategies[:MOST_STRATEGIES]
    found = next((cost for cost in _COSTS if all(getattr(row, cost[0]) is not None for row in rows)), None)
    if found is None:
        return {"figure": None}
    key, what, written = found
    known = [
        (row, level, getattr(row, key))
        for row in _every(result)
        if (level := result.level(row)) is not None and getattr(row, key) is not None
    ]
    # Where all cost the same, the table says as much.
    if len({cost for *_, cost in known}) < 2:
        return {"figure": None}
    known.sort(key=lambda each: (-each[1], each[2]))
    front = front_of([(level, cost) for _, level, cost in known])
    chosen = result.advice.recommendation if result.advice.no_advice is None else None
    points = [
        (row, level, cost, (level, cost) in front, chosen is not None and row.key == chosen.key)
        for row, level, cost in known
    ]
    compared = [row for row in rows if row.is_single]
    drawn = [each for each in points if each[0] in compared or each[3] or each[1] >= known[0][1] - _FARTHEST]
    return {
        "far": len(points) - len(drawn),
        "farthest": _FARTHEST,
        "shapes": {_shape(row) for row, *_ in drawn} | ({"recommended"} if chosen else set()),
        "figure": both_widths(lambda width: _draw_costs(result, drawn, what, written, width)),
    }


def front_of(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the pairs of a level and a cost whose level is above that of all that cost the same or less."""
    front: list[tuple[float, float]] = []
    for level, cost in sorted(points, key=lambda each: (each[1], -each[0])):
        if not front or level > front[-1][0]:
            front.append((level, cost))
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
            accuracy=each.accuracy if each.accuracy_all is None else each.accuracy_all,
            calls_per_question=1,
            seconds_per_question=each.seconds_per_question,
            price_per_1000=each.price_per_1000,
        )
        for each in result.single_models[:MOST_STRATEGIES]
    )
    return [*rows, *(row for row in alone if row.members not in singles)]


def _draw_costs(
    result: Result,
    points: Sequence[tuple[StrategyFigures, float, float, bool, bool]],
    what: str,
    written: Callable[[float | None], str],
    width: int,
) -> str:
    wide = width == WIDE
    costs, levels = [cost for _, _, cost, *_ in points], [level for _, level, *_ in points]
    least, most = min(costs), max(costs)
    log = least > 0 and most / least > _LOG_FROM
    x_limits = log_limits(costs, 1.25) if log else linear_limits(costs, 0.06)
    axes = point_axes(
        width,
        420 if wide else 400,
        x_limits,
        points_limits(levels, pad=1.0 + 0.05 * (max(levels) - min(levels))),
        log=log,
    )
    places = [
        (cost, clipped(level, axes.get_ylim()), row, on_front, best) for row, level, cost, on_front, best in points
    ]
    avoid = _draw_front(axes, sorted((x, y) for x, y, _, on_front, _ in places if on_front))
    named = []
    for x, y, row, on_front, best in places:
        # Dozens of single models may share one cost: then most have their names only on hover, and in the table.
        if len(places) <= _MOST_NAMED or not row.is_single or on_front or best:
            names = [result.short_names.get(name, name) for name in row.members]
            short = names[0] if row.is_single else row.key.title(names)
            named.append((not best, not on_front, (x, y, text.shortened(short, 30 if wide else 24), on_front or best)))
    # The recommended one gets its place first, then the front.
    named.sort(key=lambda each: each[:2])
    write_names(axes, [name for *_, name in named], [(x, y) for x, y, *_ in places], avoid)
    for x, y, row, _, best in reversed(places):
        title = f"{row.title}: {text.points(y)} points, {what} {written(x)}"
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
_NO_ADVICE = {
    "few_questions": "there are too few questions",
    "doubled_questions": "too many questions are there twice",
    "no_order": "the grades do not tell the models apart",
    "guessing": "no model is better than guessing",
    "never_right": "no model is ever right",
    "same_text": "a model always writes the same text",
}


def verdict(report: ReportData) -> dict[str, Any]:
    """Return the template's values."""
    result = report.result
    recommended = result.advice.recommendation if result.advice.no_advice is None else None
    told = summary(result)
    return {
        "headline": headline(result),
        "recommended": recommended,
        "points": result.level(recommended) if recommended else None,
        "beside": _beside(result, recommended) if recommended and not recommended.is_single else [],
        "printed": PRINTED_WARNINGS,
        "unchecked": _unchecked(result),
        "interval": text.interval_name(result.advice.confidence),
        "baseline": result.best_single.name if result.best_single else "the best single model",
        "summary": told,
        # The headline has said which model.
        "lede": told.get("Recommended", "").removeprefix(f"{recommended.key.describe()}: " if recommended else ""),
        "use": [text.visible(each) for each in commands(result, ".", '"..."', "models.txt")[:2]],
    }


def _beside(result: Result, row: StrategyFigures) -> list[tuple[str, str, str]]:
    """What the best single model and a strategy reach and cost: the name of a figure, and both values."""
    alone, before = result.alone, result.single_level
    points = f"{result.measure} in points" if result.is_graded else "right of 100"
    beside = [] if before is None else [(points, text.points(before), text.points(result.level(row)))]
    price, time, _ = _COSTS
    costs = [
        ("calls_per_question", "calls a question", _calls),
        ("tokens_per_question", "tokens a question", text.length) if row.price_per_1000 is None else price,
        ("seconds_median", "median time of a question", text.duration),
        ("seconds_p95", "95th percentile of the time", text.duration),
    ]
    for key, what, written in costs if row.seconds_median is not None else [*costs[:2], time]:
        one, other = getattr(alone, key, None), getattr(row, key)
        if other is not None:
            beside.append((what, written(one), written(other)))
    return beside


def _calls(value: float | None) -> str:
    return text.decimals(value, 1).removesuffix(".0")


def headline(result: Result) -> str:
    """Return what to run in a few words; without a recommendation the verdict."""
    if result.advice.no_advice is not None:
        return f"No advice yet: {_NO_ADVICE.get(result.advice.no_advice.code, 'the answers do not allow one')}."
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
    own = recommended.members if recommended else tuple(result.provenance.models)
    unpinned = sum(not model.files for name, model in result.provenance.models.items() if name in own)
    missing = (
        "" if result.held_out else "held-out questions",
        "the time" if recommended and recommended.seconds_per_question is None else "",
        "the price" if recommended and recommended.price_per_1000 is None else "",
        f"the version of {text.counted(unpinned, 'model')}" if unpinned else "",
        "other tasks and other wordings of the prompt",
    )
    return f"Not checked: {', '.join(each for each in missing if each)}."


def _other_best(result: Result) -> str:
    """Say it if the most accurate model on dev is not the one that gains are measured against."""
    primary, best = result.primary, result.best_single
    if primary is None or best is None or best is primary:
        return ""
    return (
        f"{primary.name} is the most accurate model on the dev questions, {best.name} on the dev and held-out "
        f"questions together; gains are measured against {best.name}."
    )
