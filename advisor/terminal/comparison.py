"""What ``advisor compare`` found: as JSON, and as tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from advisor.compare.paired import Comparison, GateResult, PairedScores
from advisor.compare.score_table import ScoreTable
from advisor.options.finished_run import CompareOptions
from advisor.terminal.tables import Names
from ensemble.common import text

SCHEMA_VERSION = 2
MOST_PAIRS = 15
"""Of up to six models all pairs are shown; of more, those with the baseline."""


def comparison_of(
    table: ScoreTable,
    compared: Comparison,
    gate: Sequence[GateResult],
    options: CompareOptions,
    command: str,
) -> dict[str, Any]:
    """All figures of a comparison, in the form of ``--json``. Accuracies and differences are in points.

    Args:
        table: The scores; the first model is the baseline.
        compared: Its pairs: all, or those with the baseline.
        gate: The gate's results; empty without a gate.
        options: Those of the command.
        command: The command line, for the record.
    """
    cluster, points = options.columns().get("cluster"), options.fail_if_worse
    paired = PairedScores(table.scores, table.clusters, options.seed)
    models = [
        {
            "model": model,
            "accuracy": 100 * float(table.scores[:, number].mean()),
            "accuracy_ci": list(paired.accuracy_interval(number, options.alpha)),
            "accuracy_macro": _macro(table, number),
            **table.lost[number],
        }
        for number, model in enumerate(table.models)
    ]
    comparison: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "task": table.task,
        "metric": table.metric,
        "n": len(table.scores),
        "clusters": None if table.clusters is None else {"field": cluster or "cluster", "n": len(set(table.clusters))},
        "confidence": options.confidence,
        "margin": options.margin,
        "baseline": table.models[0],
        "models": models,
        "tested": {"pairs": compared.tested, "differ": compared.differ},
        "pairs": [pair.as_dict(options.margin) for pair in compared.pairs],
        "gate": None,
        "notes": list(table.notes),
        "provenance": {"command": command, "seed": options.seed},
    }
    if points is not None:
        comparison["gate"] = {"points": points, "results": [_gate_json(each, points) for each in gate]}
    return {**comparison, "text": _sentences(comparison)}


def shown_pairs(comparison: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The pairs that a reader can take in: all pairs of a few models, and of many those with the baseline."""
    pairs: list[dict[str, Any]] = comparison["pairs"]
    if len(pairs) <= MOST_PAIRS:
        return pairs
    return [pair for pair in pairs if pair["a"] == comparison["baseline"]]


def gate_texts(comparison: Mapping[str, Any]) -> list[str]:
    """The result of the gate for each model, as a sentence with the figures; empty without a gate."""
    return [result["text"] for result in comparison["gate"]["results"]] if comparison["gate"] else []


def print_comparison(comparison: Mapping[str, Any]) -> None:
    """Print the models, the pairs, and the groups of a single pair, on standard output."""
    console = Console(highlight=False)
    console.print(_models_table(comparison))
    pairs = shown_pairs(comparison)
    console.print(_pairs_table(comparison, pairs))
    if len(pairs) == 1 and pairs[0]["groups"]:
        console.print(_groups_table(pairs[0]))
    for sentence in (*comparison["text"], *gate_texts(comparison)):
        # In a pipe a sentence stays one line, so that programs find it.
        console.print(_plain(sentence), soft_wrap=not console.is_terminal)


def _models_table(comparison: Mapping[str, Any]) -> Table:
    """The accuracy of each model."""
    questions = f"{comparison['n']:,} questions{_of_clusters(comparison)}"
    table = _table(f"{comparison['task']}, {questions}, {comparison['metric']}")
    has_groups = any(each["accuracy_macro"] is not None for each in comparison["models"])
    _columns(table, "model", "points", _confidence(comparison), *(["macro"] if has_groups else []))
    for each in sorted(comparison["models"], key=lambda each: -each["accuracy"]):
        macro = [f"{each['accuracy_macro']:.1f}"] if has_groups else []
        table.add_row(Names(each["model"]), f"{each['accuracy']:.1f}", text.interval(each["accuracy_ci"]), *macro)
    return table


def _pairs_table(comparison: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]) -> Table:
    """The differences of the pairs."""
    baseline, tested = comparison["baseline"], comparison["tested"]["pairs"]
    corrected = f"p after Holm's correction for {tested:,} pairs"
    with_baseline = all(pair["a"] == baseline for pair in pairs)
    title = f"Difference from {baseline}" if with_baseline else "Differences of the pairs"
    table = _table(f"{title}; {corrected}" if tested > 1 else title)
    _columns(table, "model", "points", _confidence(comparison), "p", "gained", "lost")
    table.add_column("")
    for pair in pairs:
        table.add_row(
            Names(pair["b"] if with_baseline else f"{pair['b']} – {pair['a']}"),
            text.difference(pair["difference"]),
            text.difference_interval(pair["difference_ci"]),
            text.chance(pair["p_adjusted"]),
            f"{pair['gained']:,}",
            f"{pair['lost']:,}",
            pair["says"],
        )
    return table


def _groups_table(pair: Mapping[str, Any]) -> Table:
    """The differences of one pair on each group of questions."""
    table = _table(f"{pair['b']} – {pair['a']} by group")
    _columns(table, "group", "questions", "points", "interval")
    table.add_column("")
    for group in pair["groups"]:
        table.add_row(
            Names(group["group"]),
            f"{group['n']:,}",
            text.difference(group["difference"]),
            text.difference_interval(group["difference_ci"]),
            "the other way" if group["opposite"] else "",
        )
    total = text.difference(pair["difference"]), text.difference_interval(pair["difference_ci"])
    table.add_section()
    table.add_row("all questions", f"{pair['n']:,}", *total, "")
    table.add_row("mean of groups", "", text.difference(pair["macro_difference"]), "", "")
    return table


def _sentences(comparison: Mapping[str, Any]) -> list[str]:
    """What the tables do not say: how large a test set must be, and where groups disagree with the whole."""
    pairs = shown_pairs(comparison)
    smallest = sorted(pair["smallest_shown"] for pair in pairs)
    span = f"{smallest[0]:.1f}" + (f" to {smallest[-1]:.1f}" if smallest[-1] - smallest[0] >= 0.1 else "")
    n = f"{comparison['n']:,} questions"
    found = [f"With {n}, a true difference of about {span} points or more is shown 4 times out of 5."]
    if smallest[0] >= 100:
        found = [f"{n}{_of_clusters(comparison)} are too few to show any difference."]
    tested, differ = comparison["tested"]["pairs"], comparison["tested"]["differ"]
    if tested > 1:
        found.append(f"{differ:,} of {tested:,} pairs are shown to differ, after Holm's correction.")
    if len(pairs) == 1 and pairs[0]["verdict"] == "unclear" and pairs[0]["questions_needed"]:
        needed, safe = pairs[0]["questions_needed"], pairs[0]["questions_safe"]
        number = f"about {safe:,} questions are safe" if safe else "no number of questions is safe"
        found.append(
            f"A true difference of {abs(pairs[0]['difference']):.1f} points needs about {needed:,} questions; the "
            f"observed one may be too large by luck, so {number}."
        )
    for pair in pairs:
        macro, opposite = pair["macro_difference"], [group["group"] for group in pair["groups"] if group["opposite"]]
        # A few large groups can outweigh all others; one figure would hide that.
        if macro is not None and macro * pair["difference"] < 0:
            some = ", ".join(opposite[:5]) + (", ..." if len(opposite) > 5 else "")
            total, mean = text.difference(pair["difference"]), text.difference(macro)
            found.append(
                f"{pair['b']} against {pair['a']}: {total} points over all questions, but {mean} as the mean over "
                f"{len(pair['groups'])} groups; {len(opposite)} of them go the other way ({some})."
            )
    if len(pairs) < tested:
        found.append(f"Only pairs with {comparison['baseline']} are shown; --json has all {tested:,}.")
    return found


def _macro(table: ScoreTable, model: int) -> float | None:
    groups: dict[str, list[float]] = {}
    for group, score in zip(table.groups, table.scores[:, model], strict=True):
        if group is not None:
            groups.setdefault(group, []).append(float(score))
    return 100 * float(np.mean([np.mean(values) for values in groups.values()])) if len(groups) > 1 else None


def _gate_json(result: GateResult, points: float) -> dict[str, Any]:
    """A result of the gate, with a sentence; `points` is the loss that it allows."""
    difference, allowed = result.difference, f"{points:g} point{'' if points == 1 else 's'}"
    model, limits = difference.of, text.difference_interval(difference.interval)
    figures = f"{text.difference(difference.estimate)} points against {difference.over}, {limits}"
    sentence = f"Gate passed: {model} is not worse by more than {allowed} ({figures})."
    if result.verdict == "worse":
        sentence = f"Gate failed: {model} is worse by more than {allowed} ({figures})."
    elif result.verdict == "unclear":
        sentence = (
            f"Gate unsure: the questions are too few to tell whether {model} is worse by more than {allowed} "
            f"({figures}); a true loss of {result.smallest_shown:.1f} points is found 4 times out of 5."
        )
    return {
        "model": model,
        "verdict": result.verdict,
        "difference": difference.estimate,
        "difference_ci": list(difference.interval),
        "smallest_shown": result.smallest_shown,
        "text": sentence,
    }


def _of_clusters(comparison: Mapping[str, Any]) -> str:
    clusters = comparison["clusters"]
    return f" in {clusters['n']:,} cluster{'' if clusters['n'] == 1 else 's'}" if clusters else ""


def _confidence(comparison: Mapping[str, Any]) -> str:
    return text.interval_name(comparison["confidence"])


def _table(title: str) -> Table:
    return Table(title=_plain(title), title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))


def _columns(table: Table, first: str, *others: str) -> None:
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)


def _plain(value: str) -> Text:
    # Names come from logs: they must not control the terminal, nor count as markup of rich.
    return Text(text.visible(value))
