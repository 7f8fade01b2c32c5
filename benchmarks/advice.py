"""How good the advice is: ``python -m benchmarks.advice``.

Three things are measured. *The zoo*: models of the demo's kind, all pairs and triples of which (or pairs alone, by
``--largest``) were decoded on the same questions (`benchmarks._outcomes` has what came out, kept in results/zoo.json;
``--decode`` makes it again): what each way to choose loses against the best one, how often the verdict was right,
and what it cost. *Simulated pools*, of which the truth is known: how often the advice says `ensemble` where nothing is
gained, and how often intervals cover. *Races* on the zoo and on a pool of which half is hopeless.

All figures are points, shares of 1 or counts, and none of them depends on the machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from advisor.choose.race import Race
from advisor.choose.rules import select
from advisor.records import Profile, Rules, gap, within
from advisor.statistics import Floats
from benchmarks import _zoo
from benchmarks._measure import Figure, arguments, progress, tell
from benchmarks._outcomes import KEPT, Outcomes, decode, keep, read, scores_of
from benchmarks._simulated import simulate
from benchmarks._strategies import Ground, Way, always_rules, best_single, grounds, recommended, run_race
from ensemble.files import default_cache_dir

POOLS = 2000
TRIALS = 400
RESHUFFLES = 200
HOPELESS = 0.05
"""Share of the questions that a hopeless candidate gets right."""
_QUICK = 3


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and keep where asked."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--decode", action="store_true", help="make results/zoo.json again: minutes of a core")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="with --decode: these of the zoo; all without")
    parser.add_argument("--questions", type=int, default=500, help="with --decode: how many of the demo's 1,000")
    parser.add_argument("--largest", type=int, choices=(2, 3), default=3, help="with --decode: pairs, or triples too")
    options = parser.parse_args(given)
    if options.threads:
        torch.set_num_threads(options.threads)
    outcomes = _outcomes(options)
    quick = options.quick
    figures = list(simulated_figures(60 if quick else POOLS))
    if outcomes is None:
        progress("benchmarks.advice: no results/zoo.json here; --decode makes it, and until then the rest is left out")
    else:
        figures += zoo_figures(outcomes)
        figures += strategy_figures(outcomes, 10 if quick else TRIALS)
        figures += race_figures(outcomes, 10 if quick else RESHUFFLES)
    tell("advice", figures, options)
    return 0


def _outcomes(options: argparse.Namespace) -> Outcomes | None:
    """The zoo's outcomes, kept or new, or of three of the demo's models for a quick try; None where none are kept."""
    if options.quick:
        demo = dict(list(_zoo.demo_folders().items())[:_QUICK])
        with tempfile.TemporaryDirectory() as folder:
            return decode(demo, Path(folder), 20)
    if options.decode:
        progress("benchmarks.advice: decoding the zoo")
        folders = _zoo.folders()
        wanted = options.models or list(folders)
        cache_dir = default_cache_dir() / "benchmarks"
        keep(decode({name: folders[name] for name in wanted}, cache_dir, options.questions, options.largest))
    return read() if KEPT.is_file() else None


def zoo_figures(outcomes: Outcomes) -> Iterator[Figure]:
    """The zoo; `benchmarks.prediction` says how well its sets are predicted."""
    profiles = list(outcomes.profiles.values())
    yield Figure("models", len(profiles), limit="at least 8", note=", ".join(outcomes.models))
    yield Figure(
        "sets", len(outcomes.sets), note=f"of 2 to {outcomes.largest} models, decoded on {outcomes.questions} questions"
    )
    yield Figure("best_single", max(one.accuracy for one in profiles), note="points, on all questions")
    yield Figure("best_set", max(100 * float(one.mean()) for one in outcomes.sets.values()), note="points, likewise")


def strategy_figures(outcomes: Outcomes, trials: int) -> Iterator[Figure]:
    """What each way to choose loses, how often the verdict on the rules' set is right, and the sets decoded."""
    progress(f"benchmarks.advice: four ways to choose on {trials} pools and splits")
    ways: dict[str, Callable[[Ground], Way]] = {
        "single": best_single,
        "rules": always_rules,
        "recommended_rules": partial(recommended, choose="rules"),
        "recommended": recommended,
    }
    notes = {
        "single": "the best single model on dev",
        "rules": "always the rules' set",
        "recommended_rules": "what is recommended with --choose rules",
        "recommended": "what is recommended with --choose predicted",
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
    for verdict in ("ensemble", "single"):
        those = [bool(one.right) for one in telling if one.verdict == verdict]
        yield _share(f"right_{verdict}_rules", those, note=f"verdicts {verdict} on the rules' set, on test")
    doubtful = [one.verdict == "cannot_tell" for one in found["rules"] if one.verdict is not None]
    yield _share("cannot_tell_rules", doubtful, note="verdicts on the rules' set")


def simulated_figures(count: int) -> Iterator[Figure]:
    """False verdicts where nothing is gained, and the coverage of the interval of the difference."""
    progress(f"benchmarks.advice: twice {count} simulated pools")
    without = list(simulate(count, gains=False))
    false = [one.verdict == "ensemble" for one in without]
    yield _share("false_ensemble", false, "at most 0.05", "verdicts ensemble where the true gain is zero or negative")
    exactly = [one.verdict == "ensemble" for one in without if one.gain == 0]
    yield _share("false_ensemble_zero", exactly, "at most 0.05", "of those, where it is exactly zero")
    pools = list(simulate(count, gains=True, seed=1))
    bar = "0.93 to 0.97"
    known = [_covers(one.known.delta_ci, one.gain) for one in pools]
    yield _share("coverage", known, bar, "95% intervals of the difference to a model that was fixed before")
    seemed = [_covers(one.comparison.delta_ci, one.difference) for one in pools]
    yield _share("coverage_seemed_best", seemed, bar, "to the member that seemed best on the same questions")
    few = [_covers(one.known.delta_ci, one.gain) for one in pools if one.n <= 50]
    yield _share("coverage_few", few, note="as coverage, on 30 or 50 questions")
    gaining = [one.verdict == "ensemble" for one in pools if one.gain >= 5 and one.n >= 200]
    yield _share(
        "found_gain", gaining, note="verdicts ensemble where 5 points or more are gained, 200 questions or more"
    )


def race_figures(outcomes: Outcomes, reshuffles: int) -> Iterator[Figure]:
    """Races on the zoo, and on its contenders with as many hopeless ones: the same set, and the responses they need."""
    progress(f"benchmarks.advice: twice {reshuffles} races")
    profiles = [outcomes.profiles[model] for model in outcomes.models]
    yield from _races("zoo", profiles, [], reshuffles, "models of the zoo")
    best = max(one.accuracy for one in profiles)
    contenders = [one for one in profiles if within(gap(one.accuracy, best), Rules().max_gap)]
    hopeless = [_hopeless(n, contenders[0]) for n in range(len(contenders))]
    note = f"{len(contenders)} of the zoo within the gap, and as many that are right at {HOPELESS:.0%}"
    yield from _races("half_hopeless", [*contenders, *hopeless], hopeless, reshuffles, note)


def _races(
    name: str, profiles: Sequence[Profile], hopeless: Sequence[Profile], reshuffles: int, note: str
) -> Iterator[Figure]:
    chance = np.random.default_rng(0)
    values: Floats = scores_of(profiles)
    full = _chosen(profiles)
    races: list[tuple[Race, list[int]]] = []
    for _ in range(reshuffles):
        races.append(run_race(values[:, chance.permutation(values.shape[1])], Rules()))
    same = [_chosen([profiles[model] for model in one.running]) == full for one, _ in races]
    yield _share(f"race_same_{name}", same, "at least 0.95", f"{note}: races that end with the set of the full run")
    limit = "at most 0.333" if hopeless else ""
    shares = [sum(asked) / values.size for _, asked in races]
    yield _mean(f"race_share_{name}", shares, limit, "responses, of those of the full run")
    if hopeless:
        places = range(len(profiles) - len(hopeless), len(profiles))
        own = [sum(asked[place] for place in places) / (len(places) * max(asked)) for _, asked in races]
        yield _mean(f"race_share_of_{name}", own, limit, "responses of the hopeless half, of those of its full run")


def _chosen(profiles: Sequence[Profile]) -> tuple[str, ...]:
    return select([profile.standing for profile in profiles], Rules()).selected


def _hopeless(number: int, like: Profile) -> Profile:
    """A candidate that is nearly always wrong, and writes as much as another one."""
    right = np.random.default_rng(number).random(len(like.answers)) < HOPELESS
    answers = zip(like.answers, right, strict=True)
    return Profile(f"hopeless-{number}", tuple(replace(answer, score=float(one)) for answer, one in answers))


def _covers(interval: tuple[float, float], truth: float) -> bool:
    return interval[0] <= truth <= interval[1]


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
