"""Sets that were decoded together, of small models and of real ones, beside what their members answered alone.

The zoo (results/zoo.json) has all pairs and triples of eight small models on one task, the real models
(results/real.json) sets of some models on each of several tasks. From both come the coefficients that predict a set's
gain (`benchmarks.studies.prediction`), and what other limits of the rules would have come to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from advisor.advice.predict import Predictor
from advisor.advice.rules import select
from advisor.records import Answer, Limits, Profile, Standing, length_ratio, within
from advisor.statistics import Floats
from benchmarks._measure import RESULTS, Figure
from benchmarks.studies.real import default_sets, unpacked
from benchmarks.studies.zoo import KEPT_WEIGHTS, Outcomes, answer_of

REAL = RESULTS / "real.json"
MAX_GAPS = (5.0, 10.0, 15.0, 20.0, 100.0)
MAX_RATIOS = (1.5, 2.0, 3.0, 100.0)

Members = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DecodedSets:
    """The models of a pool on a task, and the sets of them that were decoded.

    Attributes:
        source: ``zoo`` or ``real``.
        task: The task.
        standings: What the rules read of each model, by name.
        dev: Each model's answers to the dev questions.
        judge: Those to the questions that the sets answered.
        sets: A set's scores on these, 0 to 1, by its members, the primary first.
    """

    source: str
    task: str
    standings: Mapping[str, Standing]
    dev: Mapping[str, Profile]
    judge: Mapping[str, Profile]
    sets: Mapping[Members, Floats]

    @property
    def questions(self) -> int:
        """How many questions the sets answered."""
        return len(next(iter(self.judge.values())).answers)

    def ordered(self, models: Sequence[str]) -> Members:
        """A set's members in the order in which they were decoded."""
        return next((members for members in self.sets if set(members) == set(models)), ())


class SetGain(NamedTuple):
    """What a set promises by its members' answers to some questions, and gains on them, over its best member."""

    models: Members
    promise: float
    """The mean of vote and oracle, in points."""
    gain: float
    """In points."""
    chooses: bool
    """Whether it scores options."""


def of_zoo(outcomes: Outcomes) -> DecodedSets:
    """The sets of the zoo; all its questions are both dev questions and judges."""
    standings = {name: profile.standing for name, profile in outcomes.profiles.items()}
    sets = {models: right.astype(float) for models, right in outcomes.sets.items()}
    return DecodedSets("zoo", "word_problems", standings, outcomes.profiles, outcomes.profiles, sets)


def of_real(path: Path = REAL) -> list[DecodedSets]:
    """The sets of the real models, by task."""
    table = json.loads(path.read_text(encoding="utf-8"))["table"]
    return [
        DecodedSets(
            "real",
            name,
            {row["model"]: Standing(row["model"], row["dev"], row["mean_length"]) for row in task["models"]},
            {row["model"]: _profile(row, "dev_", task["metric"]) for row in task["models"]},
            {row["model"]: _profile(row, "", task["metric"]) for row in task["models"]},
            {tuple(row["members"]): unpacked(row["scores"]) for row in default_sets(task)},
        )
        for name, task in table.items()
    ]


def _profile(row: Mapping[str, Any], split: str, metric: str) -> Profile:
    """The answers of a model, whose texts and options are not kept."""
    scores = unpacked(row[f"{split}scores"])
    digits = row[f"{split}answers"]
    options = (None, None) if metric == "choice" else ()
    answers = (
        Answer(str(n), None, None if digits is None else answer_of(digits[n]), float(score), "eos", options=options)
        for n, score in enumerate(scores)
    )
    return Profile(row["model"], tuple(answers))


def set_gains(pool: DecodedSets) -> list[SetGain]:
    """What each set promises and gains, of those whose lengths fit by the rules."""
    limit = Limits().max_length_ratio
    found = []
    for models, right in pool.sets.items():
        lengths = [pool.standings[model].mean_length for model in models]
        ratios = [length_ratio(*pair) for pair in combinations(lengths, 2)]
        if all(ratio is None or within(ratio, limit) for ratio in ratios):
            profiles = [pool.judge[model] for model in models]
            best = max(profile.accuracy for profile in profiles)
            promise = sum(Predictor(profiles).shares(models)) / 2
            chooses = profiles[0].standing.chooses
            found.append(SetGain(models, promise - best, 100 * float(right.mean()) - best, chooses))
    return found


def weight_figures(zoo: DecodedSets, path: Path = KEPT_WEIGHTS) -> Iterator[Figure]:
    """What sets of the zoo inside the rules gain with the weights of right texts, beside equal weights."""
    kept = json.loads(path.read_text(encoding="utf-8"))["sets"]
    gains = []
    for names, own in kept.items():
        members = zoo.ordered(names.split(" "))
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(own["right"]), dtype=np.uint8))[: zoo.questions]
        best = max(zoo.judge[name].accuracy for name in members)
        gains.append((100 * float(bits.mean()) - best, 100 * float(zoo.sets[members].mean()) - best))
    weighted, equal = np.array(gains).T
    note = f"points, {len(gains)} sets inside the rules on {zoo.questions} questions"
    yield Figure("weights_over_equal_zoo", float((weighted - equal).mean()), note=f"{note}; with likelihood over equal")
    for name, values in (("likelihood", weighted), ("equal", equal)):
        yield Figure(f"weights_{name}_worst_zoo", float(values.min()), note=f"over the best member, the worst; {note}")


def limit_figures(pools: Sequence[DecodedSets]) -> Iterator[Figure]:
    """What decoding the set of the rules comes to, by the limits of the rules: the mean of all pools of the models."""
    sources = {pool.source: [each for each in pools if each.source == pool.source] for pool in pools}
    tried = {f"max_gap_{value:g}": Limits(max_gap=value) for value in MAX_GAPS}
    tried |= {f"max_length_ratio_{value:g}": Limits(max_length_ratio=value) for value in MAX_RATIOS}
    for name, rules in tried.items():
        for source, own in sources.items():
            gains = [list(_rules_gains(pool, rules)) for pool in own]
            note = (
                f"points over the best single model by dev; the set of the rules, else this model; "
                f"{sum(map(len, gains))} pools of 2 or more of the models, {len(own)} tasks that count the same"
            )
            mean = float(np.mean([np.mean(each) for each in gains]))
            yield Figure(f"rules_{name}_{source}".replace(".", ""), mean, note=note)


def _rules_gains(pool: DecodedSets, rules: Limits) -> Iterator[float]:
    """The gain of the rules' set over the primary in each pool of some of the models; 0 where they leave one model."""
    for size in range(2, len(pool.standings) + 1):
        for models in combinations(pool.standings, size):
            chosen = select([pool.standings[model] for model in models], rules).selected
            members = pool.ordered(chosen)
            if len(chosen) < 2:
                yield 0.0
            elif members:
                yield 100 * float(pool.sets[members].mean()) - pool.judge[chosen[0]].accuracy
