"""How often the warnings on answers are raised, on random parts of pools: ``python -m benchmarks._warnings POOL``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from advisor.advice.doubts import run_doubts
from advisor.logs.join import JoinedLogs, join_logs

PARTS = 400
MODELS = 8
QUESTIONS = 300


def main(paths: Sequence[str]) -> int:
    """Print, for each pool, the doubts about all models together, and the share of its parts that have each doubt."""
    for path in paths:
        logs, found = join_logs([path]), Counter[str]()
        names, n = list(logs.profiles), len(logs.examples)
        chance, pairs = np.random.default_rng(0), Counter[str]()
        for _ in range(PARTS):
            models = chance.choice(len(names), min(MODELS, len(names)), replace=False)
            places = chance.permutation(n)[:QUESTIONS].tolist()
            doubts = doubts_of_part(logs, [names[model] for model in models], places)
            found.update({code for code, _ in doubts})
            pairs.update({" and ".join(sorted(named)) for code, named in doubts if code == "near_copies"})
        whole = sorted({code for code, _ in doubts_of_part(logs, names, range(n))})
        shares = {code: f"{count / PARTS:.3f}" for code, count in sorted(found.items())}
        print(
            f"{Path(path).name}: all models {whole}; {PARTS} parts of {MODELS} models, {QUESTIONS} questions {shares}"
        )
        print(f"  near copies: {'; '.join(f'{pair} ({count})' for pair, count in pairs.most_common(20))}")
    return 0


def doubts_of_part(logs: JoinedLogs, names: Sequence[str], places: Sequence[int]) -> list[tuple[str, tuple[str, ...]]]:
    """The doubts about some models on some questions, and the models that each names."""
    profiles = sorted((logs.profiles[name].part(places) for name in names), key=lambda each: -each.accuracy)
    return [(each.code, each.models) for each in run_doubts(profiles, logs.task("dev", places, 0), 100.0, None)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
