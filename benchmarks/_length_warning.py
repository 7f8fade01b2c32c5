"""How often scores follow length, on random parts of pools: ``python -m benchmarks._length_warning POOL``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from advisor.advice.verdict import follows_length
from advisor.logs.pool import read
from advisor.logs.record import LogOptions
from advisor.logs.sources import LogSource
from advisor.records import Answer, Profile
from advisor.tables.rows import LeftOut
from advisor.tables.streams import Notes

PARTS = 400
MODELS = 8


def main(paths: Sequence[str]) -> int:
    """Print, for each pool, whether all models together raise the warning, and in which share of its parts it is."""
    for path in paths:
        profiles = profiles_of(Path(path))
        chance = np.random.default_rng(0)
        parts = [chance.choice(len(profiles), min(MODELS, len(profiles)), replace=False) for _ in range(PARTS)]
        share = np.mean([follows_length([profiles[place] for place in part]) for part in parts])
        print(f"{Path(path).name}: all {follows_length(profiles)}, parts of {MODELS} models {share:.3f}")
    return 0


def profiles_of(path: Path) -> list[Profile]:
    """The scores and the lengths of each model of a pool."""
    answers: dict[str, list[Answer]] = {}
    for each in read(LogSource("pool", path), LogOptions(), Notes()):
        if not isinstance(each, LeftOut):
            one = Answer(each.id, None, None, each.score or 0.0, "stop", logged_length=each.length)
            answers.setdefault(each.model, []).append(one)
    return [Profile(name, tuple(own)) for name, own in answers.items()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
