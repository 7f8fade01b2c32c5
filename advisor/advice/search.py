"""A set that the rules did not choose: by a search, which decodes sets on dev, or by its predicted gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from advisor.advice.predict import PredictedSet
from advisor.choose.rules import select
from advisor.records import Decision, Limits, Selection, Standing, join

By = Literal["predicted", "search"]
_BEST = {
    "predicted": "the set with the largest expected gain",
    "search": "the set that did best on the dev questions when decoded",
}


def best_of(tried: Sequence[PredictedSet]) -> PredictedSet | None:
    """The set that did best on dev; None if none could be decoded.

    Args:
        tried: The sets, that of the rules first, which wins ties.
    """
    decoded = [(round(each.accuracy, 9), each) for each in tried if each.accuracy is not None]
    return max(decoded, key=lambda pair: pair[0], default=(0.0, None))[1]


def with_chosen_set(
    chosen: Selection, models: Sequence[str], standings: Sequence[Standing], rules: Limits, by: By
) -> Selection:
    """The selection with another set instead of the one that the rules choose.

    Args:
        chosen: The selection of the rules.
        models: The set.
        standings: The input of the rules.
        rules: The limits.
        by: What chose the set.
    """
    if tuple(models) == chosen.selected:
        return chosen
    # Applied to the members alone, so that each reason names the set's own primary.
    members = select([standing for standing in standings if standing.model in models], rules).decisions
    inside = {decision.model: decision for decision in members}
    decisions = tuple(_decision(decision, inside.get(decision.model), by) for decision in chosen.decisions)
    return Selection(decisions, tuple(models))


def sentence(tried: Sequence[PredictedSet], best: PredictedSet, single: Standing, questions: int) -> str:
    """What the search found, as a sentence for the advice.

    Args:
        tried: The sets that were decoded on dev, that of the rules first if they choose one.
        best: The best of them.
        single: The best candidate alone.
        questions: The number of dev questions.
    """
    count = sum(each.accuracy is not None for each in tried)
    scored = f"{best.accuracy:.1f} points on the {questions:,} dev questions"
    if best.rules:
        rank = "the only set that was decoded" if count == 1 else f"the best of the {count} sets decoded in a search"
        text = f"The rules' own choice was {rank}: {scored}"
    else:
        own = next((each for each in tried if each.rules), None)
        rules = "" if own is None else f"; the rules' own choice, {join(own.models)}, {_points(own.accuracy)}"
        text = f"A search found this set, the best of {count} that were decoded: {scored}{rules}"
    # The best candidate on dev may only be the luckiest one, so this decides nothing; the held-out questions do.
    beaten = "" if (best.accuracy or 0.0) > single.accuracy else f"; {single.model} alone scores {single.accuracy:.1f}"
    return f"{text}{beaten}."


def _decision(decision: Decision, inside: Decision | None, by: By) -> Decision:
    """The decision about a candidate if the set is another one; `inside` is the rules' decision within this set."""
    if inside is None:
        if decision.status == "rejected":
            return decision
        return Decision(decision.model, "rejected", "other_set", f"fits, but {_BEST[by]} is one without it")
    if inside.status == "primary":
        return decision if decision.status == "primary" else replace(inside, reason=f"the most accurate of {_BEST[by]}")
    if inside.status == "selected":
        return inside
    return Decision(decision.model, "selected", "other_set", f"in {_BEST[by]}, although {inside.reason}")


def _points(accuracy: float | None) -> str:
    return "could not be run" if accuracy is None else f"{accuracy:.1f}"
