"""How often a fusion is said to pay, or not to pay, where the truth is known: ``python -m benchmarks.fusion``.

Simulated right and wrong answers of six arms. What is hard for one is hard for the others (a latent normal variable
that they share). The best single model is the best of four equal ones on the dev and the held-out questions, as in a
run. The error of "pays" is largest where the fusion is as good as one arm and far better than all others. A minute.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy import stats

from advisor.advice.arms import decide, leads_of
from advisor.compare.paired import MARGIN, PairedScores
from advisor.records import ALPHA, Shown
from advisor.statistics import Floats
from benchmarks._measure import Figure, arguments, progress, tell

ARMS = ("single", "fusion", "self_consistency", "vote", "self_fusion", "cheapest")
MODELS = 4
SHARED = 0.7
"""The correlation of two arms' latent variables."""
BASE = 0.7
"""The true accuracy of an arm."""
FAR = 0.15
"""How much worse an arm is that the fusion beats for sure."""
GRADES = 10


def answers(accuracies: Sequence[float], questions: int, chance: np.random.Generator, *, graded: bool) -> Floats:
    """Scores of the arms on the held-out questions, questions by arms; the first accuracy is that of four models."""
    columns = np.array([accuracies[0]] * MODELS + [*accuracies[1:]])
    shared, own = chance.standard_normal((2 * questions, 1)), chance.standard_normal((2 * questions, len(columns)))
    latent = np.sqrt(SHARED) * shared + np.sqrt(1 - SHARED) * own
    if graded:
        scores: Floats = np.round(GRADES * stats.norm.cdf(latent + stats.norm.ppf(columns))) / GRADES
    else:
        scores = (latent < stats.norm.ppf(columns)).astype(np.float64)
    best = int(scores[:, :MODELS].mean(axis=0).argmax())
    return scores[questions:, [best, *range(MODELS, len(columns))]]


def shares(accuracies: Sequence[float], questions: int, runs: int, *, graded: bool = False) -> dict[Shown, float]:
    """The shares of runs that say that the fusion pays, does not pay, or that they cannot tell."""
    chance, said = np.random.default_rng(questions), Counter[Shown]()
    for _ in range(runs):
        paired = PairedScores(answers(accuracies, questions, chance, graded=graded))
        said[decide(paired, 1, leads_of(paired, ARMS, 1, ALPHA), ALPHA)[0]] += 1
    return {word: count / runs for word, count in said.items()}


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and keep where asked."""
    options = arguments(__doc__ or "").parse_args(given)
    runs, slow = (20, 2) if options.quick else (4000, 400)
    equal, others = [BASE] * len(ARMS), [BASE - FAR] * 3
    figures = []
    for n in (50, 200, 800):
        progress(f"benchmarks.fusion: {n} questions")
        limit, note = "at most 0.05", f"{n} held-out questions, {runs:,} runs"
        found = shares(equal, n, runs).get("yes", 0.0)
        figures.append(Figure(f"false_pays_equal_{n}", found, limit=limit, note=f"all arms are equal; {note}"))
        found = shares([BASE - FAR, BASE, BASE, *others], n, runs).get("yes", 0.0)
        figures.append(Figure(f"false_pays_one_equal_{n}", found, limit=limit, note=f"one arm is as good; {note}"))
        gain = BASE + MARGIN / 100
        found = shares([BASE - FAR, gain, BASE, *others], n, runs).get("no", 0.0)
        figures.append(Figure(f"false_pays_not_{n}", found, limit=limit, note=f"the fusion gains the margin; {note}"))
        for points in (5, 10):
            told = shares([BASE, BASE + points / 100, *[BASE] * 4], n, runs).get("yes", 0.0)
            figures.append(Figure(f"pays_gain{points}_{n}", told, note=f"{points} points over all arms; {note}"))
    graded = shares([0.5, 0.6, 0.6, *[0.5] * 3], 50, slow, graded=True).get("yes", 0.0)
    note = f"grades, one arm is as good; 50 held-out questions, {slow} runs"
    figures.append(Figure("false_pays_graded_50", graded, limit="at most 0.05", note=note))
    tell("fusion", figures, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
