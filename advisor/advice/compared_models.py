"""What ``advisor compare`` found, in the form of ``--json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from advisor.advice.paired_scores import Comparison, GateResult, PairedScores
from advisor.advice.score_table import ScoreTable
from advisor.options.finished_run import CompareOptions
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
    """All figures of a comparison, in the form of ``--json``; accuracies and differences are in points."""
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


def _sentences(comparison: Mapping[str, Any]) -> list[str]:
    """What the tables do not say: how large a test set must be, and where groups disagree with the whole."""
    pairs = shown_pairs(comparison)
    smallest = sorted(pair["smallest_shown"] for pair in pairs)
    span = f"{smallest[0]:.1f}" + (f" to {smallest[-1]:.1f}" if smallest[-1] - smallest[0] >= 0.1 else "")
    n = f"{comparison['n']:,} questions"
    found = [f"With {n}, a true difference of about {span} points or more is shown 4 times out of 5."]
    if smallest[0] >= 100:
        found = [f"{n}{of_clusters(comparison)} are too few to show any difference."]
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


def of_clusters(comparison: Mapping[str, Any]) -> str:
    """The number of clusters behind a number of questions; empty without clusters."""
    clusters = comparison["clusters"]
    return f" in {clusters['n']:,} cluster{'' if clusters['n'] == 1 else 's'}" if clusters else ""
