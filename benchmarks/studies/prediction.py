"""The prediction of gains: ``python -m benchmarks.studies.prediction --save``, a minute; it needs ../shared/pools.

It fits the coefficients of `advisor.advice.predict`: the gains of learned votes and of routers by groups in five pools,
from 100 and 300 labels, as differences of log-odds; and sets that decode together, in the zoo (results/zoo.json) and of
real models (results/real.json). A gain is over the best model by the labels. It says how well sets are predicted from
sets of both that share no model with them, and what other limits of the rules would have come to for decoded sets.
With --save the coefficients replace advisor/advice/prediction.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import numpy as np
from scipy import stats

from advisor.advice import predict
from advisor.advice.comparison import expected_gain
from advisor.advice.predict import COEFFICIENTS, Prediction, Predictor
from advisor.advice.recommendation import least_gain
from advisor.advice.rules import select
from advisor.records import Answer, Limits, Profile
from advisor.statistics import scores
from advisor.strategies.group_router import GroupRouter
from advisor.strategies.learned_vote import LearnedVote
from advisor.strategies.replay import replay_all
from advisor.strategies.strategy import AnsweredSplit, Decoded, Replay, Strategy
from advisor.tasks import load_task
from benchmarks._measure import Figure, arguments, commit, progress, tell
from benchmarks.studies._decoded_sets import (
    DecodedSets,
    Members,
    SetGain,
    limit_figures,
    of_real,
    of_zoo,
    set_gains,
    weight_figures,
)
from benchmarks.studies._pools import ANSWERED, NAMES, POOLS, RealPool, read_pool, sub_pools
from benchmarks.studies.real import is_inside
from benchmarks.studies.zoo import read

SUB_POOLS = 60
LABELS = (100, 300)
TRUTH = 2000
"""Questions that tell the gain of a strategy, at most."""
FEWEST_JUDGED = 60
TRUST = 30
"""How many sets the slope 1 counts for, the mean of vote and oracle as it is: few sets alone give a wild slope."""
ALPHA = 0.05
_CASES = 10
"""Splits of the zoo's questions into 300 dev questions and others."""


class Case(NamedTuple):
    """What a strategy gained on questions that it was not learned from, and the error of that, in log-odds."""

    kind: Literal["vote", "route"]
    gain: float
    error: float


class Quality(NamedTuple):
    """Predictions and what came out, with the error of the latter, all in points."""

    predictions: Sequence[Prediction]
    gains: Sequence[float]
    errors: Sequence[float]

    @property
    def rmse(self) -> float:
        """The root of the mean squared difference."""
        differences = [one.points - gain for one, gain in zip(self.predictions, self.gains, strict=True)]
        return float(np.sqrt(np.mean(np.square(differences))))

    @property
    def coverage(self) -> float:
        """The share of the gains in the 90% interval of a prediction, whose error includes that of the gain."""
        known = zip(self.predictions, self.gains, self.errors, strict=True)
        wide = [(Prediction(one.points, float(np.hypot(one.deviation, error))), gain) for one, gain, error in known]
        return float(np.mean([low <= gain <= high for one, gain in wide for low, high in [one.interval(ALPHA)]]))


def main(given: Sequence[str] | None = None) -> int:
    """Fit, measure, print, and keep where asked."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--pools", type=Path, default=POOLS, metavar="FOLDER", help="where the pools are")
    options = parser.parse_args(given)
    if not (options.pools / f"{NAMES[0]}.jsonl.xz").is_file():
        progress(f"benchmarks.studies.prediction: no pools in {options.pools}; without them nothing can be fitted")
        return 0
    names = NAMES[:2] if options.quick else ANSWERED
    progress(f"benchmarks.studies.prediction: sets of {', '.join(names)}, and of the zoo")
    answered = {name: read_pool(name, options.pools) for name in names}
    cases = {name: cases_of(pool, options.quick) for name, pool in answered.items()}
    pools = [of_zoo(read()), *of_real()]
    figures = [
        *decoded_figures(pools, 1 if options.quick else _CASES),
        *limit_figures(pools),
        *weight_figures(pools[0]),
        *recommended_figures(pools, 1 if options.quick else _CASES),
    ]
    tell("prediction", figures, options)
    if options.save and not options.quick:
        fitted = fit_decode([each for pool in pools for each in set_gains(pool)])
        kept = {
            "command": "python -m benchmarks.studies.prediction --save",
            "commit": commit(),
            "decode": {**fitted["decode"], "fitted_on": fitted_on(pools), "real": real_gains(pools[1:])},
            "choose": fitted["choose"],
            **{kind: {**own, "fitted_on": _told(kind, cases)} for kind, own in fit_gains(cases).items()},
        }
        COEFFICIENTS.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    return 0


def _told(kind: str, cases: Mapping[str, Sequence[Case]]) -> str:
    counts = {name: sum(case.kind == kind for case in own) for name, own in cases.items()}
    what = {"vote": "learned votes", "route": "routers by groups"}[kind]
    return f"{sum(counts.values()):,} {what} in {', '.join(name for name, count in counts.items() if count)}"


def cases_of(pool: RealPool, quick: bool = False) -> list[Case]:
    """Learned votes and routers by groups of random sub-pools of a pool."""
    found = []
    for sub in sub_pools(pool, 2 if quick else SUB_POOLS, seed=4):
        order = np.concatenate([sub.dev, sub.rest])
        for labels in LABELS[: 1 if quick else None]:
            judge = order[labels:][:TRUTH]
            if len(judge) < FEWEST_JUDGED:
                continue
            taught = sub.taught(order[:labels])
            judged = sub.answered("held_out", judge)
            single = scores(judged.profiles[taught.best])
            strategies: list[tuple[Literal["vote", "route"], Strategy]] = [
                *(("vote", each) for each in LearnedVote.learn(taught)),
                *(("route", each) for each in GroupRouter.learn(taught)),
            ]
            for kind, strategy in strategies:
                if strategy.same_as != "single":
                    own = scores(replay_all(strategy, judged).profile)
                    middle = (float((own + single).sum()) / 2 + 1) / (len(judge) + 2)
                    scale = middle * (1 - middle)
                    error = float((own - single).std()) / len(judge) ** 0.5
                    found.append(Case(kind, float((own - single).mean()) / scale, error / scale))
    return found


def fit_gains(cases: Mapping[str, Sequence[Case]]) -> dict[str, Any]:
    """The coefficients of votes and routers; each pool counts alike.

    The deviation is that of the gains of all pools around their mean, without the gains' own error, and wider, because
    a mean and a deviation of few pools are not exact (the interval of a new value by Student's t).

    Args:
        cases: By the name of the pool.
    """
    fitted = {}
    for kind in ("vote", "route"):
        pools = [own for each in cases.values() if (own := [case for case in each if case.kind == kind])]
        mean = float(np.mean([np.mean([case.gain for case in own]) for own in pools])) if pools else 0.0
        squares = [np.mean([(case.gain - mean) ** 2 - case.error**2 for case in own]) for own in pools]
        wider = stats.t.isf(ALPHA, max(len(pools) - 1, 2)) / stats.norm.isf(ALPHA) * np.sqrt(1 + 1 / max(len(pools), 1))
        deviation = float(np.sqrt(max(np.mean(squares), 0.01)) * wider) if pools else 1.0
        fitted[kind] = {"log_odds": mean, "deviation": deviation}
    return fitted


def fit_decode(sets: Sequence[SetGain], without: Collection[str] = ()) -> dict[str, dict[str, float]]:
    """The coefficients of sets that decode together, and of those that score options.

    Args:
        sets: What each set promises and gains.
        without: Models whose sets take no part, unless fewer than two sets are left, as in a quick try.
    """
    return {
        kind: _fitted([each for each in sets if each.chooses == (kind == "choose")], without)
        for kind in ("decode", "choose")
    }


def _fitted(sets: Sequence[SetGain], without: Collection[str]) -> dict[str, float]:
    known = [each for each in sets if not set(each.models) & set(without)]
    if len(known) < 2:
        known = list(sets)
    if not known:
        return {}
    intercept, slope = _line(known)
    residuals = []
    for one in known:
        others = [each for each in known if not set(each.models) & set(one.models)]
        if len(others) > 1:
            line = _line(others)
            residuals.append(one.gain - line[0] - line[1] * one.promise)
    # Without enough sets for a cross-validation: about what all of them give.
    deviation = float(np.sqrt(np.mean(np.square(residuals)))) if len(residuals) > 2 else 2.5
    return {"intercept": intercept, "slope": slope, "deviation": deviation}


def _line(known: Sequence[SetGain]) -> tuple[float, float]:
    """Intercept and slope, pulled towards the slope 1; of sets that score options their mean gain, and no slope."""
    promises, gains = (np.array(each) for each in zip(*((each.promise, each.gain) for each in known), strict=True))
    if known[0].chooses:
        return float(gains.mean()), 0.0
    off = promises - promises.mean()
    slope = 1 + float(off @ (gains - promises)) / max(float(off @ off) * (1 + TRUST / len(known)), 1e-9)
    return float(gains.mean() - slope * promises.mean()), slope


def fitted_on(pools: Sequence[DecodedSets]) -> str:
    """What the coefficients of sets that decode together were fitted on, in words."""
    zoo, *real = pools
    models = {model for pool in real for model in pool.standings}
    return (
        f"{len(set_gains(zoo))} sets of {len(zoo.standings)} small models (the zoo) on {zoo.questions} questions, and "
        f"{sum(len(set_gains(pool)) for pool in real)} sets of {len(models)} real models on "
        f"{sum(pool.questions for pool in real):,} questions of {len(real)} tasks"
    )


def real_gains(real: Sequence[DecodedSets]) -> dict[str, float]:
    """How many sets of real models inside the rules were decoded, how many gained, and their mean gain in points."""
    gains = [
        each.gain
        for pool in real
        for each in set_gains(pool)
        if is_inside([pool.standings[model] for model in each.models])
    ]
    return {"sets": len(gains), "gained": sum(gain > 0 for gain in gains), "mean": float(np.mean(gains))}


def decoded_figures(pools: Sequence[DecodedSets], splits: int) -> Iterator[Figure]:
    """How well sets are predicted from sets that share no model with them.

    Args:
        pools: The zoo and the real models.
        splits: Of the zoo's questions into dev questions and others; those of the real models are split already.
    """
    known = [each for pool in pools for each in set_gains(pool)]
    for source in ("zoo", "real"):
        found = [case for pool in pools if pool.source == source for case in _decoded(pool, known, splits)]
        if not found:
            continue
        quality = Quality(*zip(*found, strict=True))
        note = f"{len(found)} predictions, each from sets of both sources that share no model with it"
        yield Figure(f"prediction_rmse_{source}", quality.rmse, note=f"points; {note}")
        yield Figure(f"prediction_coverage_{source}", quality.coverage, note=f"of 90% intervals; {note}")
        zero = Quality([Prediction(0.0, 1.0)] * len(found), quality.gains, quality.errors)
        yield Figure(f"prediction_rmse_{source}_zero", zero.rmse, note="points; if no gain were predicted")


def _decoded(pool: DecodedSets, known: Sequence[SetGain], splits: int) -> Iterator[tuple[Prediction, float, float]]:
    """The prediction of each set from dev questions, its gain on others, and the gain's error."""
    chance = np.random.default_rng(0)
    fitted = {each.models: fit_decode(known, without=each.models) for each in set_gains(pool)}
    # A pool whose dev questions are the judges has to be split.
    for _ in range(splits if pool.dev is pool.judge else 1):
        order = chance.permutation(pool.questions)
        first = pool.questions * 3 // 5 if pool.dev is pool.judge else 0
        rest = order[first:]
        for models, coefficients in fitted.items():
            dev = [pool.dev[model].part(order[:first].tolist()) if first else pool.dev[model] for model in models]
            best = max((pool.judge[model].part(rest.tolist()) for model in models), key=lambda each: each.accuracy)
            differences = pool.sets[models][rest] - scores(best)
            error = 100 * float(differences.std()) / len(rest) ** 0.5
            with predicting_by(coefficients):
                predicted = Predictor(dev).decoded(models)
            yield predicted, 100 * float(differences.mean()), error


def recommended_figures(pools: Sequence[DecodedSets], splits: int) -> Iterator[Figure]:
    """What sets that decode together gain on fresh questions where the advice is to run them, over the best member.

    All sets inside the rules are tried, each as the only strategy beside its members. By the answers to dev and
    held-out questions, and by what sets came to on other tasks, it is recommended where its expected gain is worth its
    calls; other questions judge it.
    """
    for source in sorted({pool.source for pool in pools}):
        gains: dict[tuple[str, Members], list[float]] = {}
        tried = 0
        for pool in pools:
            if pool.source != source:
                continue
            others = [each for other in pools if other.task != pool.task for each in set_gains(other)]
            with predicting_by(fit_decode(others)):
                for models, found in _fresh_gains(pool, splits):
                    tried += 1
                    if found is not None:
                        gains.setdefault((pool.task, models), []).append(found)
        each = [gain for own in gains.values() for gain in own]
        note = f"{tried} trials of sets inside the rules, {splits} splits"
        yield Figure(f"recommended_share_{source}", len(each) / max(tried, 1), note=f"of {note}")
        # A set that few splits recommend had luck on the questions that are not fresh.
        often = [float(np.mean(own)) for own in gains.values() if 2 * len(own) >= splits]
        if often:
            note = f"points over the best member on fresh questions; {note}"
            yield Figure(f"recommended_gain_{source}", float(np.mean(each)), limit="at least -0.5", note=note)
            note = f"the worst of {len(often)} sets that at least half of the splits recommend; {note}"
            yield Figure(f"recommended_worst_{source}", min(often), limit="at least -1.5", note=note)


def _fresh_gains(pool: DecodedSets, splits: int) -> Iterator[tuple[Members, float | None]]:
    """Each set inside the rules, and its gain on fresh questions by each split; None where it is not recommended."""
    chance, task = np.random.default_rng(0), load_task("word_problems", split="test")
    parts = 3 if pool.dev is pool.judge else 2
    for _ in range(splits):
        *known, fresh = np.array_split(chance.permutation(pool.questions), parts)
        first = pool.judge if parts == 3 else pool.dev
        on_dev = known[0].tolist() if parts == 3 else list(range(len(next(iter(first.values())).answers)))
        for models, right in pool.sets.items():
            dev = AnsweredSplit(task, {name: first[name] for name in models}).part(on_dev)
            if len(select([each.standing for each in dev.profiles.values()], Limits()).selected) < len(models):
                continue
            held_out = AnsweredSplit(task, {name: pool.judge[name] for name in models}).part(known[-1].tolist())
            graded = [Answer(str(n), None, None, float(right[n]), "eos") for n in known[-1]]
            decoded = Decoded(models, "unite")
            held_out = replace(held_out, written={decoded: Replay(Profile("unite", tuple(graded)))})
            expected = expected_gain(decoded, dev, held_out)
            members = {name: [*dev.profiles[name].answers, *held_out.profiles[name].answers] for name in models}
            best = max(models, key=lambda name: sum(answer.score for answer in members[name]))
            gain = 100 * float(right[fresh].mean()) - pool.judge[best].part(fresh.tolist()).accuracy
            yield models, gain if expected > least_gain(len(models), None) else None


def predicting_by(coefficients: Mapping[str, Any]) -> AbstractContextManager[object]:
    """Let the product predict by these coefficients, which were fitted without what is judged."""
    return patch.object(predict, "read_coefficients", lambda: coefficients)


if __name__ == "__main__":
    sys.exit(main())
