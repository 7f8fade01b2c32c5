"""The warning that scores follow length, on real judged and real counted scores, and where there is nothing to find."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from advisor.advice.verdict import follows_length, sanity_warnings
from advisor.records import Answer, Profile
from benchmarks._length_warning import profiles_of

POOLS = Path(__file__).resolve().parents[1].parent / "shared" / "pools"


@pytest.mark.skipif(not POOLS.is_dir(), reason="../shared/pools is not beside the project")
@pytest.mark.parametrize(("pool", "wanted"), [("wildbench-gpt4o", True), ("bfcl-part", False), ("crux", False)])
def test_judges_that_reward_length_are_found_and_counted_scores_are_not(pool: str, wanted: bool) -> None:
    assert follows_length(profiles_of(POOLS / f"{pool}.jsonl.xz")) == wanted


def test_at_most_one_of_twenty_pools_without_a_relation_raises_the_warning() -> None:
    chance = np.random.default_rng(0)
    found = [follows_length(pool(chance.permutation(12).tolist(), chance.permutation(12).tolist())) for _ in range(400)]
    assert 0 < np.mean(found) <= 0.07


@pytest.mark.parametrize(("lengths", "wanted"), [([1, 2, 3, 4, 5, 6], True), ([6, 5, 4, 3, 2, 1], False)])
def test_only_longer_responses_with_higher_scores_are_warned_of(lengths: list[int], wanted: bool) -> None:
    profiles = pool([1, 2, 3, 4, 5, 6], lengths)
    warnings = sanity_warnings(profiles, 75.0, None)
    assert follows_length(profiles) == wanted
    assert any("longer a model's responses" in each for each in warnings) == wanted
    assert not follows_length(profiles[:5])


def pool(right: list[int], lengths: list[int]) -> list[Profile]:
    """Models that are right so often of 20 questions, with responses of these lengths."""
    return [
        Profile(
            f"m{n}",
            tuple(Answer(str(q), None, None, float(q <= hits), "stop", logged_length=10 + size) for q in range(20)),
        )
        for n, (hits, size) in enumerate(zip(right, lengths, strict=True))
    ]
