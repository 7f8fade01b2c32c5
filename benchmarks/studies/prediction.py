"""The prediction of gains: ``python -m benchmarks.studies.prediction --save``, a minute; it needs ../shared/pools.

It fits the coefficients of `advisor.advice.predict` and says how well they predict sets that they were not fitted on:
votes of 3 to 5 models in the pool that was left out, one of five (300 dev questions; other questions tell the gain),
and sets that decode together, in the zoo (results/zoo.json) and of real models (results/real.json), from sets of both
that share no model with them. A gain is over the best member in hindsight. It also says what other limits of the rules
would have come to for decoded sets. With --save the coefficients replace advisor/advice/prediction.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from advisor.advice.predict import COEFFICIENTS, Prediction, Predictor, gaps_of, read_coefficients
from advisor.records import Profile
from advisor.statistics import scores
from advisor.strategies.replay import codes_of
from benchmarks._measure import Figure, arguments, commit, progress, tell
from benchmarks.studies._decoded_sets import DecodedSets, SetGain, limit_figures, of_real, of_zoo, set_gains
from benchmarks.studies._pools import ANSWERED, NAMES, POOLS, RealPool, read_pool, split
from benchmarks.studies.zoo import read
from ensemble.methods.voting import vote

SETS = {3: 400, 4: 150, 5: 150}
"""Random sets of each size, for each split of a pool."""
SPLITS = 2
SPREAD = 30.0
"""Points between the best and the worst member of a set, at most."""
TRUTH = 2000
"""Questions that tell the gain of a vote, at most."""
TRUST = 30
"""How many sets the slope 1 counts for, the mean of vote and oracle as it is: few sets alone give a wild slope."""
ALPHA = 0.05
_CASES = 10
"""Splits of the zoo's questions into 300 dev questions and others."""


class Case(NamedTuple):
    """A vote: its size, the gaps on dev, the dev profiles of its members, and the true gain with its error."""

    size: int
    gaps: tuple[float, float]
    members: Sequence[Profile]
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
    cases = {name: list(vote_cases(pool, options.quick)) for name, pool in answered.items()}
    pools = [of_zoo(read()), *of_real()]
    figures = [
        *vote_figures(cases),
        *decoded_figures(pools, 1 if options.quick else _CASES),
        *limit_figures(pools),
    ]
    tell("prediction", figures, options)
    if options.save and not options.quick:
        count, sets = sum(map(len, cases.values())), [each for pool in pools for each in set_gains(pool)]
        kept = {
            "command": "python -m benchmarks.studies.prediction --save",
            "commit": commit(),
            "decode": {**fit_decode(sets), "fitted_on": fitted_on(pools), "real": real_gains(pools[1:])},
            "vote": {**fit_vote(cases), "fitted_on": f"{count:,} votes of 3 to 5 models in {', '.join(names)}"},
            # Fitted at 32cc36a26b4a, to routers by the text of the question.
            "route": read_coefficients()["route"],
        }
        COEFFICIENTS.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    return 0


def vote_cases(pool: RealPool, quick: bool = False) -> Iterator[Case]:
    """Random votes of a pool's open models on random splits of its questions."""
    chance = np.random.default_rng(0)
    accuracies = 100 * pool.right.mean(axis=1)
    for _ in range(1 if quick else SPLITS):
        dev, rest = split(pool, chance)
        judge = rest[:TRUTH]
        profiles = [pool.profile(model, dev) for model in pool.models]
        for size, count in SETS.items():
            close = [
                rows for rows in combinations(range(len(pool.models)), size) if np.ptp(accuracies[list(rows)]) <= SPREAD
            ]
            for place in chance.permutation(len(close))[: 10 if quick else count]:
                members = sorted((profiles[row] for row in close[place]), key=lambda each: -round(each.accuracy, 9))
                rows = pool.rows([member.model for member in members])
                right = pool.right[rows][:, judge]
                taken = np.take_along_axis(right, vote(pool.codes[rows][:, judge])[None], axis=0)[0]
                differences = taken - right[right.mean(axis=1).argmax()]
                error = 100 * float(differences.std()) / len(judge) ** 0.5
                gaps = gaps_of([member.accuracy for member in members])
                yield Case(size, gaps, members, 100 * float(differences.mean()), error)


def fit_vote(cases: dict[str, list[Case]]) -> dict[str, Any]:
    """The coefficients of votes; the deviation is that of pools which were left out, without the gains' own error.

    Args:
        cases: At least two pools by name.
    """
    intercept, *slopes = _least_squares([case for own in cases.values() for case in own])
    squares = []
    for left, own in cases.items():
        # With one pool alone left to fit on, the deviation is wide, as it should be.
        others = _least_squares([case for name, rest in cases.items() if name != left for case in rest])
        residuals = [case.gain - float(np.dot(others, (1, *case.gaps))) for case in own]
        squares.append(np.mean(np.square(residuals)) - np.mean([case.error**2 for case in own]))
    return {"intercept": intercept, "slopes": slopes, "deviation": float(np.sqrt(max(np.mean(squares), 0.25)))}


def _least_squares(cases: Sequence[Case]) -> list[float]:
    matrix = np.array([(1, *case.gaps) for case in cases])
    fitted: list[float] = np.linalg.lstsq(matrix, [case.gain for case in cases], rcond=None)[0].tolist()
    return fitted


def _predicted(case: Case, fitted: Mapping[str, Any]) -> Prediction:
    """The gain that is expected of a vote after the dev questions: by the gaps, updated by the vote's gain on them."""
    before = Predictor(case.members, {"vote": fitted}).vote_before([member.model for member in case.members])
    right = np.stack([scores(member) for member in case.members])
    differences = np.take_along_axis(right, vote(codes_of(case.members))[None], axis=0)[0] - right[0]
    n = len(differences)
    # One question more on each side keeps the error above 0 if no answer differs.
    return before.updated(100 * float(differences.mean()), 100 * (float(differences.var()) * n + 2) ** 0.5 / n)


def vote_figures(cases: dict[str, list[Case]]) -> Iterator[Figure]:
    """How well the votes of each pool are predicted by what is fitted on the others."""
    found = {}
    for left, own in cases.items():
        others = {name: rest for name, rest in cases.items() if name != left}
        fitted = fit_vote(others if len(others) > 1 else cases)
        for size in SETS:
            some = [case for case in own if case.size == size]
            predicted = [_predicted(case, fitted) for case in some]
            found[left, size] = Quality(predicted, [case.gain for case in some], [case.error for case in some])
    worst = max(found[left, 3].rmse for left in cases)
    yield Figure("prediction_rmse", worst, limit="at most 1.7", note="points; triples of the worst pool left out")
    for left in cases:
        key = left.replace("-", "_")
        for size in SETS:
            quality, end = found[left, size], "" if size == 3 else f"_{size}"
            note = f"{len(quality.gains)} votes of {size}, fitted on the other pools"
            yield Figure(f"prediction_rmse_{key}{end}", quality.rmse, note=f"points; {note}")
            yield Figure(f"prediction_coverage_{key}{end}", quality.coverage, note=f"of 90% intervals; {note}")


def fit_decode(sets: Sequence[SetGain], without: Collection[str] = ()) -> dict[str, Any]:
    """The coefficients of sets that decode together.

    Args:
        sets: What each set promises and gains.
        without: Models whose sets take no part, unless fewer than two sets are left, as in a quick try.
    """
    known = [each for each in sets if not set(each.models) & set(without)]
    if len(known) < 2:
        known = list(sets)
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
    """Intercept and slope, pulled towards the slope 1."""
    promises, gains = (np.array(each) for each in zip(*((each.promise, each.gain) for each in known), strict=True))
    off = promises - promises.mean()
    slope = 1 + float(off @ (gains - promises)) / max(float(off @ off) * (1 + TRUST / len(known)), 1e-9)
    return float(gains.mean() - slope * promises.mean()), slope


def fitted_on(pools: Sequence[DecodedSets]) -> str:
    """What the coefficients of sets that decode together were fitted on, in words."""
    zoo, *real = pools
    return (
        f"{len(set_gains(zoo))} sets of {len(zoo.standings)} small models (the zoo) on {zoo.questions} questions, and "
        f"{sum(len(set_gains(pool)) for pool in real)} sets of {len(real[0].standings)} real models on "
        f"{sum(pool.questions for pool in real):,} questions of {len(real)} tasks"
    )


def real_gains(real: Sequence[DecodedSets]) -> dict[str, float]:
    """How many sets of real models were decoded, how many of them gained, and their mean gain in points."""
    gains = [each.gain for pool in real for each in set_gains(pool)]
    return {"sets": len(gains), "gained": sum(gain > 0 for gain in gains), "mean": float(np.mean(gains))}


def decoded_figures(pools: Sequence[DecodedSets], splits: int) -> Iterator[Figure]:
    """How well sets are predicted from sets that share no model with them.

    Args:
        pools: The zoo and the real models.
        splits: Of the zoo's questions into dev questions and others; those of the real models are split already.
    """
    known = [each for pool in pools for each in set_gains(pool)]
    zoo = [each for pool in pools if pool.source == "zoo" for each in set_gains(pool)]
    for source, fitted_on, end in (("zoo", known, ""), ("real", known, ""), ("real", zoo, "_by_zoo")):
        found = [case for pool in pools if pool.source == source for case in _decoded(pool, fitted_on, splits)]
        if not found:
            continue
        quality = Quality(*zip(*found, strict=True))
        by = "of the zoo alone" if end else "of both sources"
        note = f"{len(found)} predictions, each from sets {by} that share no model with it"
        yield Figure(f"prediction_rmse_{source}{end}", quality.rmse, note=f"points; {note}")
        yield Figure(f"prediction_coverage_{source}{end}", quality.coverage, note=f"of 90% intervals; {note}")
        if not end:
            zero = Quality([Prediction(0.0, 1.0)] * len(found), quality.gains, quality.errors)
            yield Figure(f"prediction_rmse_{source}_zero", zero.rmse, note="points; if no gain were predicted")


def _decoded(pool: DecodedSets, known: Sequence[SetGain], splits: int) -> Iterator[tuple[Prediction, float, float]]:
    """The prediction of each set from dev questions, its gain on others, and the gain's error."""
    chance = np.random.default_rng(0)
    fitted = {each.models: {"decode": fit_decode(known, without=each.models)} for each in set_gains(pool)}
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
            yield Predictor(dev, coefficients).decoded(models), 100 * float(differences.mean()), error


if __name__ == "__main__":
    sys.exit(main())
