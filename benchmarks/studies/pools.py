"""What real models say: ``python -m benchmarks.pools``, some minutes; docs/pools.md explains the figures.

Pools of real models' answers (../shared/pools) are read as ``select --logs`` reads them. From each of three pools 300
random sub-pools of 4 to 8 open models within 25 points are drawn. The product's own functions choose on 300 dev
questions, and other questions judge. A gain is in points over the best single model in hindsight; its interval (95%,
bootstrap) is over the sub-pools. Where all strategies are compared, which takes seconds, it is done on fewer sub-pools
(``--sub-pools``), of five pools.

``--only recommended`` says what the recommendation is worth, ``--only gains`` what it gains with few labels and how
true what it promises is, ``--only copies`` what near copies of a model change, and ``--only consensus`` what a
consensus of translations gains. What is promised comes from the other pools. With --save each keeps its figures in
results/pools_NAME.json.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from advisor.advice.comparison import compare_strategies, fitting_voters, training_data
from advisor.advice.predict import read_coefficients
from advisor.advice.recommendation import recommend
from advisor.advice.rules import select
from advisor.logs.join import DEV_SIZE, read_logs
from advisor.options.new_run import SelectOptions
from advisor.records import ALPHA, Limits, Profile
from advisor.statistics import Floats, scores, z_value
from advisor.strategies import ADVICE, largest_default
from advisor.strategies.consensus import Consensus
from advisor.strategies.replay import replay_all
from advisor.strategies.strategy import FEWEST_VOTERS, AnsweredSplit, Single, Strategy
from benchmarks._measure import Figure, arguments, progress, tell
from benchmarks.studies._pools import (
    ANSWERED,
    LARGE_SIZES,
    NAMES,
    POOLS,
    Places,
    SubPool,
    ballot,
    read_pool,
    sub_pools,
    voter_sets,
)
from benchmarks.studies.prediction import FEWEST_JUDGED, Case, cases_of, fit_gains, predicting_by

SUB_POOLS = 300
COMPARED = 60
"""Sub-pools on which all strategies are compared."""
_LARGE = ("single", "rules", "top3", "calls3", "calls4", "default", "calls6", "calls7", "gap15", "all")
"""What is told of large sub-pools."""
_WIDE = 100.0
TRANSLATIONS = ("wmt24-en-de", "wmt24-en-cs", "wmt24-ja-zh")
_SPLITS = 10
LABELS = (100, 300)
BEFORE = 3.66
"""What the recommendation gained when all strategies competed (commit 5ce2e365), on 30 sub-pools of each setting."""
BETTER = 0.3
SURE = 0.9
DIFFERS = 0.03
"""Share of its answers in which a near copy differs."""
JUDGED = 2000
"""Questions that judge a measured gain, at most."""
OVER_POOLS = {
    "regret_recommended_narrow": "at most 0.8",
    "regret_recommended_wide": "at most 0.35",
    "regret_rules_narrow": "",
    "regret_rules_wide": "",
    "gain_recommended_minus_default_vote_narrow": "at least 0.6",
    "gain_recommended_minus_default_vote_wide": "",
}
"""What is also told as a mean over the pools, with its target; `narrow` and `wide` are the two kinds of sub-pools."""
_RESAMPLES = 2000

Values = dict[str, list[float]]


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and keep where asked."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--pools", type=Path, default=POOLS, metavar="FOLDER", help="where the pools are")
    parser.add_argument("--only", choices=PARTS, help="these figures, no others")
    parser.add_argument(
        "--sub-pools", type=int, default=COMPARED, metavar="N", help="where all strategies are compared"
    )
    options = parser.parse_args(given)
    folder, quick, count = options.pools, options.quick, 1 if options.quick else options.sub_pools
    if not (folder / f"{NAMES[0]}.jsonl.xz").is_file():
        progress(f"benchmarks.pools: no pools in {folder}; without them nothing can be measured")
        return 0
    if options.only:
        tell(f"pools_{options.only}", list(PARTS[options.only](folder, quick, count)), options)
        return 0
    figures = pool_figures(folder, quick)
    tell("pools", figures + [figure for part in PARTS.values() for figure in part(folder, quick, count)], options)
    return 0


def pool_figures(folder: Path, quick: bool) -> list[Figure]:
    """All figures of all pools; each pool in another process, because their times add up."""
    measure = partial(_one_pool, folder=folder, quick=quick)
    if quick:
        found = {name: measure(name) for name in NAMES[:2]}
        return [figure for figures in found.values() for figure in figures]
    progress(f"benchmarks.pools: {SUB_POOLS} sub-pools of each pool")
    with ProcessPoolExecutor(min(len(NAMES), os.cpu_count() or 1), get_context("spawn")) as processes:
        # The largest pool first, so that the others fill the time beside it.
        found = dict(zip(NAMES[::-1], processes.map(measure, NAMES[::-1]), strict=True))
    return [figure for name in NAMES for figure in found[name]]


def _one_pool(name: str, *, folder: Path, quick: bool) -> list[Figure]:
    pool, count = read_pool(name, folder), 1 if quick else SUB_POOLS
    key = name.replace("-", "_")
    figures = [Figure(f"{key}_questions", pool.right.shape[1]), Figure(f"{key}_open_models", len(pool.models))]
    drawn = list(sub_pools(pool, count))
    large = _votes(list(sub_pools(pool, count, LARGE_SIZES, seed=1)))
    told = {row: own for row, own in large.items() if row.partition("_")[2] in _LARGE}
    for part, values, what in (
        ("", _votes(drawn), "sub-pools"),
        ("large_", told, "sub-pools of 10 to 14 models"),
    ):
        figures += [_mean(f"{key}_{part}{row}", own, what) for row, own in values.items()]
    return figures


def _votes(drawn: Sequence[SubPool]) -> Values:
    """What each way to choose voters gains, and what it costs; see :func:`benchmarks.studies._pools.voter_sets`."""
    values: Values = defaultdict(list)
    for sub in drawn:
        profiles, best = sub.dev_profiles(), sub.best(sub.rest)
        for name, voters in voter_sets(profiles).items():
            found = ballot(sub.pool, voters, sub.rest)
            values[f"gain_{name}"].append(found.points - best)
            values[f"calls_{name}"].append(found.calls)
            values[f"asked_{name}"].append(found.models)
    return values


def recommended_figures(folder: Path, quick: bool, count: int) -> Iterator[Figure]:
    """What each way to decide loses, and what the recommendation gains over the default vote, on five pools."""
    cases = {name: cases_of(read_pool(name, folder), quick) for name in _answered(folder, quick)}
    values: dict[str, list[float]] = defaultdict(list)
    for name in _answered(folder, quick):
        progress(f"benchmarks.pools: the recommendation on {count} sub-pools of {name}")
        coefficients = _left_out(name, cases)
        pool, key = read_pool(name, folder), name.replace("-", "_")
        for kind, part, drawn in (
            ("narrow", "", sub_pools(pool, count)),
            ("wide", "wide_", sub_pools(pool, count, spread=_WIDE, seed=2)),
        ):
            found = _regrets(list(drawn), coefficients)
            what = "sub-pools" if kind == "narrow" else "sub-pools without a limit of the gap"
            for row, own in found.items():
                limit = "at least -0.1" if row == "gain_recommended_minus_default_vote" and kind == "narrow" else ""
                yield replace(_mean(f"{key}_{part}{row}", own, what), limit=limit)
                values[f"{row}_{kind}"].append(float(np.mean(own)))
    for row, limit in OVER_POOLS.items():
        own = values[row]
        note = f"mean of {len(own)} pools, and the least and the most"
        yield Figure(row, float(np.mean(own)), min(own), max(own), limit, note)


def _left_out(name: str, cases: Mapping[str, Sequence[Case]]) -> dict[str, Any]:
    """The coefficients from all other pools: no promise may come from the pool that judges it."""
    others = {each: own for each, own in cases.items() if each != name}
    return fit_gains(others if len(others) > 1 else cases)


def _regrets(drawn: Sequence[SubPool], coefficients: Mapping[str, Any]) -> Values:
    """What each way to decide loses against the best strategy in hindsight, judged on questions that decided nothing.

    ``never`` vote; vote if a gain is ``shown``; ``always`` vote as by default; always let the set of the paper's
    ``rules`` vote; what the product has ``recommended``; and the ``largest`` expected gain, whatever it costs.
    """
    values: Values = defaultdict(list)
    for sub in drawn:
        dev = sub.answered("dev", sub.dev)
        held_out, judge = sub.answered("held_out", sub.held_out), sub.answered("held_out", sub.judge)
        profiles = list(dev.profiles.values())
        with predicting_by(coefficients):
            compared = compare_strategies(dev, held_out, can_vote=True)
        tested = compared.results
        # Not compared again on these questions: some strategies would learn from them.
        points = {each.strategy: _points(each.strategy, judge) for each in tested}
        points |= {Single((name,)): profile.accuracy for name, profile in judge.profiles.items()}
        best = max(points.values())
        single = Single(fitting_voters(profiles, Limits(max_voters=1)))
        largest = largest_default([each.strategy for each in tested])
        together = largest or single
        voted = next((each for each in tested if each.strategy == largest), None)
        recommended = recommend(compared)
        if recommended is None:
            raise AssertionError("compared strategies have a best one")
        is_shown = voted is not None and voted.shown == "yes"
        choices = {
            "never": single,
            "shown": together if is_shown else single,
            "always": together,
            "recommended": recommended.key,
            "largest": tested[0].strategy,
        }
        values["gain_recommended_minus_default_vote"].append(points[choices["recommended"]] - points[together])
        for name, strategy in choices.items():
            values[f"regret_{name}"].append(best - points[strategy])
            values[f"votes_{name}"].append(float(len(strategy.members) > 1))
        rules = select([profile.standing for profile in profiles], Limits()).selected
        values["regret_rules"].append(best - ballot(sub.pool, rules, sub.judge).points)
        values["votes_rules"].append(float(len(rules) >= FEWEST_VOTERS))
        for each in tested:
            if each.strategy.name == "group_router":
                values["gain_group_router"].append(points[each.strategy] - sub.best(sub.judge))
    return values


def _points(strategy: Strategy, split: AnsweredSplit) -> float:
    """The accuracy of a strategy on other questions than those that it was learned and compared on, in points."""
    return replay_all(strategy, split).profile.accuracy


def _mean(name: str, values: Sequence[float], what: str) -> Figure:
    """A mean with its 95% interval over the sub-pools."""
    n = len(values)
    means = np.sort(np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), _RESAMPLES) @ np.array(values)) / n
    cut = int(len(means) * 0.025)
    return Figure(name, float(np.mean(values)), float(means[cut]), float(means[-1 - cut]), note=f"{len(values)} {what}")


def gain_figures(folder: Path, quick: bool, count: int) -> Iterator[Figure]:
    """What the recommendation gains by some labels over the best model on them, and how true its promise is.

    All other questions judge. ``gain`` and ``calls`` are those of the recommendation; ``optimism`` is its expected gain
    minus the gain, ``rms`` the root of their mean squared difference, and ``coverage`` how often the 90% interval of
    the expected gain holds the gain, whose own error widens it. ``sure_true``: of those that are better with a
    probability of 0.9 or more, how many gain. ``bias_measured_gain`` is that of the learned vote.
    """
    names = _answered(folder, quick)
    cases = {name: cases_of(read_pool(name, folder), quick) for name in names}
    over: Values = defaultdict(list)
    sure: list[float] = []
    for name, labels in product(names, LABELS[: 1 if quick else None]):
        pool, key = read_pool(name, folder), f"{name.replace('-', '_')}_{labels}"
        if labels + FEWEST_JUDGED > pool.right.shape[1]:
            continue
        coefficients, values = _left_out(name, cases), defaultdict[str, list[float]](list)
        for sub in sub_pools(pool, count, seed=3):
            advised = _advised(sub, labels, coefficients)
            values["gain"].append(advised.gain)
            values["calls"].append(advised.calls)
            if advised.measured is not None:
                values["bias_measured_gain"].append(advised.measured)
            if advised.sure is not None:
                values["optimism"].append(advised.expected - advised.gain)
                values["squares"].append((advised.expected - advised.gain) ** 2)
                values["coverage"].append(_holds(advised.expected, advised.deviation, advised.gain, advised.error))
                if advised.sure >= SURE:
                    values["sure_true"].append(float(advised.gain > 0))
        sure += values["sure_true"]
        what = f"sub-pools of {name}, {labels} labels"
        limits = {"optimism": "-1.5 to 1.5"}
        for row in ("gain", "calls", "optimism", "coverage", "sure_true", "bias_measured_gain"):
            if own := values[row]:
                yield replace(_mean(f"{row}_{key}", own, what), limit=limits.get(row, ""))
                over[f"{row}_{labels}"].append(float(np.mean(own)))
                over[row].append(float(np.mean(own)))
        yield Figure(f"rms_{key}", float(np.mean(values["squares"])) ** 0.5, note=what)
    limits = {"calls": "at most 2.6", "optimism": "-0.5 to 0.5", "coverage": "0.85 to 0.95"}
    limits["gain"] = f"at least {BEFORE + BETTER:.2f}"
    for row, own in over.items():
        note = f"the mean of {len(own)} settings, the least and the most"
        yield Figure(row, float(np.mean(own)), min(own), max(own), limits.get(row, ""), note)
    yield Figure("sure_true_of_all", float(np.mean(sure)), limit="at least 0.85", note=f"{len(sure)} recommendations")


class _Advised(NamedTuple):
    """A recommendation and what other questions say of it, in points.

    ``gain`` is over the best single model by the labels, and ``points`` are the recommendation's own. ``sure`` is its
    probability, None for a single model, and ``measured`` the measured gain of the learned vote minus that vote's gain,
    None without one.
    """

    points: float
    gain: float
    error: float
    calls: float
    expected: float
    deviation: float
    sure: float | None
    measured: float | None


def _advised(sub: SubPool, labels: int, coefficients: Mapping[str, Any], split: Split | None = None) -> _Advised:
    """The recommendation by the first questions of a sub-pool, judged by the others; `split` has the answers."""
    split = split or sub.answered
    order = np.concatenate([sub.dev, sub.rest])
    places, judge, half = order[:labels], order[labels:][:JUDGED], labels // 2
    judged = split("held_out", judge)
    with predicting_by(coefficients):
        compared = compare_strategies(split("dev", places[:half]), split("held_out", places[half:]), can_vote=True)
    recommended = recommend(compared)
    if recommended is None:
        raise AssertionError("compared strategies have a best one")
    single = scores(judged.profiles[compared.results[0].figures.best_single_model or ""])

    def differences(strategy: Strategy) -> Floats:
        return 100 * (scores(replay_all(strategy, judged).profile) - single)

    own = differences(recommended.key)
    low, high = recommended.expected_gain_ci or (0.0, 0.0)
    learned = next((each for each in compared.results if each.strategy.name == ADVICE), None)
    return _Advised(
        points=float(own.mean() + 100 * single.mean()),
        gain=float(own.mean()),
        error=float(own.std()) / len(judge) ** 0.5,
        calls=replay_all(recommended.key, judged).calls_per_question,
        expected=recommended.expected_gain or 0.0,
        deviation=(high - low) / 2 / z_value(ALPHA),
        sure=recommended.probability,
        measured=None if learned is None else learned.gain.points - float(differences(learned.strategy).mean()),
    )


def copies_figures(folder: Path, quick: bool, count: int) -> Iterator[Figure]:
    """What two near copies of the most accurate model change: the points of what is recommended, and its expected gain.

    The points, because with copies another model may be the best by the labels, and that is no loss.
    """
    values: Values = defaultdict(list)
    for name, labels in product(_answered(folder, quick), LABELS[: 1 if quick else None]):
        pool = read_pool(name, folder)
        if labels + FEWEST_JUDGED > pool.right.shape[1]:
            continue
        progress(f"benchmarks.pools: near copies in {name}, {labels} labels")
        for sub in sub_pools(pool, max(1, count // 6), seed=3):
            # What is promised with copies is compared with what is promised without, so the prior may know this pool.
            found = [_advised(sub, labels, read_coefficients(), split) for split in (None, _with_copies(sub))]
            values[f"copies_change_points_{labels}"].append(found[1].points - found[0].points)
            values[f"copies_change_expected_{labels}"].append(found[1].expected - found[0].expected)
    for row, own in values.items():
        limit = "at least -0.3" if "points" in row else "at most 0.3"
        yield replace(_mean(row, own, "sub-pools of all pools"), limit=limit)


Split = Callable[[str, Places], AnsweredSplit]


def _with_copies(sub: SubPool) -> Split:
    """The answers of a sub-pool and of two near copies of its best model."""
    best = max(sub.models, key=lambda model: sub.pool.right[sub.pool.rows([model])[0]].mean())
    chance, n = np.random.default_rng(0), sub.pool.right.shape[1]
    # Where a copy differs, it answers as another model does.
    others = [np.where(chance.random(n) < DIFFERS, chance.integers(len(sub.models), size=n), -1) for _ in range(2)]

    def answered(split: str, places: Places) -> AnsweredSplit:
        found = sub.answered(split, places)
        copies = {}
        for number, own in enumerate(others):
            answers = tuple(
                found.profiles[best if own[place] < 0 else sub.models[own[place]]].answers[n]
                for n, place in enumerate(places.tolist())
            )
            copies[f"copy {number}"] = Profile(f"copy {number}", answers)
        return replace(found, profiles={**found.profiles, **copies})

    return answered


def _holds(points: float, error: float, truth: float, own: float) -> float:
    """Whether a 90% interval holds a gain that other questions tell with an error of their own: 1 or 0."""
    return float(abs(points - truth) <= z_value(ALPHA) * float(np.hypot(error, own)))


def consensus_figures(folder: Path, quick: bool, count: int) -> Iterator[Figure]:  # noqa: ARG001
    """What a consensus of texts gains over the best single system of the segments that choose; all others judge.

    In random splits; the interval is from the least to the most.
    """
    for name in _answered(folder, quick, TRANSLATIONS):
        logs = read_logs(SelectOptions(logs=(str(folder / f"{name}.jsonl.xz"),), metric="chrf"))
        values: Values = defaultdict(list)
        for seed in range(1 if quick else _SPLITS):
            order = np.random.default_rng(seed).permutation(len(logs.examples)).tolist()
            known, fresh = (
                AnsweredSplit(logs.task("dev", part, 0), {key: own.part(part) for key, own in logs.profiles.items()})
                for part in (order[:DEV_SIZE], order[DEV_SIZE:])
            )
            given = training_data(known, Limits(), can_vote=False, copies=())
            found = replay_all(next(Consensus.learn(given)), fresh)
            values["gain"].append(found.profile.accuracy - fresh.profiles[given.best].accuracy)
            values["calls"].append(found.calls_per_question)
        for row, own in values.items():
            note = f"{len(own)} choices of {DEV_SIZE} segments"
            limit = {"gain": "at least 1", "calls": "at most 2.7"}[row]
            yield Figure(f"{name.replace('-', '_')}_{row}", float(np.mean(own)), min(own), max(own), limit, note)


def _answered(folder: Path, quick: bool, names: Sequence[str] = ANSWERED) -> list[str]:
    """The pools with answers that are there; two for a quick try."""
    return [name for name in names if (folder / f"{name}.jsonl.xz").is_file()][: 2 if quick else None]


PARTS: dict[str, Callable[[Path, bool, int], Iterator[Figure]]] = {
    "recommended": recommended_figures,
    "gains": gain_figures,
    "copies": copies_figures,
    "consensus": consensus_figures,
}
"""What is measured besides the votes."""


if __name__ == "__main__":
    sys.exit(main())
