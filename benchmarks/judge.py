"""Win rates of judges, on simulated pools whose truth is known: ``python -m benchmarks.judge``, five minutes.

A response has a quality: its model's strength and a part of its own, which all its comparisons share. The judge prefers
the better response, with the chances of the Bradley-Terry model, and one of the two places. A set gives responses of
its own, and is compared with those of all candidates, as `advisor select` does it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from advisor.advice.comparison import compare_strategies
from advisor.advice.recommendation import recommend
from advisor.choose.rules import select
from advisor.judge.bradley_terry import bradley_terry
from advisor.judge.verdicts import Match
from advisor.records import ALPHA, Answer, Limits, Profile, Shown
from advisor.statistics import Floats
from advisor.strategies.decoded import Decoded
from advisor.strategies.strategy import AnsweredSplit
from advisor.tasks.task import Example, Signature, Task
from benchmarks._measure import Figure, arguments, progress, tell

MODELS = {"a": 0.6, "b": 0.4, "c": 0.0, "d": -0.3, "e": -0.7}
"""Candidates and their strengths, in log-odds."""
TOGETHER = "unite"
PLACE = 0.5
"""The judge's preference for the first response, in log-odds: 62% between two equal ones."""
SPREADS = (0.0, 1.0)
"""Standard deviations of a response's own part: none, or more than that of the models' strengths."""
QUESTIONS = (20, 80)
LEAD = 0.8
_MANY = 20_000
"""Questions that tell a true win rate."""


class Setting(NamedTuple):
    """Questions of a split, and the spread of the responses' own part."""

    questions: int
    spread: float


def verdicts(strengths: Mapping[str, float], setting: Setting, chance: np.random.Generator) -> Floats:
    """What each response scores if it is shown first: questions by models by models."""
    own = np.array(list(strengths.values()))
    quality = own + setting.spread * chance.normal(size=(setting.questions, len(own)))
    wins: Floats = chance.random((setting.questions, len(own), len(own))) < expit(
        quality[:, :, None] - quality[:, None, :] + PLACE
    )
    return wins.astype(np.float64)


def matches(names: Sequence[str], shown: Floats) -> list[Match]:
    """The verdicts of all pairs in both orders."""
    pairs = list(permutations(range(len(names)), 2))
    return [Match(str(q), names[i], names[j], float(scores[i, j])) for q, scores in enumerate(shown) for i, j in pairs]


def win_rates(names: Sequence[str], shown: Floats) -> Iterator[tuple[str, Floats]]:
    """The score of each response, as a judge of the advisor gives it: its opponents are the candidates."""
    results = (shown + 1 - shown.transpose(0, 2, 1)) / 2
    for place in range(len(names)):
        results[:, place, place] = 0.5
    for place, name in enumerate(names):
        yield name, results[:, place, : len(MODELS)].mean(axis=1)


def coverage(setting: Setting, runs: int, seed: int = 0) -> float:
    """The share of the 95% intervals of win rates that contain the true one."""
    chance = np.random.default_rng(seed)
    truth = {
        each.model: each.win_rate
        for each in bradley_terry(
            matches(list(MODELS), verdicts(MODELS, Setting(_MANY, setting.spread), chance)), resamples=1
        ).strengths
    }
    hits = []
    for run in range(runs):
        found = bradley_terry(matches(list(MODELS), verdicts(MODELS, setting, chance)), seed=run, resamples=400)
        hits += [each.win_rate_ci[0] <= truth[each.model] <= each.win_rate_ci[1] for each in found.strengths]
    return float(np.mean(hits))


def advise(lead: float, setting: Setting, chance: np.random.Generator) -> tuple[Shown, str, tuple[str, ...]]:
    """What the advice says of a set that is stronger than the best model by a lead, in log-odds.

    Returns:
        Whether the set's gain is shown, what is recommended, and the models that the rules choose.
    """
    strengths = {**MODELS, TOGETHER: max(MODELS.values()) + lead}
    splits = []
    for split in ("dev", "held_out"):
        examples = tuple(Example(f"{split}-{n}", f"{split} {n}", f"{split} {n}", "") for n in range(setting.questions))
        signature = Signature("open", "judge", split, len(examples), 0, 0, "", ())
        task = Task("open", "judge", split, examples, (), 1, 0, 0, None, (), "", signature)
        profiles = {
            name: Profile(
                name,
                tuple(
                    Answer(example.id, None, None, float(value), "eos", logged_length=100)
                    for example, value in zip(examples, values, strict=True)
                ),
            )
            for name, values in win_rates(list(strengths), verdicts(strengths, setting, chance))
        }
        together = profiles.pop(TOGETHER)
        splits.append((task, profiles, together))
    (dev, learned, _), (held_out, alone, together) = splits
    chosen = select([profile.standing for profile in learned.values()], Limits()).selected
    strategy = Decoded(chosen, TOGETHER)
    compared = compare_strategies(
        AnsweredSplit(dev, learned), AnsweredSplit(held_out, alone, {strategy: together}), can_vote=False
    )
    result = next(each for each in compared.results if each.strategy == strategy)
    recommendation = recommend(compared)
    return result.shown, recommendation.result.strategy.name if recommendation else "", chosen


def shown(lead: float, setting: Setting, runs: int, seed: int = 0) -> float:
    """How often the test shows a gain of the set."""
    chance = np.random.default_rng(seed)
    return float(np.mean([advise(lead, setting, chance)[0] == "yes" for _ in range(runs)]))


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and keep where asked."""
    options = arguments(__doc__ or "").parse_args(given)
    covered, tested = (2, 4) if options.quick else (100, 200)
    figures = []
    for questions, spread in product(QUESTIONS, SPREADS):
        setting = Setting(questions, spread)
        progress(f"benchmarks.judge: {questions} questions, own part {spread:g}")
        what = f"{questions} questions; a response's own part has a deviation of {spread:g} log-odds"
        name = f"{questions}_{spread:g}"
        figures += [
            Figure(f"coverage_{name}", coverage(setting, covered), limit="at least 0.92", note=what),
            Figure(f"false_gains_{name}", shown(0.0, setting, tested), limit=f"at most {1.5 * ALPHA:g}", note=what),
        ]
    strong = shown(LEAD, Setting(QUESTIONS[-1], SPREADS[-1]), tested)
    figures.append(
        Figure("power", strong, note=f"{QUESTIONS[-1]} questions; a set {LEAD:g} log-odds stronger than the best model")
    )
    tell("judge", figures, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
