"""How often the limit of the ceiling holds: ``python -m benchmarks.ceiling``; `benchmarks.studies.advice` has it.

Answers are drawn whose true ceiling is known: each model is right where a normal variable is below its threshold, and
the variables of the models are correlated. The same questions choose the best single model, as in a run. In half of the
settings all models are equally good, which is the hardest: the one that is chosen was only lucky.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from scipy import stats

from advisor.advice.ceiling import ceiling_of
from advisor.statistics import Floats
from benchmarks._measure import Figure, arguments, progress, tell

QUESTIONS, MODELS, TIED = (50, 100, 300, 1000), (2, 4, 8, 30), (True, False)
DRAWS = 1000
"""Of each setting."""
_SHARED = 0.6
"""The correlation of the models' variables."""


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print it, keep it where asked."""
    options = arguments(__doc__ or "").parse_args(given)
    tell("ceiling", list(figures(options.quick)), options)
    return 0


def figures(quick: bool) -> Iterator[Figure]:
    """The share of draws in which the truth is not above the limit: the worst setting, and the mean of all."""
    draws = 5 if quick else DRAWS
    settings = list(product(QUESTIONS, MODELS, TIED))
    progress(f"benchmarks.ceiling: {draws:,} draws of {len(settings)} settings")
    held = [_held(n, models, tied=tied, draws=draws, seed=seed) for seed, (n, models, tied) in enumerate(settings)]
    note = f"{draws} draws of {len(settings)} settings: {QUESTIONS} questions, {MODELS} models, equally good or not"
    yield Figure("ceiling_coverage", min(held), limit="at least 0.95", note=f"the worst setting; {note}")
    yield Figure("ceiling_coverage_mean", sum(held) / len(held), note=note)


def _held(questions: int, models: int, *, tied: bool, draws: int, seed: int) -> float:
    """The share of draws in which the ceiling over the chosen model is at most the limit."""
    chance = np.random.default_rng(seed)
    held = 0
    for _ in range(draws):
        middle = chance.uniform(-0.8, 1.5)
        thresholds = np.full(models, middle) if tied else middle - np.sort(chance.exponential(0.3, models))
        shared = math.sqrt(_SHARED) * chance.normal(size=questions)
        own = math.sqrt(1 - _SHARED) * chance.normal(size=(models, questions))
        scores = (shared + own < thresholds[:, None]).astype(float)
        chosen = int(scores.mean(axis=1).round(9).argmax())
        truth = 100 * (_any_right(thresholds) - float(stats.norm.cdf(thresholds[chosen])))
        held += truth <= ceiling_of(scores, range(models)).interval[1]
    return held / draws


def _any_right(thresholds: Floats) -> float:
    """The probability that a model is right, integrated over the shared variable."""
    shared = np.linspace(-6, 6, 601)
    wrong = stats.norm.sf((thresholds[:, None] - math.sqrt(_SHARED) * shared) / math.sqrt(1 - _SHARED)).prod(axis=0)
    return 1 - float(np.trapezoid(wrong * stats.norm.pdf(shared), shared))


if __name__ == "__main__":
    sys.exit(main())
