"""The table of pairs: BLEU against sacrebleu's own, the other measures against tables counted by hand."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu import corpus_bleu
from sacrebleu.metrics.bleu import BLEU
from sklearn.metrics import cohen_kappa_score

from advisor.advice import pairs
from advisor.advice.pairs import all_pairs, kappas, pairs_of_standings, pairwise_bleu
from advisor.records import Answer, Profile, Standing
from advisor.run.result import Pair
from ensemble.errors import UniteError


def profile(model: str, *answers: tuple[str | None, float]) -> Profile:
    given = enumerate(answers)
    return Profile(model, tuple(Answer(f"q{i}", text or "", text, score, "eos") for i, (text, score) in given))


def pair(a: Profile, b: Profile) -> Pair:
    [found] = all_pairs([a, b])
    return found


# --- BLEU ---


def test_bleu_is_sacrebleus_of_the_whole_corpus() -> None:
    models = [["It is 12, so 3.", "", "a b c d e ."], ["it is 12", "so 3", "a b c d e f g ."], ["12", "12", "a b c d"]]
    expected = [
        [corpus_bleu(hypotheses, [references], use_effective_order=True).score for references in models]
        for hypotheses in models
    ]
    assert pairwise_bleu(models).tolist() == expected


def test_bleu_of_many_long_responses_is_that_of_evenly_spaced_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [[f"{word * (number % 2)} {number} is what it is" for number in range(10)] for word in ("so", "thus")]
    monkeypatch.setattr(pairs, "_MOST_WORDS", 2 * 2 * 55 // 2)
    part = pairwise_bleu(models)
    monkeypatch.undo()
    assert part.tolist() == pairwise_bleu([own[::2] for own in models]).tolist() != pairwise_bleu(models).tolist()


def test_bleu_is_not_known_after_the_first_thirty_models() -> None:
    bleu = pairwise_bleu([["a b c d"]] * 32)
    assert bleu[:30, :30] == pytest.approx(100) and np.isnan(bleu[30:]).all() and np.isnan(bleu[:, 30:]).all()


def test_bleu_of_a_pair_is_the_mean_of_both_directions() -> None:
    a, b = ["a b c d e f", "g h i j"], ["a b c d", "g h i j k l m"]
    metric = BLEU(effective_order=True)
    there, back = metric.corpus_score(a, [b]).score, metric.corpus_score(b, [a]).score
    assert there != back
    profiles = [
        Profile(name, tuple(Answer(f"q{i}", text, None, 0.0, "eos") for i, text in enumerate(texts)))
        for name, texts in (("a", a), ("b", b))
    ]
    assert pair(*profiles).bleu == pytest.approx((there + back) / 2)


# --- The measures on right and wrong ---


def test_the_measures_of_a_table_counted_by_hand() -> None:
    a = profile("a", ("1", 1.0), ("2", 1.0), ("7", 0.0), ("8", 0.0), (None, 0.0))
    b = profile("b", ("1", 1.0), ("5", 0.0), ("7", 0.0), ("9", 0.0), (None, 0.0))
    found = pair(a, b)
    assert found.gap == pytest.approx(20)
    assert found.both_wrong_same == pytest.approx(1 / 5)  # the 7; no answer from either is no answer in common
    assert found.oracle == pytest.approx(40)


@pytest.mark.parametrize("score", [1.0, 0.0])
def test_kappa_is_undefined_where_both_always_are_right_or_always_wrong(score: float) -> None:
    assert pair(*(profile(name, ("x", score), ("x", score)) for name in "ab")).kappa is None


def test_kappa_is_0_where_one_is_always_right_and_the_other_is_not() -> None:
    assert pair(profile("a", ("x", 1.0), ("x", 1.0)), profile("b", ("x", 1.0), ("y", 0.0))).kappa == 0


def test_graded_scores_have_an_oracle_but_no_right_and_wrong() -> None:
    found = pair(profile("a", ("x", 0.4), ("y", 0.9)), profile("b", ("x", 0.6), ("y", 0.1)))
    assert found.oracle == pytest.approx(75)
    assert found.both_wrong_same is None
    assert found.kappa is None


scores = st.lists(st.tuples(st.sampled_from(["1", "2", None]), st.sampled_from([0.0, 1.0])), min_size=6, max_size=6)


@settings(max_examples=40, deadline=None)
@given(scores, scores)
def test_the_order_of_the_two_changes_no_measure(
    left: list[tuple[str | None, float]], right: list[tuple[str | None, float]]
) -> None:
    there = pair(profile("a", *left), profile("b", *right)).model_dump()
    back = pair(profile("b", *right), profile("a", *left)).model_dump()
    for measure in there.keys() - {"a", "b", "length_unit"}:
        assert there[measure] == pytest.approx(back[measure])


# --- The table ---


def test_every_pair_comes_once_in_the_order_of_the_candidates() -> None:
    profiles = [profile(name, ("x", 1.0)) for name in "cab"]
    assert [(found.a, found.b) for found in all_pairs(profiles)] == [("c", "a"), ("c", "b"), ("a", "b")]


def test_profiles_on_different_questions_are_not_compared() -> None:
    other = Profile("b", (Answer("other", "x", "x", 1.0, "eos"),))
    with pytest.raises(UniteError, match=r"a and b answered different questions \(q0 and other\)"):
        all_pairs([profile("a", ("x", 1.0)), other])


def test_only_the_pairs_of_the_hundred_most_accurate_are_measured() -> None:
    standings = [Standing(f"m{n}", 99.0 - n / 10, 20.0) for n in range(150)]
    found = pairs_of_standings(standings)
    assert len(found) == 4950
    assert {each.b for each in found} == {f"m{n}" for n in range(1, 100)}


def test_published_numbers_give_gap_and_length_ratio_alone() -> None:
    [found] = pairs_of_standings([Standing("a", 80.0, 20.0), Standing("b", 75.0, None)])
    assert (found.gap, found.length_ratio, found.bleu, found.kappa, found.oracle) == (5, None, None, None, None)


def test_a_ratio_that_is_not_finite_is_not_known() -> None:
    assert pair(profile("a", ("x", 1.0)), profile("b", (None, 0.0))).length_ratio is None


# --- Agreement ---


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9).flatmap(
        lambda n: st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=n, max_size=n), min_size=2, max_size=5)
    )
)
def test_kappa_is_scikit_learns(rows: list[list[float]]) -> None:
    found = kappas(np.array(rows))
    for (i, a), (j, b) in product(enumerate(rows), repeat=2):
        if {*a, *b} == {a[0]}:
            assert math.isnan(found[i, j])
        else:
            assert found[i, j] == pytest.approx(cohen_kappa_score(a, b, labels=[0, 1]))
