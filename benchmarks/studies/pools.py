"""What real models say: ``python -m benchmarks.pools``, some minutes; two pages explain the figures.

Three pools of real models' answers (../shared/pools: 721, 800 and 11,971 questions) are read as ``select --logs`` reads
them. From each pool 300 random sub-pools of 4 to 8 open models within 25 points are drawn. The product's own functions
choose on 300 dev questions, and other questions judge. A gain is in points over the best single model in hindsight; its
interval (95%, bootstrap) is over the sub-pools. Votes and cascades are compared with a plain count in 100,000 cases.

Where all strategies are compared, which takes seconds, it is done on fewer sub-pools (``--sub-pools``), of five pools.

``--only command`` measures the time and the memory of ``advisor select --logs`` on the largest pool instead; nothing
else should run beside it. ``--only labels`` counts the labels that a comparison needs, ``--only recommended`` says what
the recommendation is worth, ``--only gains`` how true measured gains and their intervals are, and ``--only learned``
measures the learned vote. With --save each keeps its figures in results/pools_NAME.json. ``--kept`` measures nothing:
it takes what was kept for ``--tables`` and ``--plots FOLDER``, which make the tables and the plots of the page.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise, product
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from advisor.advice.comparison import compare_strategies
from advisor.advice.drift import paired_gain
from advisor.advice.predict import Prediction, Predictor
from advisor.advice.recommendation import recommend
from advisor.choose.rules import fitting_voters, select
from advisor.jobs.label import DEV_SIZE
from advisor.records import ALPHA, Limits, Profile, gap, length_ratio
from advisor.statistics import Floats, resampled_means, scores, z_value
from advisor.strategies import largest_usual
from advisor.strategies.cascade import Cascade, cascade_calls
from advisor.strategies.single import Single
from advisor.strategies.strategy import FEWEST_VOTERS, AnsweredSplit, Strategy
from advisor.strategies.vote import Vote
from advisor.strategies.weighted_vote import WeightedVote, vote_weights
from benchmarks._measure import RESULTS, ROOT, Figure, arguments, progress, tell
from benchmarks._pools_page import LEAST, draw, tables
from benchmarks.studies._learned import learned_figures
from benchmarks.studies._pools import (
    ANSWERED,
    ANY,
    LARGE_SIZES,
    NAMES,
    POOLS,
    RealPool,
    SubPool,
    agreement,
    ballot,
    ballots,
    by_answer,
    disputed,
    labels_of_two_rounds,
    read_pool,
    split,
    sub_pools,
    tie_rules,
    voter_sets,
)
from benchmarks.studies.prediction import fit_vote, vote_cases, vote_figures
from ensemble.methods._votes import NONE, Codes, vote

SUB_POOLS = 300
COMPARED = 60
"""Sub-pools on which all strategies are compared."""
SPLITS = 5
"""Random dev questions for which all triples of open models vote."""
CASES = 100_000
GAPS = (0, 10, 15, 20, 25, 100)
"""Limits of the bins of the third voter's gap, in points."""
RATIOS = (1.0, 1.25, 1.5, 2.0, 3.0, float("inf"))
"""Limits of the bins of the largest length ratio to the first voter."""
_LARGE = ("single", "rules", "top3", "calls3", "calls4", "default", "calls6", "calls7", "gap15", "all")
"""What is told of large sub-pools."""
_WIDE = 100.0
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
_COMMAND = "from advisor.cli import main; main()"

Values = dict[str, list[float]]


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and keep where asked."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--pools", type=Path, default=POOLS, metavar="FOLDER", help="where the pools are")
    parser.add_argument(
        "--only", choices=("command", "labels", "recommended", "gains", "learned"), help="these figures, no others"
    )
    parser.add_argument(
        "--sub-pools", type=int, default=COMPARED, metavar="N", help="where all strategies are compared"
    )
    parser.add_argument("--kept", action="store_true", help="measure nothing, take what was kept")
    parser.add_argument("--tables", action="store_true", help="print the tables of the two pages, and nothing else")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the plots of the two pages")
    options = parser.parse_args(given)
    folder, quick, count = options.pools, options.quick, 3 if options.quick else options.sub_pools
    parts: dict[str, Callable[[], Iterable[Figure]]] = {
        "labels": partial(label_figures, folder, quick),
        "recommended": partial(recommended_figures, folder, quick, count),
        "gains": partial(gain_figures, folder, quick, count),
        "learned": partial(learned_figures, folder, count),
    }
    if options.kept:
        files = [RESULTS / f"{name}.json" for name in ("pools", *(f"pools_{each}" for each in ("command", *parts)))]
        kept = [json.loads(file.read_text(encoding="utf-8"))["figures"] for file in files if file.is_file()]
        figures = [Figure(name, **rest) for own in kept for name, rest in own.items()]
    elif not (folder / f"{NAMES[0]}.jsonl.xz").is_file():
        progress(f"benchmarks.pools: no pools in {folder}; without them nothing can be measured")
        return 0
    elif options.only:
        part = partial(command_figures, folder) if options.only == "command" else parts[options.only]
        tell(f"pools_{options.only}", list(part()), options)
        return 0
    else:
        figures = [*pool_figures(folder, quick), *check_figures(folder, quick)]
        figures += [figure for part in parts.values() for figure in part()]
    if options.tables:
        print("\n\n".join(tables(figures)))
    else:
        tell("pools", figures, options)
    if options.plots:
        draw(figures, options.plots)
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
    pool, count = read_pool(name, folder), 3 if quick else SUB_POOLS
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
    return [*figures, *_triples(pool, key, 1 if quick else SPLITS)]


def _votes(drawn: Sequence[SubPool]) -> Values:
    """What each way to choose voters gains, and what it costs; see :func:`benchmarks.studies._pools.voter_sets`."""
    values: Values = defaultdict(list)
    for sub in drawn:
        profiles, best = sub.dev_profiles(), sub.best(sub.rest)
        sets = voter_sets(profiles)
        for name, found in ballots(sub, profiles, sets).items():
            values[f"gain_{name}"].append(found.points - best)
            values[f"calls_{name}"].append(found.calls)
            values[f"asked_{name}"].append(found.models)
        if sets["rules"] != sets["rules_no_length"]:
            with_rule, without = values["gain_rules"][-1], values["gain_rules_no_length"][-1]
            values["length_rule_dropped"].append(without - with_rule)
        for name in ("top3", "gap15"):
            for rule, points in tie_rules(sub, profiles, sets[name]).items():
                values[f"ties_{rule}_{name}"].append(points - best)
        for name, value in agreement(sub, sets["top3"]).items():
            values[name].append(value)
    return values


def recommended_figures(folder: Path, quick: bool, count: int) -> Iterator[Figure]:
    """What each way to decide loses, and what the recommendation gains over the default vote, on five pools."""
    names = [name for name in ANSWERED if (folder / f"{name}.jsonl.xz").is_file()]
    cases = {name: list(vote_cases(read_pool(name, folder))) for name in names}
    values: dict[str, list[float]] = defaultdict(list)
    for name in names[:2] if quick else names:
        progress(f"benchmarks.pools: the recommendation on {count} sub-pools of {name}")
        # No prediction may come from the pool that judges it.
        coefficients = {"vote": fit_vote({each: own for each, own in cases.items() if each != name})}
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
    ``least_NN`` is ``recommended`` with another least gain for each call, in tenths of a point.
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
        largest = largest_usual([each.strategy for each in tested])
        together = largest or single
        cascade = next((each for each in tested if each.strategy == largest), None)
        recommended = recommend(compared)
        if recommended is None:
            raise AssertionError("compared strategies have a best one")
        gains = {each.strategy: points[each.strategy] - sub.best(sub.judge) for each in tested}
        is_shown = cascade is not None and cascade.shown == "yes"
        if cascade is not None and points[together] > points[single]:
            values["power"].append(float(is_shown))
        values["vote_gains"].append(float(points[together] > points[single]))
        choices = {
            "never": single,
            "shown": together if is_shown else single,
            "always": together,
            "recommended": recommended.result.strategy,
            "largest": tested[0].strategy,
        }
        for name, least in LEAST.items():
            with patch("advisor.advice.recommendation.LEAST_PER_CALL", least):
                other = recommend(compared)
            if other is not None:
                choices[name] = other.result.strategy
        values["gain_recommended_minus_default_vote"].append(points[choices["recommended"]] - points[together])
        calls = {each.strategy: each.calls for each in tested}
        for name, strategy in choices.items():
            values[f"calls_{name}"].append(calls.get(strategy, 1.0))
            values[f"regret_{name}"].append(best - points[strategy])
            values[f"votes_{name}"].append(float(len(strategy.members) > 1))
        rules = select([profile.standing for profile in profiles], Limits()).selected
        values["regret_rules"].append(best - ballot(sub.pool, rules, sub.judge).points)
        values["votes_rules"].append(float(len(rules) >= FEWEST_VOTERS))
        values["optimism"].append(recommended.result.expected_gain - gains[recommended.result.strategy])
        if recommended.result.shown == "yes":
            values["shown_wrong"].append(float(gains[recommended.result.strategy] < 0))
        for each in tested:
            if each.strategy.name in ("router", "group_router"):
                values[f"gain_{each.strategy.name}"].append(gains[each.strategy])
                if each.expected_gain > 0:
                    values["optimism_routers"].append(each.expected_gain - gains[each.strategy])
    return values


def _points(strategy: Strategy, split: AnsweredSplit) -> float:
    """The accuracy of a strategy on other questions than those that it was learned and compared on, in points."""
    return strategy.apply([split.profiles[name] for name in strategy.members], split.task).accuracy


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
    # The largest vote last, which the weighted one equals.
    for members in (tuple(voters[:FEWEST_VOTERS]), tuple(voters)):
        prediction = predictor.vote_before(members)
        found |= {Vote(members): prediction, Cascade(members): prediction}
    weights = vote_weights([each for name in voters for each in both if each.model == name])
    return found | {WeightedVote(tuple(voters), weights): prediction}


def _triples(pool: RealPool, key: str, splits: int) -> Iterator[Figure]:
    """The gain of all triples of open models by the gap of the third and by the length ratio, both as dev says."""
    found: list[tuple[float, float, float, float]] = []
    chance = np.random.default_rng(0)
    for _ in range(splits):
        dev, rest = split(pool, chance)
        profiles = {model: pool.profile(model, dev) for model in pool.models}
        ranked = fitting_voters(list(profiles.values()), Limits(vote_gap=100, max_voters=ANY))
        alone = 100 * pool.right[:, rest].mean(axis=1)
        for triple in combinations(ranked, FEWEST_VOTERS):
            first, *others = (profiles[model] for model in triple)
            second, third = (gap(first.accuracy, other.accuracy) for other in others)
            ratio = max(_ratio(first, other) for other in others)
            points = ballot(pool, triple, rest).points
            found.append((second, third, ratio, points - alone[pool.rows(triple)].max()))
    seconds, thirds, ratios, gains = np.array(found).T
    what = f"of {len(gains):,} triples of open models in {splits} random splits"
    for low, high in pairwise(GAPS):
        own = gains[(thirds > (low or -1)) & (thirds <= high)]
        yield _bin(f"{key}_third_{low}_{high}_gain", own, f"mean and quartiles of {len(own):,} {what}")
        yield Figure(
            f"{key}_third_{low}_{high}_share",
            float((own > 0).mean()) if len(own) else None,
            note="of these, the share that gains",
        )
    plane = np.column_stack([np.ones_like(gains), seconds, thirds])
    residual = gains - plane @ np.linalg.lstsq(plane, gains, rcond=None)[0]
    for lowest, highest in pairwise(RATIOS):
        own = residual[(ratios > (0 if lowest == 1 else lowest)) & (ratios <= highest)]
        bounds = f"{lowest:g}_{highest:g}".replace(".", "")
        note = f"gain that a linear fit of the two gaps leaves, mean and quartiles of {len(own):,} {what}"
        yield _bin(f"{key}_ratio_{bounds}_residual", own, note)


def _bin(name: str, values: Floats, note: str) -> Figure:
    if not len(values):
        return Figure(name, None, note=note)  # a pool may have no triple of a bin
    low, high = np.quantile(values, (0.25, 0.75)).tolist()
    return Figure(name, float(values.mean()), low, high, note=note)


def _ratio(a: Profile, b: Profile) -> float:
    ratio = length_ratio(a.mean_length, b.mean_length)
    return float("nan") if ratio is None else ratio


def _mean(name: str, values: Sequence[float], what: str) -> Figure:
    """A mean with its 95% interval over the sub-pools."""
    # Fewer than the product takes: the intervals on the page were made with these.
    means = np.sort(resampled_means(np.array(values)[:, None])[:_RESAMPLES, 0])
    cut = int(len(means) * 0.025)
    return Figure(name, float(np.mean(values)), float(means[cut]), float(means[-1 - cut]), note=f"{len(values)} {what}")


def check_figures(folder: Path, quick: bool) -> Iterator[Figure]:
    """Votes against a plain count, cascades against votes, and the calls that cascades of three save."""
    cases = 300 if quick else CASES
    progress(f"benchmarks.pools: {cases:,} votes, counted one by one")
    pools = [read_pool(name, folder) for name in (NAMES[:2] if quick else NAMES)]
    chance, wrong, other, left = np.random.default_rng(0), 0, 0, cases
    while left:
        # In turn: made-up answers with many ties and gaps, and the answers of real models.
        codes = _made_up(chance) if left % 2 else _real(pools[int(chance.integers(len(pools)))], chance)
        codes = codes[:, :left]
        winners, calls = vote(codes), cascade_calls(codes)
        for question, column in enumerate(codes.T.tolist()):
            wrong += int(winners[question]) != _counted(column)
            asked = column[: calls[question]]
            other += column[_counted(asked)] != column[_counted(column)]
        left -= codes.shape[1]
    yield Figure("vote_cases", cases, limit="at least 100,000", note="half made up, half of the pools; 1 to 9 models")
    yield Figure("vote_differences", wrong, limit="0", note="votes that differ from a plain count")
    yield Figure("cascade_differences", other, limit="0", note="cascades with another answer than the vote")
    all_saved = []
    for pool in pools:
        saved = []
        for sub in sub_pools(pool, 3 if quick else SUB_POOLS):
            top = fitting_voters(sub.dev_profiles(), Limits(vote_gap=100, max_voters=FEWEST_VOTERS))
            saved.append(1 - ballot(pool, top, sub.rest).calls / FEWEST_VOTERS)
        yield _mean(f"{pool.name.replace('-', '_')}_calls_saved", saved, "sub-pools, the three most accurate models")
        all_saved += saved
    figure = _mean("calls_saved", all_saved, "sub-pools of all pools: calls that a cascade of three saves")
    yield replace(figure, limit="at least 0.15")


def label_figures(folder: Path, quick: bool) -> Iterator[Figure]:
    """The share of the questions on which a vote and a single model, both chosen before, give different answers.

    Equal answers cancel in a paired comparison, so only the labels of these questions decide it. All pools that have
    answers, with one score for each answer; ``labels_two_rounds`` counts those that choose the models, too.
    """
    means, changed = [], 0
    names = NAMES[:2] if quick else [name for name in ANSWERED if (folder / f"{name}.jsonl.xz").is_file()]
    for name in names:
        key, pool, shares = name.replace("-", "_"), by_answer(read_pool(name, folder)), []
        rounds: list[tuple[float, float]] = []
        for sub in sub_pools(pool, 3 if quick else SUB_POOLS):
            voters = fitting_voters(sub.dev_profiles(), Limits())
            differ, voted, single = disputed(pool, voters, sub.rest)
            if len(voters) >= FEWEST_VOTERS:
                shares.append(float(differ.mean()))
                changed += paired_gain(voted, single) != paired_gain(voted * differ, single * differ)
            found = labels_of_two_rounds(sub, min(DEV_SIZE, pool.right.shape[1] // 2))
            rounds += [] if found is None else [found]
        figure = _mean(f"{key}_labels_needed_share", shares, "sub-pools: vote against the best on dev")
        means.append(figure.value or 0.0)
        yield replace(figure, limit="at most 0.35")
        note = "sub-pools: labels to choose on 100 dev questions, and to verify on the others, of all questions"
        yield _mean(f"{key}_labels_two_rounds_share", [sum(each) for each in rounds], note)
        yield _mean(f"{key}_labels_choose", [each[0] * pool.right.shape[1] for each in rounds], "sub-pools: to choose")
    note = f"mean over the sub-pools of the pool that needs most; the least and the most of {len(means)} pools"
    yield Figure("labels_needed_share", max(means), min(means), max(means), "at most 0.35", note)
    yield Figure(
        "labels_differences", changed, limit="0", note="sub-pools whose gain, error or p changes with the rest"
    )


def gain_figures(folder: Path, quick: bool, count: int) -> Iterator[Figure]:
    """How true the measured gains are: strategies on some labels, judged on all other questions.

    ``bias_measured_gain``: the measured gain of the default cascade minus the gain that the others tell, in points.
    ``interval_coverage_recommended``: how often the 90% interval of the recommended strategy's measured gain holds that
    gain, whose own error widens the interval; ``_expected`` for the interval of the expected gain. Over the model that
    is the best on the labels. ``power_gain5_n300``: how often 300 labels in all show the gain of the cascade, where the
    other questions tell one of 4 to 6 points.
    """
    names = NAMES[:2] if quick else [name for name in ANSWERED if (folder / f"{name}.jsonl.xz").is_file()]
    biases: list[float] = []
    covered: list[float] = []
    shown: dict[int, list[float]] = defaultdict(list)
    for name, labels in product(names, LABELS[:1] if quick else LABELS):
        pool, key = read_pool(name, folder), f"{name.replace('-', '_')}_{labels}"
        values: Values = defaultdict(list)
        enough = labels + _FEWEST_JUDGED <= pool.right.shape[1]
        for sub in sub_pools(pool, 2 if quick else count, seed=3) if enough else ():
            order = np.concatenate([sub.dev, sub.rest])
            half, places, judge = labels // 2, order[:labels], order[labels:][:JUDGED]
            splits = [_no_texts(sub.answered(*each)) for each in (("dev", places[:half]), ("held_out", places[half:]))]
            judged = sub.answered("held_out", judge)
            compared = compare_strategies(splits[0], splits[1], can_vote=True)
            tested = compared.results
            largest = largest_usual([each.strategy for each in tested])
            recommended = recommend(compared)
            for result in tested:
                is_recommended = recommended is not None and result is recommended.result
                if result.strategy.IS_SINGLE or not (is_recommended or result.strategy == largest):
                    continue
                own = [judged.profiles[member] for member in result.strategy.members]
                differences = scores(result.strategy.apply(own, judged.task)) - scores(
                    judged.profiles[result.best_single_model]
                )
                truth, error = 100 * float(differences.mean()), 100 * float(differences.std()) / len(judge) ** 0.5
                if result.strategy == largest:
                    values["bias"].append(result.gain.points - truth)
                    if GAINED[0] <= truth <= GAINED[1]:
                        shown[labels].append(float(result.shown == "yes"))
                if is_recommended:
                    values["bias_recommended"].append(result.gain.points - truth)
                    values["coverage"].append(_holds(result.gain.points, result.gain.error, truth, error))
                    deviation = result.gain.error if result.updated is None else result.updated.deviation
                    values["coverage_expected"].append(_holds(result.expected_gain, deviation, truth, error))
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


def _no_texts(split: AnsweredSplit) -> AnsweredSplit:
    """A split without prompts, so that no router by text is learned: that takes most of the time."""
    examples = tuple(replace(each, prompt="") for each in split.task.examples)
    return replace(split, task=replace(split.task, examples=examples))


def _holds(points: float, error: float, truth: float, own: float) -> float:
    """Whether a 90% interval holds a gain that other questions tell with an error of their own: 1 or 0."""
    return float(abs(points - truth) <= z_value(ALPHA) * float(np.hypot(error, own)))


def _counted(answers: Sequence[int]) -> int:
    """The first model with an answer that most models gave, counted one by one; 0 if no model has an answer."""
    votes = Counter(answer for answer in answers if answer != NONE)
    most = max(votes.values(), default=0)
    return next((place for place, answer in enumerate(answers) if votes[answer] == most and answer != NONE), 0)


def _made_up(chance: np.random.Generator) -> Codes:
    models, answers = int(chance.integers(1, 10)), int(chance.integers(1, 7))
    return chance.integers(NONE, answers, (models, 50)).astype(np.int32)


def _real(pool: RealPool, chance: np.random.Generator) -> Codes:
    models, questions = pool.codes.shape
    rows = chance.choice(models, int(chance.integers(1, 10)), replace=False)
    return pool.codes[rows][:, chance.choice(questions, 51, replace=False)]


def command_figures(folder: Path) -> list[Figure]:
    """The whole command on 28 models and 12,000 questions, in a separate process."""
    log = folder / "mmlu-pro.jsonl.xz"
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-I", "-c", _COMMAND, "select", "--quiet"]
        command += ["--logs", str(log), "--out", place + "/run"]
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"select --logs ended with {process.returncode}; its message is above")
        report = Path(place, "run", "report.html").stat().st_size
    unit = 2**20 if sys.platform == "darwin" else 2**10
    of = "select --logs, 28 models on 11,971 questions"
    return [
        Figure("logs_seconds", seconds, limit="at most 60", note=f"{of}, from the log to the report"),
        Figure("logs_memory_mib", used.ru_maxrss / unit, limit="at most 2,048", note="the most that the process held"),
        Figure("logs_report_mb", report / 1e6, limit="at most 2", note="size of report.html"),
    ]


if __name__ == "__main__":
    sys.exit(main())
