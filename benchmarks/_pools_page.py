"""The tables and the plots of docs/pools.md and docs/pools-rules.md, made from the figures of `benchmarks.pools`."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Drawing

from advisor.advice.recommendation import LEAST_PER_CALL
from benchmarks._measure import Figure
from benchmarks.studies._pools import ANSWERED, NAMES

KEYS = {name.replace("-", "_"): name for name in NAMES}
COMPARED_KEYS = {name.replace("-", "_"): name for name in ANSWERED}
"""The pools on which all strategies are compared; the plots have the first three."""
STRATEGIES = {
    "single": "the best single model by dev",
    "router": "router: the model that was right on similar dev questions",
    "group_router": "router: the best model of each category",
    "rules": "vote of the rules' set (10 points, ratio 2, 3 models)",
    "rules_no_length": "the same without the length rule",
    "top3": "vote of the three most accurate",
    "calls3": "vote within 15 points, at most 3",
    "default": "vote within 15 points, at most 5 (the default)",
    "gap15": "vote within 15 points, any number",
    "weighted_default": "weighted vote within 15 points, at most 5",
    "all": "vote of all",
    "weighted_all": "weighted vote of all",
}
WAYS = {
    "never": "never vote: the best single model by dev",
    "rules": "always vote with the set of the paper's rules",
    "shown": "vote only if the test shows a gain",
    "largest": "take the largest expected gain",
    "recommended": "follow the recommendation",
    "always": "always vote within 15 points, at most 5",
}
LEAST = {f"least_{tenths:02}": tenths / 10 for tenths in (0, 4, 6, 8)}
"""Points for each call of a question that a strategy must be expected to gain, beside the default, by name."""
BINS = {"0_10": "up to 10", "10_15": "10 to 15", "15_20": "15 to 20", "20_25": "20 to 25", "25_100": "over 25"}
RATIO_BINS = {"1_125": "up to 1.25", "125_15": "1.25 to 1.5", "15_2": "1.5 to 2", "2_3": "2 to 3", "3_inf": "over 3"}
NUMBERS = {"calls3": "3", "calls4": "4", "default": "5 (the default)", "calls6": "6", "calls7": "7", "gap15": "any"}
_TIES = {
    "first": "the most accurate of the tied models (the product's)",
    "weights": "the larger sum of weights",
    "primary": "the most accurate model, tied or not",
    "chance": "chance",
}

_PAPER, _INK, _MUTED, _RULE = "#fcfcfb", "#21201e", "#6b6a66", "#d9d8d3"
_COLOURS = dict(zip(KEYS, ("#1f66b5", "#c2500f", "#17805b"), strict=True))
_SHAPES = dict(zip(KEYS, ("o", "s", "^"), strict=True))
_DARK = {
    **{_PAPER: "#1b1b1a", _INK: "#ecebe7", _MUTED: "#a5a49e", _RULE: "#43423f"},
    **dict(zip(_COLOURS.values(), ("#6aa9f0", "#f0935a", "#4cc398"), strict=True)),
}
"""The colours in a dark theme; an SVG file sees only what the reader's system prefers."""

By = Mapping[str, Figure]


def tables(figures: Sequence[Figure]) -> Iterator[str]:
    """The tables of the page, in its order, as Markdown."""
    by = {figure.name: figure for figure in figures}
    pools = {key: name for key, name in KEYS.items() if f"{key}_models" in by}
    heads, row = list(pools.values()), partial(_row, by, pools)

    def calls(name: str) -> str:
        return _number(statistics.mean(_value(by, f"{key}_{name}") for key in pools))

    counts = ("questions", "models", "open_models", "sub_pools")
    yield _table(
        ["pool", "questions", "models", "open models", "sub-pools"],
        [[name, *(f"{_value(by, f'{key}_{what}'):,.0f}" for what in counts)] for key, name in pools.items()],
    )
    rows = []
    for name, text in STRATEGIES.items():
        routed = name.endswith("router")
        cost = ["1.0", "1.0"] if routed else [calls(f"asked_{name}"), calls(f"calls_{name}")]
        rows.append([*row(text, f"gain_{name}", _interval), *cost, f"`gain_{name}`"])
    yield _table(["strategy", *heads, "models", "calls", "name"], rows)
    rows = []
    for name, text in BINS.items():
        gains, shares = row(text, f"third_{name}_gain", _signed), row("", f"third_{name}_share", _percent)
        both = [f"{gain}, {share}" for gain, share in zip(gains[1:], shares[1:], strict=True)]
        rows.append([text, *both, f"`third_{name}_gain`, `_share`"])
    yield _table(["gap of the third model", *heads, "name"], rows)
    rows = [
        [*row(f"{limit} points", f"gain_gap{limit}", _interval), calls(f"calls_gap{limit}"), f"`gain_gap{limit}`"]
        for limit in (5, 10, 15, 20, 25)
    ]
    yield _table(["limit of the gap, any number", *heads, "calls", "name"], rows)
    rows = [
        [*row(text, f"ratio_{name}_residual", _signed), f"`ratio_{name}_residual`"] for name, text in RATIO_BINS.items()
    ]
    rows.append([*row("gain without the length rule", "length_rule_dropped", _interval), "`length_rule_dropped`"])
    yield _table(["largest length ratio", *heads, "name"], rows)
    for part in ("", "large_"):
        rows = [
            [
                *row(text, f"{part}gain_{name}", _interval),
                calls(f"{part}asked_{name}"),
                calls(f"{part}calls_{name}"),
                f"`{part}gain_{name}`",
            ]
            for name, text in NUMBERS.items()
        ]
        size = "10 to 14" if part else "4 to 8"
        yield _table([f"`--max-voters`, {size} models", *heads, "without stopping", "calls", "name"], rows)
    yield _table(
        ["ties are decided by", *heads, "name"],
        [[*row(text, f"ties_{name}_gap15", _interval), f"`ties_{name}_gap15`"] for name, text in _TIES.items()],
    )
    weights = {"default": "no weights", "weighted_default": "the product's formula", "log_odds_default": "log odds"}
    yield _table(
        ["weights, within 15 points, at most 5", *heads, "name"],
        [[*row(text, f"gain_{name}", _interval), f"`gain_{name}`"] for name, text in weights.items()],
    )
    agree = {
        "agree_share": "questions on which two of the three agree, percent",
        "agree_points": "right there, percent",
        "disagree_points": "right elsewhere, percent",
    }
    yield _table(
        ["the three most accurate", *heads, "name"],
        [[*row(text, name, lambda one: _number(one.value)), f"`{name}`"] for name, text in agree.items()],
    )
    yield from _recommendation_tables(by)
    rows = [
        ["votes, counted one by one", f"{_value(by, 'vote_cases'):,.0f}", "100,000", "`vote_cases`"],
        ["votes that differ from a plain count", f"{_value(by, 'vote_differences'):.0f}", "0", "`vote_differences`"],
        [
            "cascades that differ from the vote",
            f"{_value(by, 'cascade_differences'):.0f}",
            "0",
            "`cascade_differences`",
        ],
    ]
    what = "calls that a cascade of the three most accurate models saves"
    rows.append([what, _percent(by["calls_saved"]), "at least 15%", "`calls_saved`"])
    for key, name in pools.items():
        rows.append([f"the same on {name}", _percent(by[f"{key}_calls_saved"]), "", f"`{key}_calls_saved`"])
    yield _table(["check", "measured", "target", "name"], rows)
    limits = {"logs_seconds": "seconds", "logs_memory_mib": "MiB of memory", "logs_report_mb": "MB of the report"}
    if all(name in by for name in limits):
        rows = [[text, f"{_value(by, name):,.1f}", by[name].limit, f"`{name}`"] for name, text in limits.items()]
        yield _table(["28 models, 11,971 questions", "measured", "target", "name"], rows)


def _recommendation_tables(by: By) -> Iterator[str]:
    """What each way to decide loses, and what the recommendation gains over the default vote."""
    compared = {key: name for key, name in COMPARED_KEYS.items() if f"{key}_regret_never" in by}
    row, kinds = partial(_row, by, compared), {"": "within 25 points", "wide_": "any gap"}
    for part, what in kinds.items():
        rows = [
            [
                *row(text, f"{part}regret_{name}", _plain),
                *_votes(by, part, name, compared),
                f"`{part}regret_{name}`",
            ]
            for name, text in WAYS.items()
        ]
        yield _table([f"points behind the best, {what}", *compared.values(), "votes", "name"], rows)
    rows = [
        [
            f"{WAYS[name]}, {what}",
            *(
                _sign(_value(by, f"{key}_{part}regret_never") - _value(by, f"{key}_{part}regret_{name}"))
                for key in compared
            ),
            f"`{part}regret_never` - `{part}regret_{name}`",
        ]
        for part, what in kinds.items()
        for name in ("always", "recommended")
    ]
    yield _table(["gain over the best single model by dev", *compared.values(), "name"], rows)
    points = {**LEAST, "recommended": LEAST_PER_CALL}
    for part, what in kinds.items():
        rows = []
        for name in sorted(points, key=points.__getitem__):
            lost, calls = f"{part}regret_{name}", f"{part}calls_{name}"
            rows.append(
                [
                    f"{points[name]:g}" + (" (the default)" if name == "recommended" else ""),
                    *(f"{_value(by, f'{key}_{lost}'):.2f}; {_value(by, f'{key}_{calls}'):.2f}" for key in compared),
                    f"`{lost}`; `{calls}`",
                ]
            )
        yield _table([f"points for each call: regret; calls, {what}", *compared.values(), "name"], rows)
    more = "gain_recommended_minus_default_vote"
    rows = [[*row(what, f"{part}{more}", _interval), f"`{part}{more}`"] for part, what in kinds.items()]
    yield _table(["recommendation over the default vote", *compared.values(), "name"], rows)
    rows = []
    for kind, what in {"narrow": "within 25 points", "wide": "any gap"}.items():
        names = [f"regret_recommended_{kind}", f"regret_rules_{kind}", f"{more}_{kind}"]
        own = [by[name] for name in names if name in by]
        if len(own) == len(names):
            targets = "; ".join(one.limit for one in own if one.limit)
            rows.append([what, *(f"{one.value:.2f}" for one in own), targets, ", ".join(f"`{name}`" for name in names)])
    head = ["mean of all pools", "recommendation", "set of the paper's rules", "recommendation over the default vote"]
    yield _table([*head, "targets", "name"], rows)


def _row(by: By, pools: Mapping[str, str], text: str, name: str, cell: Callable[[Figure], str]) -> list[str]:
    """A text, and the figure of each pool."""
    cells = (by.get(f"{key}_{name}") for key in pools)
    return [text, *("–" if one is None or one.value is None else cell(one) for one in cells)]


def _votes(by: By, part: str, name: str, pools: Mapping[str, str]) -> list[str]:
    """How often a way to decide votes, in all pools."""
    return [f"{100 * statistics.mean(_value(by, f'{key}_{part}votes_{name}') for key in pools):.0f}%"]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _value(by: By, name: str) -> float:
    value = by[name].value
    return math.nan if value is None else value


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _signed(one: Figure) -> str:
    return _sign(one.value or 0.0)


def _sign(value: float) -> str:
    text = f"{value:+.1f}"
    return "0.0" if float(text) == 0 else text


def _percent(one: Figure) -> str:
    return f"{100 * (one.value or 0):.0f}%"


def _interval(one: Figure) -> str:
    return f"{_signed(one)} ({_sign(one.low or 0.0)} to {_sign(one.high or 0.0)})"


def _plain(one: Figure) -> str:
    return f"{one.value:.1f} ({one.low:.1f} to {one.high:.1f})"


def draw(figures: Sequence[Figure], folder: Path) -> None:
    """Write the plots of the page, one SVG file each, readable on light and on dark pages."""
    by = {figure.name: figure for figure in figures}
    folder.mkdir(parents=True, exist_ok=True)
    # Not the user's matplotlibrc, so that the same figures give the same bytes.
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rc("svg", fonttype="none", hashsalt="pools")
        matplotlib.rc("font", size=10.0)
        few = {name: STRATEGIES[name] for name in STRATEGIES if name not in ("group_router", "weighted_default")}
        names = {f"gain_{name}": text for name, text in few.items()}
        _dots(by, names, "points over the best single model in hindsight", folder / "strategies.svg")
        names = {f"regret_{name}": text for name, text in WAYS.items()}
        _dots(by, names, "points behind the best strategy in hindsight", folder / "regret.svg")
        labels = {f"third_{name}_gain": text for name, text in BINS.items()}
        _bins(by, labels, ("gap of the third model, points", "gain of the vote, points"), folder / "gap.svg")
        labels = {f"ratio_{name}_residual": text for name, text in RATIO_BINS.items()}
        what = ("largest length ratio to the first model", "gain that gaps do not explain, points")
        _bins(by, labels, what, folder / "length.svg")
        _numbers(by, folder / "voters.svg")


def _dots(by: By, names: Mapping[str, str], label: str, path: Path) -> None:
    """A line for each strategy: the mean of each pool with its interval."""
    drawing, (axes,) = _canvas(7.6, 0.9 + 0.36 * len(names))
    for number, (key, shift) in enumerate(zip(KEYS, (-0.2, 0.0, 0.2), strict=True)):
        found = [(place, by[f"{key}_{name}"]) for place, name in enumerate(names)]
        places = [place + shift for place, _ in found]
        _marks(axes, key, [one for _, one in found], places, across=True, order=number)
    axes.axvline(0, color=_MUTED, linewidth=0.8, zorder=1)
    axes.set_yticks(range(len(names)), list(names.values()))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", color=_RULE, linewidth=0.6)
    axes.set_xlabel(label)
    _save(drawing, axes, path)


def _bins(by: By, names: Mapping[str, str], labels: tuple[str, str], path: Path) -> None:
    """A column for each bin: the mean of each pool, with the quartiles."""
    drawing, (axes,) = _canvas(7.6, 3.4)
    for number, (key, shift) in enumerate(zip(KEYS, (-0.18, 0.0, 0.18), strict=True)):
        found = [(place, by[f"{key}_{name}"]) for place, name in enumerate(names)]
        found = [(place, one) for place, one in found if one.value is not None]
        places = [place + shift for place, _ in found]
        _marks(axes, key, [one for _, one in found], places, across=False, order=number)
    axes.axhline(0, color=_MUTED, linewidth=0.8, zorder=1)
    axes.set_xticks(range(len(names)), list(names.values()))
    axes.grid(axis="y", color=_RULE, linewidth=0.6)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    _save(drawing, axes, path)


def _marks(axes: Axes, key: str, found: Sequence[Figure], places: Sequence[float], *, across: bool, order: int) -> None:
    values = [one.value or 0.0 for one in found]
    below = [value - (value if one.low is None else one.low) for value, one in zip(values, found, strict=True)]
    above = [(value if one.high is None else one.high) - value for value, one in zip(values, found, strict=True)]
    x, y = (values, places) if across else (places, values)
    spread = (below, above)
    axes.errorbar(
        x,
        y,
        xerr=spread if across else None,
        yerr=None if across else spread,
        fmt=_SHAPES[key],
        color=_COLOURS[key],
        markersize=5,
        elinewidth=1.2,
        label=KEYS[key],
        zorder=3 + order,
    )


def _numbers(by: By, path: Path) -> None:
    """Gain against calls by the largest number of voters, for small and for large sub-pools."""
    drawing, (left, right) = _canvas(7.6, 3.6, columns=2)
    for axes, part, size in ((left, "", "4 to 8 models"), (right, "large_", "10 to 14 models")):
        for key, pool in KEYS.items():
            calls = [_value(by, f"{key}_{part}calls_{name}") for name in NUMBERS]
            gains = [_value(by, f"{key}_{part}gain_{name}") for name in NUMBERS]
            axes.plot(calls, gains, _SHAPES[key] + "-", color=_COLOURS[key], markersize=5, linewidth=1.2, label=pool)
            for call, gain, text in zip(calls, gains, NUMBERS.values(), strict=True):
                # In small sub-pools the last points lie on one another.
                if part or text[:1] in "35a":
                    axes.annotate(
                        text.split()[0],
                        (call, gain),
                        xytext=(0, -13 if key == "crux" else 6),
                        textcoords="offset points",
                        ha="center",
                        fontsize=8,
                        color=_MUTED,
                    )
        axes.set_title(f"sub-pools of {size}", color=_INK, fontsize=10)
        axes.grid(color=_RULE, linewidth=0.6)
        axes.margins(y=0.12)
        axes.set_xlabel("calls a question, stopped early")
    left.set_ylabel("gain of the vote, points")
    _save(drawing, left, path)


def _canvas(width: float, height: float, columns: int = 1) -> tuple[Drawing, Sequence[Axes]]:
    drawing = Drawing(figsize=(width, height), layout="constrained", facecolor=_PAPER)
    FigureCanvasSVG(drawing)
    found = drawing.subplots(1, columns, squeeze=False)[0].tolist()
    for axes in found:
        axes.set_facecolor(_PAPER)
        axes.tick_params(color=_RULE, labelcolor=_INK)
        axes.xaxis.label.set_color(_INK)
        axes.yaxis.label.set_color(_INK)
        axes.set_axisbelow(True)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(_RULE)
    return drawing, found


def _save(drawing: Drawing, axes: Axes, path: Path) -> None:
    handles, labels = axes.get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, labelcolor=_INK)
    text = io.StringIO()
    drawing.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    rules = "".join(
        f'[style*="fill: {light}"]{{fill:{dark}!important}}[style*="stroke: {light}"]{{stroke:{dark}!important}}'
        for light, dark in _DARK.items()
    )
    svg = text.getvalue().replace("<defs>", f"<style>@media(prefers-color-scheme:dark){{{rules}}}</style>\n<defs>", 1)
    path.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")
