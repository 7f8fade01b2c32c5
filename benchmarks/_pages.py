"""Write what was measured into the pages of the documentation again: ``python -m benchmarks._pages``.

Below a comment ``<!-- results: decode -->`` a row ``| quantity | `key` | measured | target |`` gets its last two cells
from benchmarks/results/decode.json; words behind ``missed`` stay while the target is missed. Between the comments
``<!-- table: NAME -->`` and ``<!-- end -->`` stands what a function of this file makes. All else is written by hand.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from benchmarks._measure import RESULTS, ROOT, Figure
from benchmarks.studies._pools import ANSWERED, NAMES
from benchmarks.studies.real import GAPS, KS, METHODS, RATIOS, K, plain_sets
from benchmarks.studies.real_models import MODELS, TASKS
from ensemble.methods import list_methods

PAGES = [ROOT / "docs" / f"{name}.md" for name in ("figures", "pools", "real-models", "methods")]
_ROW = re.compile(r"^\|(?P<quantity>[^|]*)\| `(?P<key>\w+)` \|[^|]*\|(?P<target>[^|]*)\|$")
_TABLE = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
_RESULTS = re.compile(r"<!-- results: (\w+) -->")

STRATEGIES = {
    "single": "the best single model by dev",
    "group_router": "router: the best model of each category",
    "rules": "vote of the rules' set (10 points, ratio 2, 3 models)",
    "rules_no_length": "the same without the length rule",
    "top3": "vote of the three most accurate",
    "calls3": "vote within 15 points, at most 3",
    "default": "vote within 15 points, at most 5 (the default)",
    "gap15": "vote within 15 points, any number",
    "all": "vote of all",
}
WAYS = {
    "never": "never vote: the best single model by dev",
    "rules": "always vote with the set of the paper's rules",
    "shown": "vote only if the test shows a gain",
    "largest": "take the largest expected gain",
    "recommended": "follow the recommendation",
    "always": "always vote within 15 points, at most 5",
}
NUMBERS = {"calls3": "3", "calls4": "4", "default": "5 (the default)", "calls6": "6", "calls7": "7", "gap15": "any"}


def main() -> int:
    """Write the pages again."""
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def filled(page: str) -> str:
    """A page with what was measured."""
    page = _TABLE.sub(lambda found: f"<!-- table: {found[1]} -->\n\n{TABLES[found[1]]()}\n\n<!-- end -->", page)
    lines, name = [], ""
    for line in page.split("\n"):
        if found := _RESULTS.match(line):
            name = found[1]
        elif line.startswith("#"):
            name = ""
        lines.append(row_of(line, figures(name)) if name else line)
    return "\n".join(lines)


@cache
def figures(name: str) -> dict[str, Figure]:
    """The figures of a file of results."""
    return {
        key: Figure(key, one["value"], one["low"], one["high"], one["limit"], one["note"])
        for key, one in _kept(name)["figures"].items()
    }


@cache
def _kept(name: str) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return kept


def row_of(line: str, by: Mapping[str, Figure]) -> str:
    """A line of a page, with what was measured if it is the row of a figure.

    Raises:
        KeyError: The results have no such figure.
    """
    match = _ROW.match(line)
    if match is None:
        return line
    figure = by[match["key"]]
    missed = figure.limit and not figure.held
    reason = match["target"].partition("missed")[2].strip() if missed else ""
    target = f"{figure.limit}: missed" if missed else figure.limit
    measured = "not measured" if figure.value is None else rounded(figure.value)
    last = " ".join(part for part in (target, reason) if part)
    return f"|{match['quantity']}| `{match['key']}` | {measured} | {last} |"


def rounded(value: float) -> str:
    """A value with two or three digits; whole numbers as they are."""
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - max(0, math.floor(math.log10(abs(value)))) + (abs(value) < 0.1))}f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def _signed(value: float | None) -> str:
    text = "–" if value is None else f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


def _interval(figure: Figure | None) -> str:
    if figure is None or figure.low is None or figure.high is None:
        return "–"
    return f"{_signed(figure.value)} ({_signed(figure.low)} to {_signed(figure.high)})"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


# --- Pools ---


def _over_pools(by: Mapping[str, Figure], pools: Sequence[str], name: str) -> Iterator[Figure | None]:
    return (by.get(f"{pool.replace('-', '_')}_{name}") for pool in pools)


def _mean(by: Mapping[str, Figure], pools: Sequence[str], name: str) -> float:
    return statistics.mean(
        one.value for one in _over_pools(by, pools, name) if one is not None and one.value is not None
    )


def strategies() -> str:
    """What each way to choose voters gains."""
    by, rows = {**figures("pools"), **figures("pools_recommended")}, []
    for name, text in STRATEGIES.items():
        costs = [
            "1.0" if name.endswith("router") else f"{_mean(by, NAMES, f'{what}_{name}'):.1f}"
            for what in ("asked", "calls")
        ]
        rows.append([text, *map(_interval, _over_pools(by, NAMES, f"gain_{name}")), *costs])
    return _table(["strategy", *NAMES, "models", "calls"], rows)


def gaps() -> str:
    """The gain of a vote by the limit of the gap."""
    by = figures("pools")
    rows = [
        [
            f"{limit} points",
            *(_signed(one.value if one else None) for one in _over_pools(by, NAMES, f"gain_gap{limit}")),
            f"{_mean(by, NAMES, f'calls_gap{limit}'):.1f}",
        ]
        for limit in (5, 10, 15, 20, 25)
    ]
    return _table(["limit of the gap, any number of models", *NAMES, "calls"], rows)


def voters() -> str:
    """The gain of a vote by the largest number of voters, in small and in large sub-pools."""
    by, rows = figures("pools"), []
    for name, text in NUMBERS.items():
        row = [text]
        for part in ("", "large_"):
            row += [_signed(one.value if one else None) for one in _over_pools(by, NAMES, f"{part}gain_{name}")]
            row.append(f"{_mean(by, NAMES, f'{part}calls_{name}'):.1f}")
        rows.append(row)
    return _table(["`--max-voters`", *NAMES, "calls", *(f"{name}, 10 to 14 models" for name in NAMES), "calls"], rows)


def regret() -> str:
    """How far each way to decide is behind the best strategy in hindsight."""
    by, rows = figures("pools_recommended"), []
    for name, text in WAYS.items():
        own = [
            f"{one.value:.1f}" if one and one.value is not None else "–"
            for one in _over_pools(by, ANSWERED, f"regret_{name}")
        ]
        means = [f"{_mean(by, ANSWERED, f'{part}regret_{name}'):.2f}" for part in ("", "wide_")]
        rows.append([text, *own, *means, f"{100 * _mean(by, ANSWERED, f'votes_{name}'):.0f}%"])
    return _table(["points behind the best", *ANSWERED, "mean", "mean, any gap", "votes"], rows)


def recommended() -> str:
    """What the recommendation gains over the default vote."""
    by, name = figures("pools_recommended"), "gain_recommended_minus_default_vote"
    rows = [
        [text, *map(_interval, _over_pools(by, ANSWERED, f"{part}{name}"))]
        for part, text in {"": "within 25 points", "wide_": "any gap"}.items()
    ]
    return _table(["recommendation over the default vote", *ANSWERED], rows)


def predictions() -> str:
    """How far predicted gains are from the measured ones."""
    by, rows = figures("prediction"), []
    for key, text in {
        "zoo": "sets of the zoo that decode together",
        "real": "sets of real models that decode together",
    }.items():
        error, zero = (by[f"prediction_rmse_{key}{end}"].value for end in ("", "_zero"))
        rows.append(
            [
                text,
                f"{error:.1f} ({zero:.1f} if no gain were predicted)",
                f"{by[f'prediction_coverage_{key}'].value:.0%}",
            ]
        )
    return _table(["prediction", "2 or 3 models", "in the 90% interval"], rows)


# --- Real models ---


def real_answer() -> str:
    """What was found, in a sentence."""
    by, count = figures("real"), sum(len(plain_sets(task)) for task in _kept("real")["table"].values())
    gaining, better, worse = round((by["all_share"].value or 0) * count), by["all_better"].value, by["all_worse"].value
    return (
        f"**Decoding together does not pay on these models**: by `unite`, {gaining} of {count} pairs and triples have "
        f"more points\nthan their best member, {better:.0f} of them shown (p of at most 0.05, without a correction for "
        f"their number), and {worse:.0f}\nhave fewer, shown. The mean, the least and the most in points: "
        f"{_interval(by['all_gain'])}."
    )


def real_models() -> str:
    """The models, with their points."""
    table, rows = _kept("real")["table"], []
    for model in MODELS:
        own = [row for task in TASKS for row in table[task]["models"] if row["model"] == model.name]
        if own:
            rows.append(
                [f"`{model.name}`", model.weights, *(f"{row['accuracy']:.1f} ({row['dev']:.1f})" for row in own)]
            )
    return _table(["model", "weights", *(f"{task}, points (dev)" for task in TASKS)], rows)


def _gain(row: Mapping[str, Any] | None) -> str:
    return "–" if row is None else f"{_signed(row['gain'])} ({_p(row['p'])})"


def real_sets() -> str:
    """The gain of each set, by task, the largest mean gain first."""
    order, found = [model.name for model in MODELS], dict[tuple[str, ...], dict[str, Mapping[str, Any]]]()
    for task, kept in _kept("real")["table"].items():
        for row in plain_sets(kept):
            found.setdefault(tuple(sorted(row["members"], key=order.index)), {})[task] = row
    means = {names: statistics.mean(row["gain"] for row in by.values()) for names, by in found.items()}
    rows = [
        [", ".join(names), *(_gain(found[names].get(task)) for task in TASKS)]
        for names in sorted(found, key=lambda names: -means[names])
    ]
    return _table(["set by `unite`: gain (p)", *TASKS], rows)


def real_methods() -> str:
    """The gain of other methods and of other k, with one pair."""
    table, rows = _kept("real")["table"], []
    pair = {"gemma3-270m", "smollm2-135m"}
    wanted = [("unite", K), *((method, K) for method in METHODS), *(("unite", k) for k in KS)]
    for method, k in wanted:
        own = [
            next(
                (
                    row
                    for row in table[task]["sets"]
                    if (row["strategy"], row["k"], set(row["members"])) == (method, k, pair)
                ),
                None,
            )
            for task in TASKS
        ]
        rows.append([f"`{method}`, k = {k}", *map(_gain, own)])
    return _table(["method: gain (p)", *TASKS], rows)


def real_rules() -> str:
    """The gains by the gap of the last member and by the length ratio."""
    by, rows = figures("real"), []
    for word, kind, limits in (("gap", "gap, points", GAPS), ("ratio", "length ratio", RATIOS)):
        for low, high in pairwise(limits):
            key = f"{word}_{low:g}_{high:g}".replace(".", "")
            gain, count = by[f"{key}_gain"], by[f"{key}_gain"].note.split()[1]
            ends = f"over {low:g}" if high == limits[-1] else f"{low:g} to {high:g}"
            shown = [f"{by[f'{key}_{side}'].value:.0f}" for side in ("better", "worse")]
            rows.append([f"{kind}: {ends}", count, _interval(gain), f"{by[f'{key}_share'].value:.0%}", *shown])
    return _table(["", "sets", "mean gain, the least and the most", "gain", "shown better", "shown worse"], rows)


def real_limits() -> str:
    """What other limits of the rules would have come to."""
    by, rows = figures("prediction"), []
    for option, text, values in (
        ("max_gap", "gap", {"5": "5", "10": "10", "15": "15", "20": "20", "100": "none"}),
        ("max_length_ratio", "length ratio", {"15": "1.5", "2": "2", "3": "3", "100": "none"}),
    ):
        for key, value in values.items():
            own = [f"{by[f'rules_{option}_{key}_{source}'].value:+.2f}" for source in ("real", "zoo")]
            rows.append([f"{text}: {value}", *own])
    return _table(["limit", "real models", "zoo"], rows)


# --- Methods ---


def methods() -> str:
    """The points of each method on the demo, the best first."""
    table = _kept("methods")["table"]
    ran = {row["method"]: row for row in table["methods"] if not row["left_out"] and row["method"] in list_methods()}
    unit = ran["unite"]["ms_per_token"]
    rows = []
    for name in sorted(ran, key=lambda name: -ran[name]["accuracy"]):
        row = ran[name]
        time = "–" if row["ms_per_token"] is None else f"{row['ms_per_token'] / unit:.2f}"
        rows.append(
            [f"`{name}`", f"{row['accuracy']:.1f}", _gain({"gain": row["difference"], "p": row["p_two_sided"]}), time]
        )
    best = next(row["accuracy"] for row in table["members"] if row["model"] == table["best_single_model"])
    rows.append([f"`{table['best_single_model']}`, the best single model", f"{best:.1f}", "–", "–"])
    return _table(["method", "points", "gain (p)", "time a token"], rows)


TABLES: dict[str, Callable[[], str]] = {
    each.__name__: each
    for each in (
        *(strategies, gaps, voters, regret, recommended, predictions),
        *(real_answer, real_models, real_sets, real_methods, real_rules, real_limits, methods),
    )
}


if __name__ == "__main__":
    sys.exit(main())
