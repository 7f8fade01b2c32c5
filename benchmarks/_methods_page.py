"""Write the measured part of docs/methods-cost.md from benchmarks/results: ``python -m benchmarks._methods_page``.

It stands between two comments of the page. What is above and below stays as it is.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks._measure import RESULTS, ROOT

PAGE = ROOT / "docs" / "methods-cost.md"
BEGIN = "<!-- measured: python -m benchmarks._methods_page -->"
END = "<!-- end of what is measured -->"
_CONTROL = "majority"


def main() -> int:
    """Write the page again."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), RESULTS / "methods.json"), encoding="utf-8")
    return 0


def filled(page: str, results: Path) -> str:
    """The page with what was measured."""
    kept = json.loads(results.read_text(encoding="utf-8"))
    return between(page, BEGIN, END, measured(kept))


def measured(kept: Mapping[str, Any]) -> str:
    """The measured part of the page, as Markdown."""
    by = kept["figures"]
    parts = [*_setting(kept), *_points(by), *_trainings(by), *_left_out(by), *_threshold(by)]
    lines = textwrap.TextWrapper(width=155, break_long_words=False, break_on_hyphens=False)
    return "\n\n".join(part if part.startswith("|") else lines.fill(part) for part in parts)


def _setting(kept: Mapping[str, Any]) -> Iterator[str]:
    by, table = kept["figures"], kept["table"]
    members = ", ".join(f"`{member['model']}`" for member in table["members"])
    count = len(_seeds(by))
    names = [by[f"best_single_seed{n}"]["note"] for n in _seeds(by)]
    best = " or ".join(f"`{name}`" for name in dict.fromkeys(names))
    processor = kept["machine"]["processor"].replace("(R)", "").replace(" Processor", "")
    yield (
        f"The tables are from one run of `python -m benchmarks.studies.methods --threads 1` on "
        f"{kept['machine']['cores']} shared cores of an "
        f"{processor} machine, on {table['n']} held-out questions. The set is the one that the "
        f"rules choose ({members}). Its models were trained {count} times, from different seeds, and the figures are "
        f"means over the {count} trainings. The best single model is {best}. Intervals and p are over the questions: "
        "p is from an exact sign-flip test of the gain over the best single model, after Holm's correction."
    )


def _points(by: Mapping[str, Any]) -> Iterator[str]:
    """The table of points at their budgets, with the best first."""
    names = sorted(_ran(by), key=lambda name: -by[f"{_key(name)}_accuracy"]["value"])
    rows = []
    for name in names:
        key = _key(name)
        p = by[f"{key}_p"]["value"]
        time = 1.0 if name == "unite" else by.get(f"{key}_over_unite", {}).get("value")
        rows.append(
            [
                f"`{name}`",
                *_with_interval(by[f"{key}_accuracy"]),
                *_gain(by[f"{key}_delta"]),
                "< 0.001" if p < 0.001 else f"{p:.3f}",
                f"{by[f'{key}_tokens']['value']:.1f}",
                f"{by[f'{key}_over_majority']['value']:+.1f}",
                "–" if time is None else f"{time:.2f}",
            ]
        )
    for key, draws in _majorities(by).items():
        tokens = f"{by[f'{key}_tokens']['value']:.1f}"
        row = [*_with_interval(by[f"{key}_accuracy"]), *_gain(by[f"{key}_delta"]), "–", tokens, "–", "–"]
        rows.append([f"majority of {draws} draws", *row])
    rows.append(["the best single model", *_with_interval(by["best_single_accuracy"]), *["–"] * 6])
    heads = ["method", "points", "95% interval", "gain", "95% interval of the gain", "p", "tokens"]
    yield markdown_table([*heads, "over the majority", "time a token"], rows)
    yield (
        "*Tokens* is the budget: the tokens that all models decode for a question. `moa` and "
        "`self-moa` need an aggregator that can read responses, which these "
        "small models were not trained for. *Over the majority* is the gain "
        "over the best single model's own majority of as many sampled responses as cost the same number of tokens, and "
        "at least as many as the set has members. The responses are drawn at temperature 0.7, at which these small "
        "models are much worse than without sampling. The last column is the time per token relative to `unite`, each "
        "measured once."
    )


def _trainings(by: Mapping[str, Any]) -> Iterator[str]:
    """The table of the trainings, and how far the order of the methods holds in all of them."""
    seeds = _seeds(by)
    keys = {f"`{name}`": _key(name) for name in sorted(_ran(by), key=lambda name: -_mean(by, _key(name)))}
    rows = []
    for text, key in keys.items():
        places = ", ".join(by[f"{key}_seed{n}"]["note"].split()[1] for n in seeds)
        rows.append([text, *(f"{by[f'{key}_seed{n}']['value']:.1f}" for n in seeds), places])
    rest = {f"majority of {draws} draws": key for key, draws in _majorities(by).items()}
    for text, key in {**rest, "the best single model": "best_single"}.items():
        rows.append([text, *(f"{by[f'{key}_seed{n}']['value']:.1f}" for n in seeds), "–"])
    yield markdown_table(["method", *(f"training {n}" for n in seeds), "places"], rows)
    if "order_held" in by:
        held, certain = (round(100 * by[f"order_{what}"]["value"]) for what in ("held", "certain"))
        yield (
            f"Of the pairs of methods that differ, {held}% have the same order in all trainings, equal points allowed. "
            f"For {certain}% the 95% interval of the difference, over the questions, excludes 0."
        )


def _left_out(by: Mapping[str, Any]) -> Iterator[str]:
    left = {
        name.removesuffix("_accuracy").replace("_", "-"): figure["note"].removeprefix("left out: ")
        for name, figure in by.items()
        if name.endswith("_accuracy") and figure["value"] is None
    }
    if left:
        reasons = (f"`{name}`, because {reason.removeprefix(f'method {name}: ')}" for name, reason in left.items())
        yield "Left out: " + ". Left out: ".join(reasons) + "."


def _threshold(by: Mapping[str, Any]) -> Iterator[str]:
    figures = {}
    for end in ("", "_batch16"):
        for what in ("over_gate", "least"):
            figures[f"{what}{end}"] = f"{by[f'gac_threshold_{what}{end}']['value']:.2f}"
    threshold = by["gac_threshold_over_gate"]["note"].split()[1].rstrip(",")
    share, texts = (100 * by[f"gac_threshold_{what}"]["value"] for what in ("share", "texts"))
    yield (
        f"With a threshold of {threshold}, `gac-threshold` ensembles {share:.1f}% of the steps. It takes "
        f"{figures['over_gate']} times as long as its gate alone with one prompt at a time, and "
        f"{figures['over_gate_batch16']} times with 16 prompts. The target is 1.2. These members are as large as the "
        f"gate, and {texts:.0f}% of the short texts have a step that needs them, so they read most prompts. To read "
        f"these prompts once, and to do nothing else, takes {figures['least']} and {figures['least_batch16']} times as "
        "long as the gate alone already."
    )


def between(page: str, begin: str, end: str, text: str) -> str:
    """The page with a text between two of its comments, in place of what stands there."""
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def markdown_table(heads: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return (
        "\n".join("| " + " | ".join(line) + " |" for line in lines)
        .replace("| --- |", "|---|")
        .replace(" --- |", "---|")
    )


def _with_interval(figure: Mapping[str, Any]) -> list[str]:
    return [f"{figure['value']:.1f}", f"{figure['low']:.1f} to {figure['high']:.1f}"]


def _gain(figure: Mapping[str, Any]) -> list[str]:
    return [f"{figure['value']:+.1f}", f"{figure['low']:+.1f} to {figure['high']:+.1f}"]


def _ran(by: Mapping[str, Any]) -> list[str]:
    """The methods that were run."""
    return [name.removesuffix("_p").replace("_", "-") for name in by if name.endswith("_p")]


def _majorities(by: Mapping[str, Any]) -> dict[str, int]:
    """The majorities' keys, with their numbers of draws."""
    keys = [name.removesuffix("_accuracy") for name in by if name.endswith("_accuracy") and name.startswith(_CONTROL)]
    return {key: int(key.removeprefix(_CONTROL)) for key in keys}


def _seeds(by: Mapping[str, Any]) -> list[int]:
    """The numbers of the trainings."""
    return [int(name.removeprefix("best_single_seed")) for name in by if name.startswith("best_single_seed")]


def _mean(by: Mapping[str, Any], key: str) -> float:
    return float(by[f"{key}_accuracy"]["value"])


def _key(name: str) -> str:
    return name.replace("-", "_")


if __name__ == "__main__":
    sys.exit(main())
