"""How good the advice is: ``python -m benchmarks.studies.advice``.

Three things are measured. *The zoo*: models of the demo's kind, all pairs and triples of which (or pairs alone, by
``--largest``) were decoded on the same questions (results/zoo.json has what came out, and ``--decode`` makes it
again): what each way to choose a set loses against the best one, how often its verdict was right,
and what it cost. *Simulated questions* with a known truth: how often a false gain is shown, how often intervals cover,
and how often a true gain is shown.

All figures are points, shares of 1 or counts, and none of them depends on the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from advisor.records import ALPHA
from advisor.statistics import Floats
from benchmarks import ceiling
from benchmarks._measure import Figure, arguments, progress, tell
from benchmarks.studies import _simulated, _zoo
from benchmarks.studies._groups import group_figures
from benchmarks.studies._learned import false_figures
from benchmarks.studies._outcomes import KEPT, Outcomes, decode, keep, read
from benchmarks.studies._sequential import power_figures, sequential_figures
from benchmarks.studies._strategies import Ground, Way, always_rules, best_single, grounds, recommended
from ensemble.common.files import default_cache_dir

DRAWS = 2000
"""Of each simulated setting."""
SEQUENCES = 1000
"""Runs that ask in batches, of each kind."""
GROUPS = 30
"""Tasks with groups in each simulated setting."""
TRIALS = 400
"""Share of the questions that a hopeless candidate gets right."""
_QUICK = 3
_BAR = (0.94, 0.96)
_MANY = 20


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and keep where asked."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--decode", action="store_true", help="make results/zoo.json again: minutes of a core")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="with --decode: these of the zoo; all without")
    parser.add_argument("--questions", type=int, default=500, help="with --decode: how many of the demo's 1,000")
    parser.add_argument("--largest", type=int, choices=(2, 3), default=3, help="with --decode: pairs, or triples too")
    parser.add_argument("--only", choices=("choices",), help="false gains where something chose, and nothing else")
    options = parser.parse_args(given)
    if options.only:
        with _processes(options.quick) as run:
            tell("advice_choices", list(_choices(4 if options.quick else DRAWS, run)), options)
        return 0
    if options.threads:
        torch.set_num_threads(options.threads)
    outcomes = _outcomes(options)
    quick = options.quick
    # Each part in one of the processes; the simulation of the estimate shares them by itself.
    parts = ["sequential", "power", "groups"]
    if outcomes is None:
        progress("benchmarks.advice: no results/zoo.json here; --decode makes it, and until then the rest is left out")
    else:
        parts += ["strategies", "zoo"]
    with _processes(quick) as run:
        figures = [*simulated_figures(quick, run)]
        found = run(_part, parts, [quick] * len(parts), [outcomes] * len(parts))
    figures += [figure for part in found for figure in part]
    tell("advice", figures, options)
    return 0


def _outcomes(options: argparse.Namespace) -> Outcomes | None:
    """The zoo's outcomes, kept or new, or of three of the demo's models for a quick try; None where none are kept."""
    if options.quick:
        demo = dict(list(_zoo.demo_folders().items())[:_QUICK])
        with tempfile.TemporaryDirectory() as folder:
            return decode(demo, Path(folder), 20)
    if options.decode:
        progress("benchmarks.studies.advice: decoding the zoo")
        folders = _zoo.folders()
        wanted = options.models or list(folders)
        cache_dir = default_cache_dir() / "benchmarks"
        keep(decode({name: folders[name] for name in wanted}, cache_dir, options.questions, options.largest))
    return read() if KEPT.is_file() else None


def _part(name: str, quick: bool, outcomes: Outcomes) -> list[Figure]:  # mapped over processes
    """The figures of a part, by its name."""
    parts: dict[str, Callable[[], Iterator[Figure]]] = {
        "power": lambda: power_figures(20 if quick else DRAWS),
        "sequential": lambda: sequential_figures(20 if quick else SEQUENCES),
        "groups": lambda: group_figures(2 if quick else GROUPS),
        "zoo": lambda: zoo_figures(outcomes),
        "strategies": lambda: strategy_figures(outcomes, 10 if quick else TRIALS),
    }
    return list(parts[name]())


def zoo_figures(outcomes: Outcomes) -> Iterator[Figure]:
    """The zoo; `benchmarks.studies.prediction` says how well its sets are predicted."""
    profiles = list(outcomes.profiles.values())
    yield Figure("models", len(profiles), limit="at least 8", note=", ".join(outcomes.models))
    yield Figure(
        "sets", len(outcomes.sets), note=f"of 2 to {outcomes.largest} models, decoded on {outcomes.questions} questions"
    )
    yield Figure("best_single", max(one.accuracy for one in profiles), note="points, on all questions")
    yield Figure("best_set", max(100 * float(one.mean()) for one in outcomes.sets.values()), note="points, likewise")


def strategy_figures(outcomes: Outcomes, trials: int) -> Iterator[Figure]:
    """What each way to choose loses, how often the verdict on the rules' set is right, and the sets decoded."""
    progress(f"benchmarks.studies.advice: four ways to choose on {trials} pools and splits")
    ways: dict[str, Callable[[Ground], Way]] = {
        "single": best_single,
        "rules": always_rules,
        "recommended_rules": partial(recommended, choose="rules"),
        "recommended": recommended,
    }
    notes = {
        "single": "the best single model on dev",
        "rules": "always the rules' set",
        "recommended_rules": "what is recommended with --set-by rules",
        "recommended": "what is recommended with --set-by predicted",
    }
    found: dict[str, list[Way]] = {name: [] for name in ways}
    bests = []
    for ground in grounds(outcomes, trials):
        bests.append(ground.best())
        for name, way in ways.items():
            found[name].append(way(ground))
    for name, tried in found.items():
        regrets = [best - one.worth for best, one in zip(bests, tried, strict=True)]
        limit = "at most 1.6" if name == "recommended" else ""
        note = "points behind the best model, decoded set or cascade in hindsight: "
        yield _mean(f"regret_{name}", regrets, limit, note + notes[name])
        if name != "single":
            yield _mean(f"decoded_{name}", [float(one.decoded) for one in tried], note="sets on held-out questions")
    telling = [one for one in found["rules"] if one.right is not None]
    for verdict in ("better", "worse"):
        those = [bool(one.right) for one in telling if one.verdict == verdict]
        yield _share(f"right_{verdict}_rules", those, note=f"verdicts {verdict} on the rules' set, on test")
    doubtful = [one.verdict == "unclear" for one in found["rules"] if one.verdict is not None]
    yield _share("cannot_tell_rules", doubtful, note="verdicts on the rules' set")


def simulated_figures(quick: bool, run: Callable[..., list[Any]]) -> Iterator[Figure]:
    """The estimate of a gain where the truth is known: false gains, coverage and power."""
    count = 4 if quick else DRAWS
    cells = _simulated.CELLS[::30] if quick else _simulated.CELLS
    progress(f"benchmarks.studies.advice: {count:,} draws of {len(cells)} settings")
    yield from _cells(cells, count, run)
    yield from _choices(count, run)
    yield from ceiling.figures(quick)
    yield from false_figures(quick, run)
    power = run(_simulated.draw_power, [count] * 2, [0, 1])
    of = f"{_simulated.POWER_SETTING}; one-sided"
    for name, key, note in (
        ("", "held_out", of),
        ("_dev", "dev", "the same, the set answered the 300 dev questions as well"),
        ("_paired", "paired", "the same draws, exact two-sided McNemar test against the best member held out"),
    ):
        shown = np.concatenate([each[key] for each in power]) <= ALPHA
        yield _share(f"power_gain5_n300_latent{name}", shown.tolist(), note=note)


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
    doubtful = [n for n in places if _limited(n) and (found[n] <= ALPHA).mean() > ALPHA]
    again = run(_simulated.draw_choice, doubtful, [10 * count] * len(doubtful), [10_000] * len(doubtful))
    for n, p_values in zip(doubtful, again, strict=True):
        found[n] = p_values
    for name, choices in groupby(zip(_simulated.CHOICES, found, strict=True), key=lambda each: each[0].name):
        choice, p_values = max(choices, key=lambda each: float((each[1] <= ALPHA).mean()))
        limit = "at most 0.05" if _limited(_simulated.CHOICES.index(choice)) else ""
        yield _share(f"false_ensemble_{name}", (p_values <= ALPHA).tolist(), limit, choice.note)


def _limited(place: int) -> bool:
    """Whether a choice has a target; those that show what happens without a correction have none."""
    return not _simulated.CHOICES[place].name.endswith("_unaware")


def _share(name: str, outcomes: Sequence[bool], limit: str = "", note: str = "") -> Figure:
    """A share with its 95% interval (Wilson)."""
    if not outcomes:
        return Figure(name, None, limit=limit, note=f"{note}: there were none")
    wilson = stats.binomtest(sum(outcomes), len(outcomes)).proportion_ci(method="wilson")
    share = sum(outcomes) / len(outcomes)
    return Figure(name, share, wilson.low, wilson.high, limit, f"{note}; of {len(outcomes):,}")


def _mean(name: str, values: Sequence[float], limit: str = "", note: str = "") -> Figure:
    """A mean with its 95% interval over the pools and splits."""
    mean = statistics.mean(values)
    half = 1.96 * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return Figure(name, mean, mean - half, mean + half, limit, note)


if __name__ == "__main__":
    sys.exit(main())
