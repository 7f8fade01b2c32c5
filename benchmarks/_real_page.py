"""Write the measured parts of two pages on real models from benchmarks/results: ``python -m benchmarks._real_page``.

They stand between two comments of docs/real-models.md and docs/real-models-rules.md. What is above and below stays.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks._measure import RESULTS, ROOT
from benchmarks._methods_page import between, markdown_table
from benchmarks.studies.real import GAPS, KS, METHODS, RATIOS, SLOW, plain_sets, sets_of
from benchmarks.studies.real_models import MODELS

ANSWERS = ROOT / "docs" / "real-models.md"
RULES = ROOT / "docs" / "real-models-rules.md"
BEGIN = "<!-- measured: python -m benchmarks._real_page -->"
END = "<!-- end of what is measured -->"
TITLES = {
    "sciq": "SciQ: a choice",
    "triviaqa": "TriviaQA: short free answers",
    "translation": "Multi30k: captions from French into English",
}
_WHAT = {
    "sciq": "The texts of four options are scored, divided by their characters; nothing is written.",
    "triviaqa": "Three examples stand before each question, and the whole answer counts.",
    "translation": "Three examples stand before each caption. Points are those of sentence chrF. There are no votes.",
}


def main() -> int:
    """Write the pages again."""
    for page in (ANSWERS, RULES):
        page.write_text(filled(page), encoding="utf-8")
    return 0


def filled(page: Path) -> str:
    """The page with what was measured, as Markdown."""
    kept = json.loads((RESULTS / "real.json").read_text(encoding="utf-8"))
    if page == ANSWERS:
        parts = [*_answer(kept), *_models(kept["table"])]
        for name, task in kept["table"].items():
            parts += _task(name, task)
    else:
        predicted = json.loads((RESULTS / "prediction.json").read_text(encoding="utf-8"))["figures"]
        parts = [*_rules(kept["figures"]), *_limits(predicted), *_predictions(predicted), *_ways(kept)]
    return between(page.read_text(encoding="utf-8"), BEGIN, END, _wrapped(parts))


def _wrapped(parts: Sequence[str]) -> str:
    lines = textwrap.TextWrapper(width=155, break_long_words=False, break_on_hyphens=False)
    return "\n\n".join(part if part.startswith(("|", "#")) else lines.fill(part) for part in parts)


def _answer(kept: Mapping[str, Any]) -> Iterator[str]:
    """What was found, in a paragraph, and how it was measured."""
    by, table = kept["figures"], kept["table"]
    count = sum(len(plain_sets(task)) for task in table.values())
    gaining = round(by["all_share"]["value"] * count)
    mean, better, worse = (by[f"all_{what}"]["value"] for what in ("gain", "better", "worse"))
    verdict = "pays" if mean > 0 and better > worse else "does not pay"
    yield (
        f"**Decoding together {verdict} on these models**: by `unite`, {gaining} of {count} pairs and triples have "
        f"more points than their best member, {better:.0f} of them shown (p of at most 0.05, without a correction for "
        f"their number), and {worse:.0f} have fewer, shown. The mean is {mean:+.1f} points "
        f"({by['all_gain']['low']:+.1f} to {by['all_gain']['high']:+.1f})."
    )
    questions = next(iter(table.values()))
    processor = kept["machine"]["processor"].replace("(R)", "").replace(" Processor", "")
    yield (
        f"Measured on {kept['machine']['cores']} cores of a shared {processor} machine, one thread a process, with "
        f"{questions['dev_questions']} dev and {questions['held_out_questions']} held-out questions of each task "
        f"({by['held_out_questions']['value']:.0f} held-out ones in all), by "
        f"`python -m benchmarks.studies.real --save` after `make real GEMMA=1`. The answers took "
        f"{by['hours']['value']:.1f} hours of a clock in all, each process with "
        "a part of a core, because others used the machine (target: 2). All weights but those of "
        "stories15m are dequantized: what is said here is said of the dequantized models, not of the originals. They "
        "compute in bfloat16, stories15m in float32. Decoding is greedy, without chat templates, and k is 10."
    )
    yield (
        "A gain is over the best member of the set on the same held-out questions, which a user does not know in "
        "advance. Intervals are 95%. p is from an exact McNemar test (for chrF a sign-flip test). The order of a set, "
        "its gap (from the primary to the last member) and its length ratio (the largest of two members) are those on "
        "dev."
    )


def _models(table: Mapping[str, Any]) -> Iterator[str]:
    yield "## The models"
    by_name = {name: {row["model"]: row for row in task["models"]} for name, task in table.items()}
    rows = []
    for model in MODELS:
        cells = [f"`{model.name}`", model.weights]
        for name in table:
            row = by_name[name].get(model.name)
            cells.append("–" if row is None else f"{row['accuracy']:.1f} ({row['dev']:.1f})")
        for name in table:
            row = by_name[name].get(model.name)
            if any(each["mean_length"] is not None for each in by_name[name].values()):
                cells.append("–" if row is None else f"{row['mean_length']:.0f}")
        rows.append(cells)
    lengths = [name for name in table if any(row["mean_length"] is not None for row in by_name[name].values())]
    heads = ["model", "weights", *(f"{name}, points (dev)" for name in table)]
    yield markdown_table([*heads, *(f"{name}, characters" for name in lengths)], rows)
    failed = [
        f"{row['failed']} of {name} by `{row['model']}`"
        for name, task in table.items()
        for row in task["models"]
        if row["failed"]
    ]
    if failed:
        yield (
            f"Could not be answered, and count as wrong: {', '.join(failed)}, because the prompt has more tokens than "
            "the model reads. The same questions are wrong for its sets."
        )


def _task(name: str, task: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {TITLES[name]}"
    yield _WHAT[name]
    models = [row["model"] for row in task["models"]]
    rows = [[_names(row), *_cells(row)] for row in sorted(plain_sets(task), key=lambda row: -row["gain"])]
    yield markdown_table(["set by `unite`", *_HEADS], rows)
    if lacking := [f"`{model.name}`" for model in MODELS if model.name not in models]:
        yield f"Without {', '.join(lacking)}, for lack of time."
    absent = [set_ for set_ in sets_of(models) if list(set_) not in [row["members"] for row in plain_sets(task)]]
    if absent:
        yield f"Not decoded, for lack of time: {'; '.join(map(', '.join, absent))}."
    others = [row for row in task["sets"] if row["strategy"] != "unite"]
    ks = [row for row in task["sets"] if row["strategy"] == "unite"]
    if others:
        usual = [row for row in plain_sets(task) if row["members"] == others[0]["members"]]
        rows = [[f"`{row['strategy']}`", *_cells(row)] for row in (*usual, *others)]
        yield f"Other methods, on {_names(others[0])}:"
        yield markdown_table(["method", *_HEADS], rows)
    missing = [method for method in METHODS if method not in [row["strategy"] for row in others]]
    if missing:
        yield f"Not decoded, for lack of time: {', '.join(f'`{method}`' for method in missing)}."
    if len({row["k"] for row in ks}) > 1:
        pair = next(row["members"] for row in ks if row["k"] != 10)
        own = sorted((row for row in ks if row["members"] == pair), key=lambda row: row["k"])
        yield f"Other k, on {', '.join(f'`{member}`' for member in pair)}:"
        yield markdown_table(["k", *_HEADS], [[str(row["k"]), *_cells(row)] for row in own])
        if left := [str(k) for k in KS if k not in [row["k"] for row in own]]:
            yield f"Not decoded, for lack of time: k of {' and '.join(left)}."
    else:
        yield "Other k were not decoded, for lack of time."
    if task["votes"]:
        rows = [[_names(row), *_cells(row), f"{row['cascade_calls']:.1f}"] for row in task["votes"]]
        yield "Votes, and cascades, which give the same answers with fewer calls:"
        yield markdown_table(["voters", *_HEADS, "calls of a cascade"], rows)


_HEADS = ["points", "gain", "95% interval", "p", "gap", "length ratio"]


def _cells(row: Mapping[str, Any]) -> list[str]:
    """The cells of a set."""
    low, high = row["gain_ci"]
    return [
        f"{row['accuracy']:.1f}",
        f"{row['gain']:+.1f}",
        f"{low:+.1f} to {high:+.1f}",
        "< 0.001" if row["p"] < 0.001 else f"{row['p']:.3f}",
        f"{row['gap']:.1f}",
        "–" if row["ratio"] is None else f"{row['ratio']:.1f}",
    ]


def _rules(by: Mapping[str, Any]) -> Iterator[str]:
    yield "## Do the rules hold?"
    yield (
        "The rules take a model that is at most 10 points behind the primary and writes texts at most twice as long or "
        "half as long. All pairs and triples by `unite`, of all tasks, by the gap of their last member and by their "
        "largest length ratio (a choice has no lengths):"
    )
    rows = []
    for word, limits in (("gap", GAPS), ("ratio", RATIOS)):
        for low, high in pairwise(limits):
            key = f"{word}_{low:g}_{high:g}".replace(".", "")
            if f"{key}_gain" not in by:
                continue
            gain, share = by[f"{key}_gain"], by[f"{key}_share"]["value"]
            count = gain["note"].split()[1]
            shown = [f"{by[f'{key}_{side}']['value']:.0f}" for side in ("better", "worse")]
            spread = f"{gain['low']:+.1f} to {gain['high']:+.1f}"
            ends = f"over {low:g}" if high == limits[-1] else f"{low:g} to {high:g}"
            kind = "gap, points" if word == "gap" else "length ratio"
            rows.append([f"{kind}: {ends}", count, f"{gain['value']:+.1f}", spread, f"{100 * share:.0f}%", *shown])
    near, far = (by.get(f"gap_{key}_gain") for key in ("0_10", "20_100"))
    heads = ["", "sets", "mean gain", "smallest to largest", "gain", "shown better", "shown worse"]
    yield markdown_table(heads, rows)
    if near and far:
        yield (
            f"Sets within 10 points come to {near['value']:+.1f} points on average, sets with a gap of over 20 to "
            f"{far['value']:+.1f}. So the gap "
            + (
                "decides how much is lost; being within the rule is not enough to gain."
                if near["value"] < 0
                else "decides."
            )
        )
    alike, apart = (by.get(f"ratio_{key}_gain") for key in ("1_15", "2_100"))
    if alike and apart:
        decides = "decides, too." if apart["value"] < alike["value"] else "does not decide here."
        yield (
            f"Sets with a length ratio of at most 1.5 come to {alike['value']:+.1f}, those with one of over 2 to "
            f"{apart['value']:+.1f}: the ratio {decides}"
        )


def _limits(by: Mapping[str, Any]) -> Iterator[str]:
    """What other limits of the rules would have come to."""
    yield "### Other limits"
    yield (
        "The set of the rules is decoded in every pool of two or more of the models; where no model fits the best one, "
        "that one answers alone and gains nothing. The mean gain over the single model that is best on dev, in points, "
        "on the real models (each task counts the same) and on [the zoo](figures.md#how-good-the-advice-is) of eight "
        "tiny models, by `python -m benchmarks.studies.prediction`:"
    )
    for option, head in (("max_gap", "limit of the gap"), ("max_length_ratio", "limit of the length ratio")):
        rows = []
        for key, figure in by.items():
            if key.startswith(f"rules_{option}_") and key.endswith("_real"):
                value = key.removeprefix(f"rules_{option}_").removesuffix("_real")
                ends = "none" if value == "100" else value.replace("15", "1.5") if option != "max_gap" else value
                zoo = by[key.replace("_real", "_zoo")]["value"]
                rows.append([ends, f"{figure['value']:+.2f}", f"{zoo:+.2f}", f"`{key}`, `..._zoo`"])
        yield markdown_table([head, "real models", "zoo", "name"], rows)


def _predictions(by: Mapping[str, Any]) -> Iterator[str]:
    """How well the gains of these sets are predicted."""
    yield "## Can it be known before?"
    real, zero, zoo = (by[f"prediction_rmse_real{end}"] for end in ("", "_zero", "_by_zoo"))
    yield (
        "The advisor predicts the gain of a set from its members' own answers, before it is decoded "
        "([predicted gains](profiling.md#predicted-gains)). From the dev questions, with coefficients from sets that "
        f"share no model with it, it misses the gain of these sets on the held-out questions by {real['value']:.1f} "
        f"points (root mean square, `prediction_rmse_real`; {real['note'].split()[1]} sets whose lengths fit); with "
        f"coefficients of the zoo alone by {zoo['value']:.1f}. If it always said that nothing is gained or lost, it "
        f"would miss by {zero['value']:.1f}. So what these sets lose is foreseen."
    )


def _ways(kept: Mapping[str, Any]) -> Iterator[str]:
    by = kept["figures"]
    if "differences" not in by or by["differences"]["value"] is None:
        return
    yield "## Are all ways to decode equal, and how long do they take?"
    yield f"Texts that differ: {by['differences']['value']:.0f} {by['differences']['note'].partition(';')[0]}."
    rows = []
    for key, figure in by.items():
        if key.startswith(("plain_over_members", "speculative_over_primary", "plain_over_generate", "batch16_speedup")):
            if figure["value"] is None:
                continue
            spread = "–" if figure["low"] is None else f"{figure['low']:.2f} to {figure['high']:.2f}"
            held = f"{figure['limit']}" if figure["limit"] else ""
            rows.append([f"`{key}`", f"{figure['value']:.2f}", spread, held, figure["note"].partition(", members")[0]])
    yield markdown_table(["name", "measured", "in its rounds", "target", "models"], rows)
    yield (
        "Times are those of the processor, because others used the machine. `plain` is one text at a time without "
        "drafts, over its members alone by this decoder; `speculative` is one text with drafts, over the primary "
        "alone. Without a suffix stands the worst pair. In bfloat16 texts may depend on the batch, "
        f"so texts were compared in float32, and without `{SLOW}`."
    )


def _names(row: Mapping[str, Any]) -> str:
    return ", ".join(f"`{member}`" for member in row["members"])


if __name__ == "__main__":
    sys.exit(main())
