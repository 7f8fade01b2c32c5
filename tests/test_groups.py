"""Gains by group: against a slow posterior, and in small simulations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from advisor.advice.groups import group_gains, pooled_groups
from advisor.run.result import GroupFigures


def simulate_groups(
    count: int, spread: float, changed: float, chance: np.random.Generator, *, mean: float = 0.02, cluster: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The difference, the group and the cluster of each question, and the true gain of each group."""
    sizes = np.exp(chance.uniform(np.log(5), np.log(200), count)).astype(np.int64)
    gains = np.clip(chance.normal(mean, spread, count), -0.9, 0.9)
    # As many questions must change as the gain needs.
    rates = np.clip(np.maximum(changed * chance.uniform(0.5, 1.5, count), np.abs(gains) + 0.03), 0, 1)
    groups = np.repeat(np.arange(count), sizes)
    within = np.concatenate([np.arange(size) // cluster for size in sizes])
    clusters = np.unique(groups * 1000 + within, return_inverse=True)[1]
    own, shared = chance.random(len(groups)), chance.random(int(clusters.max()) + 1)[clusters]
    luck = np.where(chance.random(len(groups)) < (2 / 3 if cluster > 1 else 0), shared, own)
    up, down = ((rates + sign * gains)[groups] / 2 for sign in (1, -1))
    differences = np.where(luck < up, 1.0, np.where(luck < up + down, -1.0, 0.0))
    return differences, groups, clusters, gains


def some(*parts: tuple[str, int, int, int]) -> tuple[np.ndarray, list[str]]:
    """Differences and groups, from (group, questions, gained, lost)."""
    values = [np.repeat([1.0, -1.0, 0.0], [gained, lost, n - gained - lost]) for _, n, gained, lost in parts]
    return np.concatenate(values), [name for name, n, _, _ in parts for _ in range(n)]


def gains_of(*parts: tuple[str, int, int, int]) -> tuple[GroupFigures, ...]:
    return group_gains(*some(*parts))


def test_a_group_that_loses_much_is_shown_to() -> None:
    gains = gains_of(("law", 900, 100, 25), ("small", 12, 0, 4), ("hurt", 100, 0, 40))
    assert {gain.group: gain.shown for gain in gains} == {"law": "yes", "small": "not_yet", "hurt": "no"}


@pytest.mark.parametrize("groups", [[], ["a"] * 4, [None] * 4, ["a", "a", None, None]])
def test_fewer_than_two_groups_are_no_groups(groups: list[str | None]) -> None:
    assert group_gains(np.zeros(len(groups)), groups) == ()


def test_a_group_for_each_of_many_questions_is_no_group() -> None:
    assert len(group_gains(np.zeros(1000), [str(n) for n in range(1000)])) == 1000
    assert group_gains(np.zeros(1001), [str(n) for n in range(1001)]) == ()


def test_questions_without_a_group_do_not_count() -> None:
    values, groups = some(("a", 20, 5, 1), ("b", 20, 2, 3))
    more = group_gains(np.append(values, [1.0, 1.0]), [*groups, None, None])
    assert more == group_gains(values, groups)


def test_few_questions_are_pulled_further_to_the_others() -> None:
    gains = {gain.group: gain for gain in gains_of(("a", 400, 40, 40), ("b", 20, 0, 4), ("c", 200, 0, 40))}
    # The observed gains of both are the same.
    assert gains["b"].observed == gains["c"].observed == -20
    assert gains["c"].gain < gains["b"].gain < 0


def test_three_equal_answers_do_not_make_a_group_certain() -> None:
    gains = gains_of(("a", 3, 0, 0), ("b", 200, 30, 10), ("c", 200, 10, 30))
    low, high = gains[0].gain_ci
    assert low < -5
    assert high > 5


def test_no_difference_at_all_has_narrow_intervals_around_zero() -> None:
    for gain in gains_of(("a", 100, 0, 0), ("b", 100, 0, 0), ("c", 100, 0, 0)):
        low, high = gain.gain_ci
        assert -10 < low < gain.gain < high < 10
        assert gain.shown == "not_yet"


def test_the_estimate_and_the_interval_are_those_of_a_slow_posterior() -> None:
    found = pooled_groups(*some(("a", 60, 20, 4), ("b", 30, 3, 6), ("c", 12, 1, 0), ("d", 90, 9, 9)), None, 0.05)
    assert found is not None
    means, errors = found.means, found.errors
    # Every pair of a centre and a spread, weighted by the probability of the observed gains.
    centres, spreads = np.meshgrid(np.linspace(-3, 3, 1501), np.linspace(0.0, 1, 1001))
    logs = sum(
        stats.norm.logpdf(mean, centres, np.hypot(error, spreads)) for mean, error in zip(means, errors, strict=True)
    )
    weights = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    chosen = np.random.default_rng(0).choice(weights.size, 400_000, p=weights.ravel())
    centre, spread = centres.ravel()[chosen], spreads.ravel()[chosen]
    luck = np.random.default_rng(1).standard_normal(len(chosen))
    for number, (mean, error) in enumerate(zip(means, errors, strict=True)):
        pull = error**2 / (error**2 + spread**2)
        truths = mean + pull * (centre - mean) + np.sqrt(1 - pull) * error * luck
        assert found.points[number] == pytest.approx(truths.mean(), abs=0.0015)
        ends = found.low[number], found.high[number]
        assert ends == pytest.approx(tuple(np.quantile(truths, (0.05, 0.95))), abs=0.005)


@pytest.mark.parametrize("cluster", [1, 5])
def test_intervals_cover_and_no_group_is_called_hurt_by_chance(cluster: int) -> None:
    # 60 tasks of 10 groups: a coverage of 95% is seen as 92% or more, a rate of 5% as 13% or less, with over 99%.
    covered, lost = [], 0
    chance = np.random.default_rng(0)
    for _ in range(60):
        for spread in (0.1, 0.0):
            values, places, clusters, truths = simulate_groups(
                10, spread, 0.3, chance, mean=0.02 if spread else 0.0, cluster=cluster
            )
            labels = [str(label) for label in clusters] if cluster > 1 else None
            groups = [f"{place:02}" for place in places]
            if spread:
                found = pooled_groups(values, groups, labels, 0.025)
                assert found is not None
                covered += ((found.low <= truths) & (truths <= found.high)).tolist()
            else:
                lost += any(gain.shown == "no" for gain in group_gains(values, groups, labels))
    assert np.mean(covered) >= 0.91
    assert lost / 60 <= 0.13


def test_clusters_make_an_estimate_less_sure() -> None:
    values, groups = some(("a", 100, 30, 0), ("b", 100, 10, 10))
    # Ten alike questions in each cluster.
    alone, together = (group_gains(values, groups, labels) for labels in (None, [str(n // 10) for n in range(200)]))
    assert np.ptp(together[0].gain_ci) > 2 * np.ptp(alone[0].gain_ci)
    assert (alone[0].shown, together[0].shown) == ("yes", "not_yet")


def test_graded_scores_have_gains_by_group() -> None:
    chance = np.random.default_rng(3)
    values = np.concatenate([chance.uniform(-0.2, 0.4, 60), chance.uniform(-0.4, 0.2, 60)])
    gains = group_gains(values, ["a"] * 60 + ["b"] * 60)
    assert [gain.shown for gain in gains] == ["yes", "no"]
    assert gains[0].observed == pytest.approx(100 * values[:60].mean())
