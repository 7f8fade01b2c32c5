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
    originals: list[Profile] = []
    reasons = {}
    for profile in sorted(profiles, key=lambda each: (each.model in apart, rank(each))):
        for original in originals:
            if profile.model in known and known[profile.model] == known.get(original.model):
                reasons[profile.model] = f"the same model as {original.model}: their weights are equal"
            elif _answers_equally(profile, original):
                n = len(profile.answers)
                reasons[profile.model] = f"the same model as {original.model}: all {n:,} answers are equal"
            else:
                continue
            break
        else:
            originals.append(profile)
    return reasons


def copy_decisions(copies: Mapping[str, str]) -> tuple[Decision, ...]:
    """The decisions about copies, from the reason of each by name."""
    return tuple(Decision(name, "rejected", "copy", reason) for name, reason in copies.items())


def _answers_equally(profile: Profile, other: Profile) -> bool:
    """Whether two candidates gave the same responses, and enough of them to exclude chance."""
    answers = profile.answers
    # Two models may both be right everywhere. A log without texts, or a failed model, says nothing about the model.
    if len(answers) < FEWEST_QUESTIONS or all(answer.score == 1 for answer in answers):
        return False
    if all(answer.error is not None or (answer.text or answer.extracted) is None for answer in answers):
        return False
    # Cost and group are no answers; the likelihoods of options are.
    return all(
        (one.id, one.text, one.extracted, one.score, one.options)
        == (two.id, two.text, two.extracted, two.score, two.options)
        for one, two in zip(answers, other.answers, strict=False)
    ) and len(answers) == len(other.answers)
