"""Pools of real models, drawn from as a user would meet them: some open models, dev questions, and questions to judge.

The three pools have the answers of real models to real questions; `advisor.logs.pool` has their form. They are no part
of this repository: benchmarks/results/pools.json keeps what was measured on them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from advisor.advice.comparison import fitting_voters, training_data
from advisor.advice.rules import rank, select
from advisor.logs.join import DEV_SIZE, JoinedLogs, join_logs
from advisor.records import Limits, Profile
from advisor.statistics import Floats, scores
from advisor.strategies.replay import codes_of
from advisor.strategies.strategy import AnsweredSplit, TrainingData
from advisor.strategies.vote import asked_until_decided, near_copies
from benchmarks._measure import ROOT
from ensemble.methods.voting import Codes, vote

POOLS = ROOT.parent / "shared" / "pools"
NAMES = ("math-l5", "crux", "mmlu-pro")
ANSWERED = (*NAMES, "lineage-2025", "bfcl-part")
"""All pools whose models' answers are known, not only their scores."""
OPEN = (
    *("*Llama-*", "Athene-70B", "Qwen*", "deepseek-v2*", "gemma-*", "jamba-1.5-large", "c4ai-command-r-v01"),
    *("Mistral-*", "Mixtral-*", "mathstral-7B", "Yi-*", "Phi-3*"),
)
"""Globs of the models whose weights could be downloaded when they answered."""
COPIES = ("Llama-3.1-405B-Inst-fp8", "Meta-Llama-3.1-405B-Instruct@hyperbolic")
"""Other hosts of a model that a pool also has from a third host."""
SPREAD = 25.0
"""Points that the models of a sub-pool are apart at most."""
SIZES = (4, 8)
LARGE_SIZES = (10, 14)
_HELD_OUT = 300
_JUDGED = 2000
"""Questions that judge the learned strategies."""
ANY = 10**6
_NO_LENGTH = Limits(max_length_ratio=sys.float_info.max)

Places = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class RealPool:
    """The open models of a pool and their answers to all questions.

    Attributes:
        name: The name of the pool's file without its extensions.
        logs: The answers as the product reads them.
        models: The open models, in the order of the logs.
        codes: Their extracted answers as numbers, models by questions.
        right: Their scores, models by questions, 0 or 1.
    """

    name: str
    logs: JoinedLogs
    models: tuple[str, ...]
    codes: Codes
    right: Floats

    def rows(self, models: Sequence[str]) -> list[int]:
        """The rows of some models in `codes` and `right`."""
        return [self.models.index(model) for model in models]

    def profile(self, model: str, places: Places) -> Profile:
        """A model's answers to some questions."""
        return self.logs.profiles[model].part(places.tolist())


@lru_cache(maxsize=2)
def read_pool(name: str, folder: Path = POOLS) -> RealPool:
    """Read a pool as ``select --logs`` does; all models of a pool that is not in :data:`NAMES` count as open.

    Raises:
        InputError: The file is not there, or cannot be read.
    """
    logs = join_logs([str(folder / f"{name}.jsonl.xz")])
    models = tuple(
        model
        for model in logs.profiles
        if name not in NAMES or (model not in COPIES and any(fnmatchcase(model, pattern) for pattern in OPEN))
    )
    profiles = [logs.profiles[model] for model in models]
    return RealPool(name, logs, models, codes_of(profiles), np.stack([scores(profile) for profile in profiles]))


@dataclass(frozen=True, slots=True)
class SubPool:
    """Some open models of a pool, and a random split of its questions.

    Attributes:
        pool: The pool.
        models: The models, in random order.
        dev: Places of the questions to choose by.
        rest: All others, in random order.
    """

    pool: RealPool
    models: tuple[str, ...]
    dev: Places
    rest: Places

    @property
    def held_out(self) -> Places:
        """Questions for a recommendation: at most 300, and at most half of the rest."""
        return self.rest[: min(_HELD_OUT, len(self.rest) // 2)]

    @property
    def judge(self) -> Places:
        """Questions that judge a recommendation: others of the rest, at most 2,000."""
        return self.rest[len(self.held_out) :][:_JUDGED]

    def dev_profiles(self) -> list[Profile]:
        """The models' answers to the dev questions."""
        return [self.pool.profile(model, self.dev) for model in self.models]

    def answered(self, split: str, places: Places) -> AnsweredSplit:
        """Some of the questions with the models' answers, as the product compares strategies on them."""
        profiles = {model: self.pool.profile(model, places) for model in self.models}
        return AnsweredSplit(self.pool.logs.task(split, places.tolist(), 0), profiles)

    def taught(self, places: Places) -> TrainingData:
        """What strategies learn from some of the questions."""
        given = self.answered("dev", places)
        copies = near_copies(sorted(given.profiles.values(), key=rank))
        return training_data(given, Limits(), can_vote=True, copies=copies)

    def best(self, places: Places) -> float:
        """The points of the best single model in hindsight."""
        return 100 * float(self.pool.right[self.pool.rows(self.models)][:, places].mean(axis=1).max())


def sub_pools(
    pool: RealPool, count: int, sizes: tuple[int, int] = SIZES, spread: float = SPREAD, seed: int = 0
) -> Iterator[SubPool]:
    """Random sub-pools: a random best model, and random others that are at most `spread` points behind it.

    Args:
        pool: The pool.
        count: How many.
        sizes: The fewest and the most models; fewer if the pool has not so many within `spread`.
        spread: In points, by all questions.
        seed: Of the draw.
    """
    chance = np.random.default_rng(seed)
    accuracies = 100 * pool.right.mean(axis=1)
    behind = accuracies[:, None] - accuracies[None, :]
    close = (behind >= 0) & (behind <= spread) & ~np.eye(len(accuracies), dtype=bool)
    most = int(close.sum(axis=1).max()) + 1
    for _ in range(count):
        size = min(int(chance.integers(sizes[0], sizes[1], endpoint=True)), most)
        first = int(chance.choice(np.flatnonzero(close.sum(axis=1) >= size - 1)))
        others = chance.choice(np.flatnonzero(close[first]), size - 1, replace=False)
        models = [pool.models[place] for place in chance.permutation([first, *others.tolist()])]
        yield SubPool(pool, tuple(models), *split(pool, chance))


def split(pool: RealPool, chance: np.random.Generator) -> tuple[Places, Places]:
    """Random dev questions, at most 300 and at most half of all, and the others."""
    order = chance.permutation(pool.right.shape[1])
    size = min(DEV_SIZE, len(order) // 2)
    return order[:size], order[size:]


@dataclass(frozen=True, slots=True)
class Ballot:
    """A vote on some questions.

    Attributes:
        right: The score of the answer to each question, between 0 and 1; a mean where chance decides ties.
        models: How many models vote.
        calls: How many of them are asked, on average.
    """

    right: Floats
    models: int
    calls: float

    @property
    def points(self) -> float:
        """Accuracy, in points."""
        return 100 * float(self.right.mean())


def ballot(pool: RealPool, voters: Sequence[str], places: Places) -> Ballot:
    """Let models vote on some questions, the most accurate on dev first."""
    rows = pool.rows(voters)
    codes, right = pool.codes[rows][:, places], pool.right[rows][:, places]
    picked = np.take_along_axis(right, vote(codes)[None], axis=0)[0]
    return Ballot(picked, len(rows), float(asked_until_decided(codes).mean()))


def voter_sets(profiles: Sequence[Profile]) -> dict[str, tuple[str, ...]]:
    """The models that each way to choose takes, the most accurate on dev first, by the name of the way."""
    standings = [profile.standing for profile in profiles]
    limits = {
        "single": Limits(max_voters=1),
        "top3": Limits(vote_gap=100, max_voters=3),
        "all": Limits(vote_gap=100, max_voters=ANY),
        "default": Limits(),
        **{f"gap{gap}": Limits(vote_gap=gap, max_voters=ANY) for gap in (5, 10, 15, 20, 25)},
        **{f"calls{calls}": Limits(max_voters=calls) for calls in (3, 4, 6, 7)},
    }
    return {
        "rules": select(standings, Limits()).selected,
        "rules_no_length": select(standings, _NO_LENGTH).selected,
        **{name: fitting_voters(profiles, rules) for name, rules in limits.items()},
    }
