"""How often the advice is wrong by chance: ``python -m benchmarks.studies.advice``.

On simulated questions with a known truth: how often a vote that gains nothing is shown to gain, how often a true gain
is shown, and the same where questions are asked in batches until the test tells. All figures are points, shares of 1 or
counts, and none of them depends on the machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from advisor.advice.gain import cross_fitted_gain, repeated_folds
from advisor.records import ALPHA
from advisor.statistics import Floats, Interval
from benchmarks._measure import Figure, arguments, progress, tell
from benchmarks.studies._sequential import power_figure, sequential_figures

DRAWS = 2000
"""Of each simulated setting."""
SEQUENCES = 1000
"""Runs that ask in batches, of each kind."""
POOL, CHOSEN = 8, 3
"""Models that answered all questions, and how many of them vote: the most accurate ones."""
SETTINGS: tuple[tuple[int, Interval, int], ...] = (
    *((n, (0.55, 0.75), 1) for n in (100, 200, 400)),
    *((n, (0.55, 0.75), 5) for n in (200, 400)),
    (200, (0.96, 0.98), 1),
)
"""Questions, between what the accuracy of tied models lies, and the questions of a cluster, which score alike."""


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and keep where asked."""
    options = arguments(__doc__ or "").parse_args(given)
    quick = options.quick
    count, sequences = (4, 20) if quick else (DRAWS, SEQUENCES)
    progress(f"benchmarks.studies.advice: {count:,} draws of {len(SETTINGS)} settings")
    with _processes(quick) as run:
        false = _false_gains(count, run)
    tell("advice", [false, *sequential_figures(sequences), power_figure(count)], options)
    return 0


@contextmanager
def _processes(quick: bool) -> Iterator[Callable[..., list[Any]]]:
    """A ``map`` over processes of one thread each, or a plain one for a quick try, because processes start slowly."""
    if quick:
        yield lambda *given: list(map(*given))
        return
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes; this one has started its threads
    try:
        with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as processes:
            yield lambda *given: list(processes.map(*given))
    finally:
        if threads is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = threads


def _false_gains(count: int, run: Callable[..., list[Any]]) -> Figure:
    """The worst setting. The worst of some shares is unlucky, so settings above the limit are drawn 10 times again."""
    found: list[Floats] = run(draw_votes, SETTINGS, [count] * len(SETTINGS), range(len(SETTINGS)))
    doubtful = [n for n, p_values in enumerate(found) if (p_values <= ALPHA).mean() > ALPHA]
    again = run(draw_votes, [SETTINGS[n] for n in doubtful], [10 * count] * len(doubtful), [10_000] * len(doubtful))
    for n, p_values in zip(doubtful, again, strict=True):
        found[n] = p_values
    worst = max(range(len(found)), key=lambda n: float((found[n] <= ALPHA).mean()))
    shown, (n, (low, high), size) = found[worst] <= ALPHA, SETTINGS[worst]
    wilson = stats.binomtest(int(shown.sum()), len(shown)).proportion_ci(method="wilson")
    note = f"the 3 best of 8 vote, all labels, tied at {low:.0%} to {high:.0%}, clusters of {size}; n = {n:,}"
    name, share = "false_ensemble_all_asked", float(shown.mean())
    return Figure(name, share, wilson.low, wilson.high, "at most 0.05", f"{note}; of {len(shown):,}")


def draw_votes(setting: tuple[int, Interval, int], count: int, seed: int) -> Floats:
    """P-values of votes of the three most accurate of eight models, whose true gain is 0.

    Seven models are tied and one is so much better that a vote with two of them is right exactly as often. Wrong
    answers agree. All eight answered all questions, as in logs, and all questions choose, by cross-fitting. A vote is
    named with the model that is the best on all labels. If this one is not the better one, the vote truly gains over
    it; then no gain is false, and p counts as 1.

    Args:
        setting: One of `SETTINGS`.
        count: How many draws.
        seed: Of all draws.
    """
    n, tied, size = setting
    chance, clusters = np.random.default_rng(seed), np.arange(n) // size
    found = []
    for _ in range(count):
        scores = voters(POOL, n // size, chance.uniform(*tied), chance, alike=chance.uniform(0, 0.5))
        differences = cross_fitted(np.repeat(scores, size, axis=1), clusters)
        p_value = cross_fitted_gain(differences, clusters if size > 1 else None).p_no_gain
        found.append(p_value if scores.mean(axis=1).argmax() == 0 else 1.0)
    return np.array(found)


def cross_fitted(scores: Floats, clusters: NDArray[np.intp]) -> Floats:
    """A vote of the three best models minus the best one, both chosen by the other folds: repeats by questions."""
    found = []
    for folds in repeated_folds(scores.shape[1], clusters):
        differences = np.zeros(scores.shape[1])
        for fold in range(int(folds.max()) + 1):
            means = scores[:, folds != fold].mean(axis=1)
            chosen = np.argsort(-means, kind="stable")[:CHOSEN]
            own = scores[chosen][:, folds == fold]
            majority = own.sum(axis=0) > CHOSEN / 2
            differences[folds == fold] = majority - own[0]
        found.append(differences)
    return np.stack(found)


def voters(models: int, questions: int, tied: float, chance: np.random.Generator, alike: float) -> Floats:
    """Independent answers of one model that is ahead and others that are tied; to some questions all answer alike."""
    # A vote of two tied models with a better one gains nothing where its odds are theirs, squared.
    ahead = tied**2 / (tied**2 + (1 - tied) ** 2)
    same, fate = chance.random(questions) < alike, chance.random(questions) < 0.5
    right = chance.random((models, questions)) < np.array([ahead, *[tied] * (models - 1)])[:, None]
    return np.where(same, fate, right).astype(float)


if __name__ == "__main__":
    sys.exit(main())
