"""What real models say: ``python -m benchmarks.pools``, some minutes; docs/pools.md explains the figures.

Pools of real models' answers (../shared/pools) are read as ``select --logs`` reads them. From each of three pools 300
random sub-pools of 4 to 8 open models within 25 points are drawn. The product's own functions choose on 300 dev
questions, and other questions judge. A gain is in points over the best single model in hindsight; its interval (95%,
bootstrap) is over the sub-pools. Where all strategies are compared, which takes seconds, it is done on fewer sub-pools
(``--sub-pools``), of five pools.

``--only recommended`` says what the recommendation is worth, ``--only gains`` how true measured gains and their
intervals are, and ``--only learned`` measures the learned vote. With --save each keeps its figures in
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
from typing import Any

import numpy as np

from advisor.advice.comparison import compare_strategies
from advisor.advice.predict import Prediction, Predictor
from advisor.advice.recommendation import recommend
from advisor.advice.rules import fitting_voters, select
from advisor.records import ALPHA, Limits, Profile
from advisor.statistics import resampled_means, scores, z_value
from advisor.strategies import default_strategy, largest_default
from advisor.strategies.learned_vote import LearnedVote
from advisor.strategies.replay import replay_all
from advisor.strategies.strategy import FEWEST_VOTERS, AnsweredSplit, Single, Strategy, TrainingData
from advisor.strategies.vote import Vote
from benchmarks._measure import Figure, arguments, progress, tell
from benchmarks.studies._pools import (
    ANSWERED,
    LARGE_SIZES,
    NAMES,
    POOLS,
    SubPool,
    ballot,
    read_pool,
    sub_pools,
    voter_sets,
)
from benchmarks.studies.prediction import fit_vote, vote_cases, vote_figures

SUB_POOLS = 300
COMPARED = 60
"""Sub-pools on which all strategies are compared."""
_LARGE = ("single", "rules", "top3", "calls3", "calls4", "default", "calls6", "calls7", "gap15", "all")
"""What is told of large sub-pools."""
_WIDE = 100.0
TAUGHT = (100, 200, 600)
"""Labels from which a learned vote learns."""
TARGETS = {"math-l5": 0.8, "crux": 0.4, "mmlu-pro": 0.5, "bfcl-part": 0.0}
LABELS = (100, 200, 300, 400)
GAINED = (4.0, 6.0)
"""Points that a vote truly gains where the power to show it is told."""
JUDGED = 2000
"""Questions that judge a measured gain, at most."""
_FEWEST_JUDGED = 60
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
    figures = [
        Figure(f"{key}_questions", pool.right.shape[1]),
        Figure(f"{key}_models", len(pool.logs.profiles), note=f"open: {len(pool.models)}: {', '.join(pool.models)}"),
        Figure(f"{key}_open_models", len(pool.models)),
        Figure(f"{key}_sub_pools", count),
    ]
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
        sets = voter_sets(profiles)
        for name, voters in sets.items():
            found = ballot(sub.pool, voters, sub.rest)
            values[f"gain_{name}"].append(found.points - best)
            values[f"calls_{name}"].append(found.calls)
            values[f"asked_{name}"].append(found.models)
        if sets["rules"] != sets["rules_no_length"]:
            with_rule, without = values["gain_rules"][-1], values["gain_rules_no_length"][-1]
            values["length_rule_dropped"].append(without - with_rule)
    return values


def recommended_figures(folder: Path, quick: bool, count: int) -> Iterator[Figure]:
    """What each way to decide loses, and what the recommendation gains over the default vote, on five pools."""
    cases = {name: list(vote_cases(read_pool(name, folder), quick)) for name in _answered(folder, quick)}
    values: dict[str, list[float]] = defaultdict(list)
    for name in _answered(folder, quick):
        progress(f"benchmarks.pools: the recommendation on {count} sub-pools of {name}")
        # No prediction may come from the pool that judges it.
        others = {each: own for each, own in cases.items() if each != name}
        coefficients = {"vote": fit_vote(others if len(others) > 1 else cases)}
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
    # How well votes are predicted comes from the same cases; benchmarks.studies.prediction has it in detail.
    yield next(vote_figures(cases))


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
        predicted = _predictions(dev, held_out, coefficients)
        compared = compare_strategies(dev, held_out, can_vote=True, predictions=predicted)
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
        gains = {each.strategy: points[each.strategy] - sub.best(sub.judge) for each in tested}
        is_shown = voted is not None and voted.figures.shown == "yes"
        if voted is not None and points[together] > points[single]:
            values["power"].append(float(is_shown))
        values["vote_gains"].append(float(points[together] > points[single]))
        choices = {
            "never": single,
            "shown": together if is_shown else single,
            "always": together,
            "recommended": recommended.key,
            "largest": tested[0].strategy,
        }
        values["gain_recommended_minus_default_vote"].append(points[choices["recommended"]] - points[together])
        calls = {each.strategy: each.figures.calls_per_question or 1.0 for each in tested}
        for name, strategy in choices.items():
            values[f"calls_{name}"].append(calls.get(strategy, 1.0))
            values[f"regret_{name}"].append(best - points[strategy])
            values[f"votes_{name}"].append(float(len(strategy.members) > 1))
        rules = select([profile.standing for profile in profiles], Limits()).selected
        values["regret_rules"].append(best - ballot(sub.pool, rules, sub.judge).points)
        values["votes_rules"].append(float(len(rules) >= FEWEST_VOTERS))
        values["optimism"].append((recommended.expected_gain or 0.0) - gains[recommended.key])
        if recommended.shown == "yes":
            values["shown_wrong"].append(float(gains[recommended.key] < 0))
        for each in tested:
            if each.strategy.name == "group_router":
                values["gain_group_router"].append(gains[each.strategy])
    return values


def _points(strategy: Strategy, split: AnsweredSplit) -> float:
    """The accuracy of a strategy on other questions than those that it was learned and compared on, in points."""
    return replay_all(strategy, split).profile.accuracy


def _predictions(
    dev: AnsweredSplit, held_out: AnsweredSplit, coefficients: Mapping[str, Any]
) -> dict[Strategy, Prediction]:
    """The predicted gains of all votes, by coefficients from other pools."""
    both = [Profile(name, (*own.answers, *held_out.profiles[name].answers)) for name, own in dev.profiles.items()]
    voters = fitting_voters(both, Limits())
    if len(voters) < FEWEST_VOTERS:
        return {}
    predictor = Predictor(both, coefficients)
    found: dict[Strategy, Prediction] = {}
    for members in (tuple(voters[:FEWEST_VOTERS]), tuple(voters)):
        found[Vote(members)] = predictor.vote_before(members)
    return found


def _mean(name: str, values: Sequence[float], what: str) -> Figure:
    """A mean with its 95% interval over the sub-pools."""
    # Fewer than the product takes: the intervals on the page were made with these.
    means = np.sort(resampled_means(np.array(values)[:, None])[:_RESAMPLES, 0])
    cut = int(len(means) * 0.025)
    return Figure(name, float(np.mean(values)), float(means[cut]), float(means[-1 - cut]), note=f"{len(values)} {what}")


def gain_figures(folder: Path, quick: bool, count: int) -> Iterator[Figure]:
    """How true the measured gains are: strategies on some labels, judged on all other questions.

    ``bias_measured_gain``: the measured gain of the default vote minus the gain that the others tell, in points.
    ``interval_coverage_recommended``: how often the 90% interval of the recommended strategy's measured gain holds that
    gain, whose own error widens the interval; ``_expected`` for the interval of the expected gain. Over the model that
    is the best on the labels. ``power_gain5_n300``: how often 300 labels in all show the gain of the vote, where the
    other questions tell one of 4 to 6 points.
    """
    names = _answered(folder, quick)
    biases: list[float] = []
    covered: list[float] = []
    shown: dict[int, list[float]] = defaultdict(list)
    for name, labels in product(names, LABELS[:1] if quick else LABELS):
        pool, key = read_pool(name, folder), f"{name.replace('-', '_')}_{labels}"
        values: Values = defaultdict(list)
        enough = labels + _FEWEST_JUDGED <= pool.right.shape[1]
        for sub in sub_pools(pool, count, seed=3) if enough else ():
            order = np.concatenate([sub.dev, sub.rest])
            half, places, judge = labels // 2, order[:labels], order[labels:][:JUDGED]
            splits = [sub.answered(*each) for each in (("dev", places[:half]), ("held_out", places[half:]))]
            judged = sub.answered("held_out", judge)
            compared = compare_strategies(splits[0], splits[1], can_vote=True)
            tested = compared.results
            largest = largest_default([each.strategy for each in tested])
            recommended = recommend(compared)
            for result in tested:
                is_recommended = recommended is not None and result.strategy == recommended.key
                if isinstance(result.strategy, Single) or not (is_recommended or result.strategy == largest):
                    continue
                differences = scores(replay_all(result.strategy, judged).profile) - scores(
                    judged.profiles[result.figures.best_single_model or ""]
                )
                truth, error = 100 * float(differences.mean()), 100 * float(differences.std()) / len(judge) ** 0.5
                if result.strategy == largest:
                    values["bias"].append(result.gain.points - truth)
                    if GAINED[0] <= truth <= GAINED[1]:
                        shown[labels].append(float(result.figures.shown == "yes"))
                if is_recommended:
                    values["bias_recommended"].append(result.gain.points - truth)
                    values["coverage"].append(_holds(result.gain.points, result.gain.error, truth, error))
                    expected, ends = result.figures.expected_gain or 0.0, result.figures.expected_gain_ci or (0, 0)
                    deviation = (ends[1] - ends[0]) / 2 / z_value(ALPHA)
                    values["coverage_expected"].append(_holds(expected, deviation, truth, error))
        if not values["coverage"]:
            continue
        what = f"sub-pools of {name}, {labels} labels"
        biases.append(float(np.mean(values["bias"])))
        covered.append(float(np.mean(values["coverage"])))
        yield replace(_mean(f"bias_measured_gain_{key}", values["bias"], what), limit="-0.2 to 0.2")
        yield _mean(f"bias_measured_gain_recommended_{key}", values["bias_recommended"], what)
        figure = _mean(f"interval_coverage_recommended_{key}", values["coverage"], what)
        yield replace(figure, limit="0.87 to 0.95")
        yield _mean(f"interval_coverage_expected_{key}", values["coverage_expected"], what)
    for labels, outcomes in shown.items():
        figure = _mean(f"power_gain5_n{labels}", outcomes, f"votes that gain {GAINED[0]:g} to {GAINED[1]:g} points")
        yield replace(figure, limit="at least 0.75" if labels == 300 else "")
    note = f"the mean of {len(biases)} settings, the least and the most"
    yield Figure("bias_measured_gain", float(np.mean(biases)), min(biases), max(biases), "-0.2 to 0.2", note)
    yield Figure(
        "interval_coverage_recommended", float(np.mean(covered)), min(covered), max(covered), "0.87 to 0.95", note
    )


def _holds(points: float, error: float, truth: float, own: float) -> float:
    """Whether a 90% interval holds a gain that other questions tell with an error of their own: 1 or 0."""
    return float(abs(points - truth) <= z_value(ALPHA) * float(np.hypot(error, own)))


def learned_figures(folder: Path, quick: bool, count: int) -> Iterator[Figure]:
    """The gains on the sub-pools of each pool, learned from some labels and judged by other questions."""
    for name in _answered(folder, quick):
        pool, key = read_pool(name, folder), name.replace("-", "_")
        values: Values = defaultdict(list)
        for sub in sub_pools(pool, count):
            for labels in TAUGHT:
                _learn(sub, labels, values)
        for row, own in values.items():
            target = TARGETS.get(name) if row == f"gain_learned_minus_default_vote_{TAUGHT[-1]}" else None
            # The targets are those of all labels, which are 600 where a pool has enough questions.
            figure = _mean(f"{key}_{row.removesuffix(f'_{TAUGHT[-1]}')}", own, "sub-pools; mean with its 95% interval")
            yield figure if target is None else replace(figure, limit=f"at least {target:g}")


def _learn(sub: SubPool, labels: int, values: Values) -> None:
    """What a sub-pool's learned vote gains and costs, with so many labels in all, or as many as it has."""
    known = np.concatenate([sub.dev, sub.held_out])[:labels]
    given, judge = sub.answered("dev", known), sub.answered("held_out", sub.judge)
    dev = sub.answered("dev", known[: min(len(sub.dev), labels // 2)])
    voters = fitting_voters(list(dev.profiles.values()), Limits())
    default = default_strategy(voters) if len(voters) >= FEWEST_VOTERS else Single(voters[:1])
    learned = next(LearnedVote.learn(TrainingData(given, voters[0], voters, can_vote=True)))
    points, calls = [], []
    for strategy in (learned, default):
        voted = replay_all(strategy, judge)
        points.append(voted.profile.accuracy)
        calls.append(voted.calls_per_question)
    values[f"gain_learned_minus_default_vote_{labels}"].append(points[0] - points[1])
    values[f"plain_vote_stays_{labels}"].append(float(learned.same_as is not None))
    if labels == TAUGHT[-1]:
        values["gain_learned"].append(points[0] - sub.best(sub.judge))
        values["calls_learned"].append(calls[0])
        values["calls_default_vote"].append(calls[1])


def _answered(folder: Path, quick: bool) -> list[str]:
    """The pools with answers that are there; two for a quick try."""
    return [name for name in ANSWERED if (folder / f"{name}.jsonl.xz").is_file()][: 2 if quick else None]


PARTS: dict[str, Callable[[Path, bool, int], Iterator[Figure]]] = {
    "recommended": recommended_figures,
    "gains": gain_figures,
    "learned": learned_figures,
}
"""What is measured besides the votes."""


if __name__ == "__main__":
    sys.exit(main())
