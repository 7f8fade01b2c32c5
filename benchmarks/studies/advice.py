"""How often the advice is wrong by chance: ``python -m benchmarks.studies.advice``, an hour on two cores.

On simulated questions with a known truth: how often a false gain is shown, how often intervals cover, how often a true
gain is shown, and the same where questions are asked in batches until the test tells. All figures are points, shares of
1 or counts, and none of them depends on the machine.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from multiprocessing import get_context
from typing import Any

import numpy as np
from scipy import stats

from advisor.records import ALPHA
from advisor.statistics import Floats
from benchmarks._measure import Figure, arguments, progress, tell
from benchmarks.studies import _simulated
from benchmarks.studies._sequential import power_figures, sequential_figures

DRAWS = 2000
"""Of each simulated setting."""
SEQUENCES = 1000
"""Runs that ask in batches, of each kind."""
_BAR = (0.94, 0.96)
_MANY = 20


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and keep where asked."""
    options = arguments(__doc__ or "").parse_args(given)
    quick = options.quick
    count = 4 if quick else DRAWS
    cells = _simulated.CELLS[::30] if quick else _simulated.CELLS
    progress(f"benchmarks.studies.advice: {count:,} draws of {len(cells)} settings")
    with _processes(quick) as run:
        figures = [*_cells(cells, count, run), *_choices(count, run)]
        found = run(_of_sets_like_the_zoo, ["sequential", "power"], [quick] * 2)
    tell("advice", figures + [figure for part in found for figure in part], options)
    return 0


def _of_sets_like_the_zoo(name: str, quick: bool) -> list[Figure]:  # mapped over processes
    """The figures of a part, by its name."""
    if name == "power":
        return list(power_figures(20 if quick else DRAWS))
    return list(sequential_figures(20 if quick else SEQUENCES))


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


def _cells(cells: Sequence[_simulated.Cell], count: int, run: Callable[..., list[Any]]) -> Iterator[Figure]:
    """The worst settings. The worst of many shares is unlucky, so settings that miss a bar are drawn 10 times again."""
    drawn: list[_simulated.Drawn] = run(_simulated.draw_cell, cells, [count] * len(cells), range(len(cells)))
    doubtful = [n for n, each in enumerate(drawn) if each.false > ALPHA or each.covered.mean() < _BAR[0]]
    again = run(
        _simulated.draw_cell, [cells[n] for n in doubtful], [10 * count] * len(doubtful), [10_000] * len(doubtful)
    )
    for n, each in zip(doubtful, again, strict=True):
        drawn[n] = each
    false = max(range(len(cells)), key=lambda n: drawn[n].false)
    what = f"the worst of {len(cells)} settings, {len(doubtful)} drawn again: {cells[false]}"
    yield _share("false_ensemble", (drawn[false].p_values <= ALPHA).tolist(), "at most 0.05", what)
    loss = max(range(len(cells)), key=lambda n: float((drawn[n].p_no_loss <= ALPHA).mean()))
    what = f"verdicts single where nothing is gained or lost, the worst setting: {cells[loss]}"
    yield _share("false_single", (drawn[loss].p_no_loss <= ALPHA).tolist(), note=what)
    for suffix, confidence in (("", "95%"), ("_90", "90%")):
        held = [each.covered_90 if suffix else each.covered for each in drawn]
        bar = "" if suffix else f"{_BAR[0]} to {_BAR[1]}"
        shares = [float(each.mean()) for each in held]
        note = f"{confidence} intervals of the gain, mean of all settings"
        yield Figure(f"coverage{suffix}", statistics.mean(shares), limit=bar, note=note)
        for name, place in (("lowest", int(np.argmin(shares))), ("highest", int(np.argmax(shares)))):
            yield _share(f"coverage{suffix}_{name}", held[place].tolist(), bar, f"likewise: {cells[place]}")
        many = [n for n, cell in enumerate(cells) if cell.n >= _MANY * cell.size]
        if many:
            highest = max(many, key=lambda n: shares[n])
            note = f"likewise, of settings with {_MANY} or more clusters or questions held out: {cells[highest]}"
            yield _share(f"coverage{suffix}_highest_many", held[highest].tolist(), bar, note)


def _choices(count: int, run: Callable[..., list[Any]]) -> Iterator[Figure]:
    """False gains where somebody or something chose."""
    places = range(len(_simulated.CHOICES))
    found: list[Floats] = run(_simulated.draw_choice, places, [count] * len(places), places)
    doubtful = [n for n in places if (found[n] <= ALPHA).mean() > ALPHA]
    again = run(_simulated.draw_choice, doubtful, [10 * count] * len(doubtful), [10_000] * len(doubtful))
    for n, p_values in zip(doubtful, again, strict=True):
        found[n] = p_values
    for name, choices in groupby(zip(_simulated.CHOICES, found, strict=True), key=lambda each: each[0].name):
        choice, p_values = max(choices, key=lambda each: float((each[1] <= ALPHA).mean()))
        yield _share(f"false_ensemble_{name}", (p_values <= ALPHA).tolist(), "at most 0.05", choice.note)


def _share(name: str, outcomes: Sequence[bool], limit: str = "", note: str = "") -> Figure:
    """A share with its 95% interval (Wilson)."""
    if not outcomes:
        return Figure(name, None, limit=limit, note=f"{note}: there were none")
    wilson = stats.binomtest(sum(outcomes), len(outcomes)).proportion_ci(method="wilson")
    share = sum(outcomes) / len(outcomes)
    return Figure(name, share, wilson.low, wilson.high, limit, f"{note}; of {len(outcomes):,}")


if __name__ == "__main__":
    sys.exit(main())
