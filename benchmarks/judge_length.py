"""Preferences at equal lengths against the published ones of AlpacaEval 2: ``python -m benchmarks.judge_length TABLE``.

``TABLE`` is the leaderboard ``weighted_alpaca_eval_gpt4_turbo_leaderboard.csv``, which the package alpaca_eval has in
``leaderboards/data_AlpacaEval_2``. The preferences and lengths are those of ``../shared/pools``: the same verdicts of
the same judge, on 805 questions. Smaller pools are random ones. Half a minute.
"""

from __future__ import annotations

import csv
import json
import lzma
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from advisor.judge.corrected import length_controlled
from advisor.statistics import Floats
from benchmarks._measure import Figure, arguments, progress, tell
from benchmarks.studies._pools import POOLS

RIVAL = "gpt4_1106_preview"
SIZES = (1, 2, 3, 5, 10, 20)
GAMED = ("NullModel", "gpt4_gamed")


def read(published: Mapping[str, float]) -> tuple[list[str], Floats, Floats]:
    """The models with a published figure, their preferences, and how much longer their responses are."""
    with lzma.open(POOLS / "alpaca-eval-2.jsonl.xz", "rt", encoding="utf-8") as file:
        lines = [json.loads(line)["models"] for line in file]
    names = sorted({name for line in lines for name in line if name in published and name != RIVAL})
    nothing = (None, np.nan, np.nan)
    said, length = (
        np.array([[line.get(name, nothing)[place] for line in lines] for name in names], np.float64) for place in (1, 2)
    )
    return names, said, length - np.array([line[RIVAL][2] for line in lines], np.float64)


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print, and keep where asked."""
    parser = arguments(__doc__ or "")
    parser.add_argument("table", type=Path)
    options = parser.parse_args(given)
    with options.table.open(encoding="utf-8", newline="") as file:
        published = {row[""]: float(row["length_controlled_winrate"]) for row in csv.DictReader(file)}
    names, said, longer = read(published)
    truth = np.array([published[name] for name in names])

    def figures(name: str, differences: Floats, note: str) -> list[Figure]:
        note = f"{note}; points from the published figures, of {len(differences)}"
        return [
            Figure(f"{name}_mean_difference", float(differences.mean()), note=note),
            Figure(f"{name}_mean_absolute", float(np.abs(differences).mean()), note=note),
            Figure(f"{name}_largest", float(np.abs(differences).max()), note=note),
        ]

    raw, found = 100 * np.nanmean(said, axis=1), length_controlled(said, longer)
    told = [
        *figures("raw", raw - truth, "the preferences themselves"),
        *figures("all", found - truth, f"{len(names)} models together"),
        Figure("all_spearman", float(stats.spearmanr(found, truth).statistic), note="with the published figures"),
    ]
    for name in GAMED:
        place = names.index(name)
        note = f"at equal lengths; {raw[place]:.1f} as they are, {truth[place]:.1f} published"
        told.append(Figure(name, float(found[place]), note=note))
    for size in SIZES:
        progress(f"benchmarks.judge_length: pools of {size}")
        chance = np.random.default_rng(size)
        differences = []
        for _ in range(2 if options.quick else 40):
            chosen = chance.choice(len(names), size, replace=False)
            differences.append(length_controlled(said[chosen], longer[chosen]) - truth[chosen])
        told += figures(f"pools_of_{size}", np.concatenate(differences), f"random pools of {size}")
    tell("judge_length", told, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
