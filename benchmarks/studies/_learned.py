"""The learned vote: what it gains over the default vote on pools, and how often a false gain is shown.

``python -m benchmarks.studies._learned`` prints the latter alone, which is a part of `benchmarks.studies.advice`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from advisor.advice.comparison import compare_strategies
from advisor.choose.rules import fitting_voters
from advisor.records import ALPHA, Answer, Limits, Profile
from advisor.statistics import resampled_means
from advisor.strategies import usual
from advisor.strategies.learned_vote import LearnedVote
from advisor.strategies.single import Single
from advisor.strategies.strategy import FEWEST_VOTERS, AnsweredSplit, TrainingData
from advisor.tasks.task import Example, Signature, Task
from benchmarks._measure import Figure, arguments, progress, tell
from benchmarks.studies._pools import ANSWERED, SubPool, read_pool, sub_pools

LABELS = (100, 200, 600)
TARGETS = {"math-l5": 0.8, "crux": 0.4, "mmlu-pro": 0.5, "bfcl-part": 0.0}
MODELS = 8
DRAWS = 60
"""Of each simulated setting."""
ACCURACIES = {"10%": 0.1, "60%": 0.6, "97%": 0.97}
_QUESTIONS = 100
_CLUSTER = 5
_OPTIONS = {"10%": 10, "60%": 2, "97%": 2}
"""Answers among which all models guess where they do not know."""


def learned_figures(folder: Path, count: int) -> Iterator[Figure]:
    """The gains on the sub-pools of each pool, learned from some labels and judged by other questions."""
    for name in [each for each in ANSWERED if (folder / f"{each}.jsonl.xz").is_file()]:
        pool, key = read_pool(name, folder), name.replace("-", "_")
        values: dict[str, list[float]] = defaultdict(list)
        for sub in sub_pools(pool, count):
            for labels in LABELS:
                _measure(sub, labels, values)
        for row, own in values.items():
            means = np.sort(resampled_means(np.array(own)[:, None])[:, 0])
            cut = int(len(means) * 0.025)
            target = TARGETS.get(name) if row == f"gain_learned_minus_default_vote_{LABELS[-1]}" else None
            # The targets are those of all labels, which are 600 where a pool has enough questions.
            full = f"{key}_{row.removesuffix(f'_{LABELS[-1]}')}"
            limit = "" if target is None else f"at least {target:g}"
            yield Figure(full, float(np.mean(own)), float(means[cut]), float(means[-1 - cut]), limit, _note(own))


def _note(values: Sequence[float]) -> str:
    return f"{len(values)} sub-pools; mean with its 95% interval"


def _measure(sub: SubPool, labels: int, values: dict[str, list[float]]) -> None:
    """What a sub-pool's learned vote gains and costs, with so many labels in all, or as many as it has."""
    known = np.concatenate([sub.dev, sub.held_out])[:labels]
    given, judge = sub.answered("dev", known), sub.answered("held_out", sub.judge)
    dev = sub.answered("dev", known[: min(len(sub.dev), labels // 2)])
    voters = fitting_voters(list(dev.profiles.values()), Limits())
    default = usual(voters) if len(voters) >= FEWEST_VOTERS else Single(voters[:1])
    learned = next(LearnedVote.learn(TrainingData(given, voters[0], voters, can_vote=True)))
    points, calls = [], []
    for strategy in (learned, default):
        responses = [judge.profiles[name] for name in strategy.members]
        points.append(strategy.apply(responses, judge.task).accuracy)
        asked = strategy.calls(responses, judge.task, strategy.picks(responses, judge.task))
        calls.append(float(asked.sum(axis=0).mean()))
    values[f"gain_learned_minus_default_vote_{labels}"].append(points[0] - points[1])
    values[f"plain_vote_stays_{labels}"].append(float(learned.same_as is not None))
    if labels == LABELS[-1]:
        values["gain_learned"].append(points[0] - sub.best(sub.judge))
        values["calls_learned"].append(calls[0])
        values["calls_default_vote"].append(calls[1])


def false_figures(quick: bool, run: Callable[..., list[Any]]) -> Iterator[Figure]:
    """How often the learned vote of eight models is shown to gain where nothing can gain."""
    settings, count = list(product(ACCURACIES, (1, _CLUSTER))), 2 if quick else DRAWS
    progress(f"benchmarks.studies.advice: {count} learned votes in each of {len(settings)} settings")
    found = run(_draw, settings, [count] * len(settings))
    shares = [shown / count for shown, _ in found]
    worst = int(np.argmax(shares))
    half = 1.96 * math.sqrt(max(shares[worst] * (1 - shares[worst]), 1 / count) / count)
    accuracy, size = settings[worst]
    yield Figure(
        "false_shown_learned_vote",
        shares[worst],
        max(shares[worst] - half, 0.0),
        shares[worst] + half,
        "at most 0.05",
        f"{MODELS} equal models, {_QUESTIONS} + {_QUESTIONS} questions, p at most {ALPHA:g} before the correction for "
        f"several strategies; the worst of {len(settings)} settings: {accuracy} right, clusters of {size}; mean of all "
        f"{np.mean(shares):.3f}; the plain vote stays in {np.mean([stays for _, stays in found]) / count:.0%}; "
        f"{count} draws each",
    )


def _draw(setting: tuple[str, int], count: int) -> tuple[int, int]:
    """How many of some draws show a gain, and in how many the plain vote stays.

    Either all models know a question, or each guesses, so that all strategies have the same true accuracy.
    """
    accuracy, size = setting
    options = _OPTIONS[accuracy]
    knows = (ACCURACIES[accuracy] - 1 / options) / (1 - 1 / options)
    chance, shown, stays = np.random.default_rng(0), 0, 0
    for _ in range(count):
        dev, held_out = (_guesses(knows, options, size, split, chance) for split in ("dev", "held_out"))
        compared = compare_strategies(dev, held_out, can_vote=True)
        own = [each for each in compared.results if each.strategy.name == LearnedVote.KIND]
        shown += any(each.gain.p_no_gain <= ALPHA for each in own)
        stays += not own
    return shown, stays


def _guesses(knows: float, options: int, size: int, split: str, chance: np.random.Generator) -> AnsweredSplit:
    """Questions of a split, and the models' answers; of a cluster all are known, or none is, with the same guesses."""
    clusters = np.arange(_QUESTIONS) // size
    known = (chance.random(_QUESTIONS) < knows)[clusters]
    # The number 0 is right.
    guesses = chance.integers(0, options, (MODELS, _QUESTIONS))[:, clusters]
    answers = np.where(known, 0, guesses)
    examples = tuple(
        Example(f"{split} {n}", f"{split} {n}", f"{split} {n}", "0", cluster=f"{split} {own}" if size > 1 else None)
        for n, own in enumerate(clusters)
    )
    signature = Signature("guesses", "number", split, _QUESTIONS, 0, 0, "", ())
    task = Task("guesses", "number", split, examples, (), 1, 0, 0, None, (), "", signature)
    right = {
        f"m{row}": Profile(
            f"m{row}",
            tuple(
                Answer(each.id, str(code), str(code), float(code == 0), "eos")
                for each, code in zip(examples, codes, strict=True)
            ),
        )
        for row, codes in enumerate(answers.tolist())
    }
    return AnsweredSplit(task, right)


if __name__ == "__main__":
    tell("learned", list(false_figures(quick=False, run=lambda *given: list(map(*given)))), arguments("").parse_args())
