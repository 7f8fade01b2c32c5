"""Votes and votes on the answers of real models, and the benchmark that measures them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from advisor.advice.comparison import fitting_voters
from advisor.records import Limits
from advisor.strategies.vote import asked_until_decided
from benchmarks.studies._pools import NAMES, POOLS, RealPool, read_pool, sub_pools


def real(name: str) -> RealPool:
    if not (POOLS / f"{name}.jsonl.xz").is_file():
        pytest.skip(f"../shared/pools/{name}.jsonl.xz is not here")
    return read_pool(name)


def test_vote_of_the_three_most_accurate_save_15_percent_of_the_calls() -> None:
    means = []
    for pool in map(real, NAMES):
        voters = [fitting_voters(sub.dev_profiles(), Limits(vote_gap=100, max_voters=3)) for sub in sub_pools(pool, 40)]
        means.append(np.mean([asked_until_decided(pool.codes[pool.rows(each)]).mean() for each in voters]))
    # Each is a mean over a pool. Weak models agree on fewer questions, so hard questions save less.
    assert all(mean <= 0.88 * 3 for mean in means)
    assert np.mean(means) <= 0.85 * 3


def test_accuracies_of_joined_logs_are_the_published_ones() -> None:
    pool, summary = real("math-l5"), POOLS / "logs" / "zeroeval" / "math-l5.summary.json"
    published = {row["Model"]: row["Acc"] for row in json.loads(summary.read_text(encoding="utf-8"))}
    joined = {model: f"{profile.accuracy:.2f}" for model, profile in pool.logs.profiles.items()}
    assert len(joined) == 41
    assert joined == {model: published[model] for model in joined}
