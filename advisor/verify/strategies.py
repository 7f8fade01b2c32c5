"""What else could be done with the members of a set: a vote among their answers, or a router that asks one of them.

Both take one of the responses that the members gave alone, so that they are judged on the held-out questions without
decoding anything. The router learns from the dev questions only.

Not covered: methods that generate (`advisor evaluate` compares them), and candidates outside of the set, which were not
asked the held-out questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from advisor.records import LEVEL, Profile
from advisor.statistics import Comparison, compare, holm
from advisor.tasks.task import Task
from advisor.verify.responses import can_vote, chosen, dev_scores
from ensemble.errors import InputError
from ensemble.methods import get_module, make_options
from ensemble.methods._response import ResponseMethod

_VOTERS = 3
"""Fewer members than this, and a vote is the primary's answer."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A way to use the members of a set other than decoding together.

    Attributes:
        method: ``voting`` or ``router``.
        members: Whose answers it takes.
        comparison: It against the best single model, on held-out questions.
        p_value: The comparison's, after Holm's correction for how many alternatives were looked at.
        looked_at: That number.
    """

    method: str
    members: tuple[str, ...]
    comparison: Comparison
    p_value: float
    looked_at: int

    def as_dict(self) -> dict[str, Any]:
        """The alternative as JSON has it."""
        one = self.comparison
        return {
            "method": self.method,
            "members": list(self.members),
            "n": one.n,
            "accuracy": one.accuracy,
            "accuracy_ci": list(one.accuracy_ci),
            "best_single": one.best_single_accuracy,
            "best_single_model": one.best_single,
            "delta": one.delta,
            "delta_ci": list(one.delta_ci),
            "p_value": self.p_value,
            "looked_at": self.looked_at,
            "gained": one.gained,
            "lost": one.lost,
        }


def look_at(
    dev: Task,
    learned: Sequence[Profile],
    held_out: Task,
    members: Sequence[Profile],
    seed: int = 0,
    rivals: Sequence[Profile] = (),
) -> tuple[Alternative, ...]:
    """Judge the alternatives that fit the task and the set on the held-out questions.

    Args:
        dev: The questions to learn from.
        learned: The members' answers to them, the primary's first.
        held_out: The questions to judge by.
        members: The members' answers to these, in the same order, at least one.
        seed: Of draws and of the resampling, which only scores other than 0 and 1 need.
        rivals: Answers to the same questions by models outside of the set that have to be beaten, too.

    Returns:
        Voting, where the answers are short and fixed and at least three members have a vote; the router, where there
        are at least two members and as many dev questions as it looks at. The best first.

    Raises:
        UniteError: The members were asked different questions.
    """
    names = tuple(profile.model for profile in members)
    if len(names) < 2:
        return ()
    prompts, scores = dev_scores(dev, learned)
    compared = {
        name: compare(chosen(name, method, held_out, members)[0], (*members, *rivals), seed)
        for name, method in _methods(held_out, len(names), prompts, scores)
    }
    p_values = holm([comparison.p_value for comparison in compared.values()])
    found = [
        Alternative(name, names, comparison, p_value, len(compared))
        for (name, comparison), p_value in zip(compared.items(), p_values, strict=True)
    ]
    return tuple(sorted(found, key=lambda one: -round(one.comparison.accuracy, 9)))


def recommend(alternatives: Sequence[Alternative], level: float = LEVEL) -> str | None:
    """A sentence on the best alternative that is significantly better than the best single model; None without one.

    Args:
        alternatives: All that were looked at.
        level: Accepted chance of recommending one that gains nothing, between 0 and 1.
    """
    better = [one for one in alternatives if one.p_value <= level and one.comparison.delta > 0]
    if not better:
        return None
    best = max(better, key=lambda one: one.comparison.accuracy)
    one, looked_at = best.comparison, best.looked_at
    p_text = "p < 0.001" if best.p_value < 0.001 else f"p = {best.p_value:.3f}"
    corrected = f" after correction for {looked_at} alternatives looked at" if looked_at > 1 else ""
    return (
        f"{_WHAT[best.method]}: {one.accuracy:.1f} points on the same questions, {one.delta:.1f} more than "
        f"{one.best_single} alone ({p_text}{corrected})."
    )


_WHAT = {
    "voting": "What does better is a vote (every model answers alone, and the answer that most of them give is taken)",
    "router": "What does better is a router (each question goes only to the model that was right on the dev questions "
    "most like it)",
}


def _methods(
    task: Task, members: int, prompts: Sequence[str], scores: Sequence[Sequence[float]]
) -> Iterator[tuple[str, ResponseMethod]]:
    """The methods that fit, by name."""
    if members >= _VOTERS and can_vote(task):
        yield "voting", get_module("voting").make(prompts, scores, make_options("voting", {}))
    try:
        yield "router", get_module("router").make(prompts, scores, make_options("router", {}))
    except InputError:
        return  # too few dev questions to learn from
