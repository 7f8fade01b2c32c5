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
from typing import Any

from benchmarks._measure import RESULTS, ROOT, Figure
from benchmarks.studies._pools import ANSWERED, NAMES
from benchmarks.studies.real import KINDS, SETTINGS, VOTE
from benchmarks.studies.real_models import MODELS
from benchmarks.studies.real_steps import STEP_WAYS
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


def _have(number: float | None) -> str:
    return f"{number or 0:.0f} {'has' if number == 1 else 'have'}"


def real_answer() -> str:
    """What was found, by rule and family, and at the steps of references."""
    by, steps, texts = figures("real"), figures("real_steps"), []
    for kind, words in KINDS.items():
        if gain := by.get(f"{kind}_unite_gain"):
            gaining, better, worse = (by[f"{kind}_unite_{word}"].value for word in ("gaining", "better", "worse"))
            texts.append(
                f"of {gain.note.split()[1]} sets {words}, {_have(gaining)} more points than their best member "
                f"({better:.0f} shown), and {_have(worse)} fewer, shown (mean {_signed(gain.value)})"
            )
    learned, equal = (
        f"{_signed(one.value)} points on the mean of the pairs (worst {_signed(one.low)})"
        for one in (steps["steps_other_likelihood"], steps["steps_other_unite"])
    )
    weighted = [
        f"those that {what} ({gain.note.split()[1]} sets) gain {_interval(gain)}"
        for kind, what in (("inside", "write texts"), ("options", "score options"))
        if (gain := by.get(f"{kind}_likelihood_gain"))
    ]
    return (
        f"**By `unite` with equal weights, {'; '.join(texts)}.** With the learned weights of `select`,\n"
        f"{' and '.join(weighted)} points. Shown is a p of at most 0.05, without a correction "
        "for the number of sets. At the steps of references, weights learned from other right texts come to\n"
        f"{learned}, and equal weights to {equal}."
    )


def real_models() -> str:
    """The models that answered or read, with their points."""
    table, rows = _kept("real")["table"], []
    read = {name for task in _kept("real_steps")["table"].values() for each in task["sets"] for name in each["members"]}
    for model in MODELS:
        found = {task: {row["model"]: row for row in kept["models"]}.get(model.name) for task, kept in table.items()}
        points = ["–" if row is None else f"{row['accuracy']:.1f} ({row['dev']:.1f})" for row in found.values()]
        if any(found.values()) or model.name in read:
            rows.append([f"`{model.name}`", model.weights, *points])
    counts = ["", "dev and held-out questions"]
    counts += [f"{kept['dev_questions']}, {kept['held_out_questions']}" for kept in table.values()]
    return _table(["model", "weights", *(f"{task}, points (dev)" for task in table)], [*rows, counts])


def _gain(row: Mapping[str, Any] | None) -> str:
    return "–" if row is None else f"{_signed(row['gain'])} ({_p(row['p'])})"


def _rows_of_sets(inside: bool) -> Iterator[tuple[str, str, dict[str, Mapping[str, Any]]]]:
    """The task, the members and the rows by setting of each set, the largest gain first."""
    found = dict[tuple[str, str], dict[str, Mapping[str, Any]]]()
    for task, kept in _kept("real")["table"].items():
        for row in kept["sets"]:
            if row["inside"] == inside:
                found.setdefault((task, ", ".join(row["members"])), {})[row["setting"]] = row
    for task, members in sorted(found, key=lambda key: -max(row["gain"] for row in found[key].values())):
        yield task, members, found[task, members]


def real_sets() -> str:
    """The gain of each set inside the rules, by the way in which it decoded."""
    found = list(_rows_of_sets(inside=True))
    ways = [way for way in (*SETTINGS, VOTE) if any(way in by for _, _, by in found)]
    rows = [[task, members, *(_gain(by.get(way)) for way in ways)] for task, members, by in found]
    return _table(["task", "set, the primary first: gain (p)", *(f"`{way}`" for way in ways)], rows)


def real_outside() -> str:
    """The gains of the sets outside the rules, by task."""
    gains = dict[str, list[float]]()
    for task, _, by in _rows_of_sets(inside=False):
        gains.setdefault(task, []).append(by["unite"]["gain"])
    rows = [
        [task, str(len(own)), f"{_signed(statistics.mean(own))} ({_signed(min(own))} to {_signed(max(own))})"]
        for task, own in gains.items()
    ]
    return _table(["task", "sets", "mean gain, the least and the most"], rows)


def real_steps() -> str:
    """What each pair of models gains at the steps of references."""
    rows = []
    for task, kept in _kept("real_steps")["table"].items():
        for row in kept["sets"]:
            if len(row["members"]) == 2:
                gains = [
                    f"{_signed(mean)} ({_signed(low)} to {_signed(high)})" for mean, low, high in row["gains"].values()
                ]
                right = " / ".join(f"{each:.1f}" for each in row["right"])
                rows.append([task, ", ".join(row["members"]), f"{row['steps']:,}", right, *gains])
    return _table(["task", "pair", "steps", "right, %", *(f"`{way}`" for way in STEP_WAYS)], rows)


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
        *(real_answer, real_models, real_sets, real_outside, real_steps, real_limits, methods),
    )
}


if __name__ == "__main__":
    sys.exit(main())
