"""The same model twice: copies in the pool are one candidate.

A copy agrees with its original on every question, so that the two outvote all others and count as two independent
opinions. It is found by equal weights, or by equal answers to the dev questions.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from advisor.choose.rules import rank
from advisor.records import Decision, Profile

FEWEST_QUESTIONS = 30
"""On fewer questions two models may give equal answers by chance."""


def find_copies(
    profiles: Sequence[Profile], weights: Mapping[str, Hashable] | None = None, apart: Collection[str] = ()
) -> dict[str, str]:
    """Find the candidates that are the same model as another one. The first by rank stays.

    Args:
        profiles: The candidates' answers to the dev questions, in any order.
        weights: What identifies each candidate's weights, by name, if they are known.
        apart: Candidates that give whole texts only. A copy that can be decoded with others stays in their place.

    Returns:
        The reason of each copy, by name, the first by rank first.
    """
    known = weights or {}
    # The first candidate with these weights, and with these answers: its rank and its name.
    by_weights: dict[Hashable, tuple[int, str]] = {}
    by_answers: dict[Hashable, tuple[int, str]] = {}
    reasons = {}
    for place, profile in enumerate(sorted(profiles, key=lambda each: (each.model in apart, rank(each)))):
        keys = (
            (by_weights, known.get(profile.model), "their weights are equal"),
            (by_answers, _telling_answers(profile), f"all {len(profile.answers):,} answers are equal"),
        )
        found = [(*first[key], why) for first, key, why in keys if key is not None and key in first]
        if found:
            _, original, why = min(found, key=lambda each: each[0])
            reasons[profile.model] = f"the same model as {original}: {why}"
            continue
        for first, key, _ in keys:
            if key is not None:
                first[key] = place, profile.model
    return reasons


def copy_decisions(copies: Mapping[str, str]) -> tuple[Decision, ...]:
    """The decisions about copies, from the reason of each by name."""
    return tuple(Decision(name, "rejected", "copy", reason) for name, reason in copies.items())


def _telling_answers(profile: Profile) -> Hashable:
    """All responses of a candidate; None if another model may give the same ones by chance."""
    answers = profile.answers
    # Two models may both be right everywhere. A log without texts, or a failed model, says nothing about the model.
    if len(answers) < FEWEST_QUESTIONS or all(answer.score == 1 for answer in answers):
        return None
    if all(answer.error is not None or (answer.text or answer.extracted) is None for answer in answers):
        return None
    # Cost and group are no answers; the likelihoods of options are.
    return tuple((each.id, each.text, each.extracted, each.score, each.options) for each in answers)
