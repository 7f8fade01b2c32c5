"""Votes and votes on the answers of real models, and the benchmark that measures them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from advisor.advice.rules import fitting_voters
from advisor.records import Limits
from advisor.strategies.vote import asked_until_decided
from benchmarks.studies import pools
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


@pytest.mark.parametrize("name", NAMES)
def test_sub_pools_have_models_within_25_points_and_judge_on_other_questions(name: str) -> None:
    pool = real(name)
    for sub in sub_pools(pool, 20):
        accuracies = 100 * pool.right[pool.rows(sub.models)].mean(axis=1)
        assert np.ptp(accuracies) <= 25
        assert 4 <= len(set(sub.models)) <= 8
        parts = [set(places.tolist()) for places in (sub.dev, sub.held_out, sub.judge)]
        assert len(set.union(*parts)) == sum(map(len, parts))


def test_the_benchmark_measures_every_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    real("math-l5")
    assert pools.main(["--quick", "--json", "--threads", "1"]) == 0
    printed = json.loads(capsys.readouterr().out)
    for name in ("gain_rules", "gain_default", "regret_recommended", "gain_learned", "large_gain_calls7"):
        assert printed[f"math_l5_{name}"] is not None, name
    # A set with one model more cannot be cheaper, and never voting cannot beat the best in hindsight.
    assert printed["crux_calls_calls3"] <= printed["crux_calls_gap15"]
    assert printed["crux_regret_never"] >= 0


def test_without_the_pools_the_benchmark_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pools.main(["--json", "--pools", str(tmp_path), "--save", str(tmp_path)]) == 0
    assert "nothing can be measured" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
