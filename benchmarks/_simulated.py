"""Pools whose true accuracies are known: how often a verdict, or an interval, is wrong.

Whether a model is right at a question is the sign of a normal number, part of which all models share (the question's
difficulty); its mean gives the model's accuracy exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from advisor.records import Answer, Profile, Selection, Verdict
from advisor.statistics import Comparison, Floats, compare
from advisor.verify.advice import advise

QUESTIONS = (30, 50, 100, 200, 300, 500)
_BEHIND = 10.0
"""Points that a member is behind the best at most, as by the rules."""
_LOSS = 10.0
"""Points that a set is behind its best member at most."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """A pool, its set on held-out questions, and the truth.

    Attributes:
        n: Questions.
        gain: The set's true accuracy minus its best member's, in points.
        difference: The set's true accuracy minus that of the member that seemed best, in points.
        comparison: The set against the member that seemed best.
        known: The set against the member that is best, as if that were known.
        verdict: What the advice says.
    """

    n: int
    gain: float
    difference: float
    comparison: Comparison
    known: Comparison
    verdict: Verdict


def simulate(count: int, *, gains: bool, seed: int = 0) -> Iterator[Simulated]:
    """Pools of two or three members with 20 to 90 points, who agree little or much, on 30 to 500 questions.

    Args:
        count: How many.
        gains: Whether the set is 10 points worse to 10 points better than its best member; without, half of the sets
            are exactly as good as it, where a false verdict is likeliest, and the others up to 10 points worse.
        seed: Of all draws.
    """
    chance = np.random.default_rng(seed)
    for _ in range(count):
        n, size = int(chance.choice(QUESTIONS)), int(chance.integers(2, 4))
        best = chance.uniform(20, 90)
        loss = 0.0 if chance.random() < 0.5 else chance.uniform(-_LOSS, 0)
        gain = chance.uniform(-_LOSS, _LOSS) if gains else loss
        behind = np.append(0, chance.uniform(0, _BEHIND, size - 1))
        truth = np.append(best + gain, best - behind)
        right = _draw(truth / 100, chance.uniform(0.3, 0.95), n, chance)
        yield _judged(right, truth, gain)


def _draw(accuracies: Floats, agreement: float, n: int, chance: np.random.Generator) -> NDArray[np.bool_]:
    """Who is right at what: models by questions."""
    shared, own = chance.standard_normal(n), chance.standard_normal((len(accuracies), n))
    ability = np.sqrt(agreement) * shared + np.sqrt(1 - agreement) * own
    right: NDArray[np.bool_] = ability < stats.norm.ppf(accuracies)[:, None]
    return right


def _judged(right: NDArray[np.bool_], truth: Floats, gain: float) -> Simulated:
    names = ("unite", *(f"model-{n}" for n in range(len(truth) - 1)))
    together, *members = (_profile(name, row) for name, row in zip(names, right, strict=True))
    comparison = compare(together, members)
    seemed = truth[names.index(comparison.best_single)]
    verdict = advise(Selection((), names[1:]), comparison).verdict
    return Simulated(
        right.shape[1], gain, float(truth[0] - seemed), comparison, compare(together, members[:1]), verdict
    )


def _profile(name: str, right: NDArray[np.bool_]) -> Profile:
    return Profile(name, tuple(_ANSWERS[place][one] for place, one in enumerate(right.tolist())))


_ANSWERS = [
    (Answer(f"q{n}", "", "wrong", 0.0, "eos"), Answer(f"q{n}", "", "right", 1.0, "eos")) for n in range(max(QUESTIONS))
]
"""Of each question the wrong and the right answer; the same objects for all pools, as there are many."""
