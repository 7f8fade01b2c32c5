"""Sets that were decoded together, of small models and of real ones, beside what their members answered alone.

The zoo (results/zoo.json) has all pairs and triples of eight small models on one task, the real models
(results/real.json) those of four models on three tasks. From both come the coefficients that predict a set's gain
(`benchmarks.studies.prediction`), and what other limits of the rules would have come to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from advisor.advice.comparison import expected_gain
from advisor.advice.predict import Predictor
from advisor.advice.recommendation import least_gain
from advisor.advice.rules import select
from advisor.records import Answer, Limits, Profile, Standing, length_ratio, within
from advisor.statistics import Floats
from advisor.strategies.strategy import AnsweredSplit, Decoded, Replay
from advisor.tasks import load_task
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
            {row["model"]: _profile(row, "dev_") for row in task["models"]},
            {row["model"]: _profile(row, "") for row in task["models"]},
            {tuple(row["members"]): unpacked(row["scores"]) for row in default_sets(task)},
        )
        for name, task in table.items()
    ]


def _profile(row: Mapping[str, Any], split: str) -> Profile:
    """The answers of a model, whose texts are not kept."""
    scores = unpacked(row[f"{split}scores"])
    digits = row[f"{split}answers"]
    answers = (
        Answer(str(n), None, None if digits is None else answer_of(digits[n]), float(score), "eos")
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
            found.append(SetGain(models, promise - best, 100 * float(right.mean()) - best))
    return found


def recommended_figures(pools: Sequence[DecodedSets], splits: int) -> Iterator[Figure]:
    """What sets that decode together gain on fresh questions where the advice is to run them, over the best member.

    All sets inside the rules are tried, each as the only strategy beside its members. By the answers to dev and
    held-out questions it is recommended where its expected gain is worth its calls; other questions judge it.
    """
    for source in sorted({pool.source for pool in pools}):
        gains: dict[tuple[str, Members], list[float]] = {}
        tried = 0
        for pool in pools:
            if pool.source == source:
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
