"""The predicted gain of a set: its features, its error, which sets are predicted, and what is said of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from advisor.advice import predict
from advisor.advice.predict import (
    Prediction,
    Predictor,
    gain_of_others,
    other_set_note,
    predicted_sets,
    real_sets,
)
from advisor.records import Answer, Limits, Profile
from advisor.run.result import PredictedFigures
from benchmarks.studies._decoded_sets import DecodedSets
from benchmarks.studies.prediction import recommended_figures
from ensemble.errors import UniteError

RULES = Limits(max_gap=100)
PLAIN = {
    "decode": {"intercept": 0.0, "slope": 1.0, "deviation": 2.0},
    "choose": {"intercept": -3.0, "slope": 0.0, "deviation": 2.0},
    "vote": {"log_odds": 0.2, "deviation": 0.4},
}


@pytest.fixture
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "read_coefficients", lambda: PLAIN)


def profile(model: str, answers: str, length: int = 1) -> Profile:
    """A letter a question: R is right, any other a wrong answer, a space one in which nothing was found."""
    return Profile(
        model,
        tuple(
            Answer(f"q{n}", "x" * length, letter.strip() or None, float(letter == "R"), "eos")
            for n, letter in enumerate(answers)
        ),
    )


def choosing(answered: Profile) -> Profile:
    """The same answers to questions with options."""
    answers = (dataclasses.replace(each, options=(-1.0, -2.0)) for each in answered.answers)
    return Profile(answered.model, tuple(answers))


def graded(model: str, scores: Sequence[float]) -> Profile:
    return Profile(model, tuple(Answer(f"q{n}", "x", "x", score, "eos") for n, score in enumerate(scores)))


def foreseen(models: str, points: float, rules: bool = False) -> PredictedFigures:
    ends = Prediction(points, 2.0).interval()
    return PredictedFigures(models=tuple(models), predicted_gain=points, predicted_gain_ci=ends, rules=rules)


@pytest.mark.parametrize(
    ("answers", "vote"),
    [
        (("R", "R", "a"), 1),
        (("R", "a", "b"), 1 / 3),
        (("R", "a", "a"), 0),
        (("R", " ", " "), 1 / 3),  # a missing answer equals no other
        (("R", "R", "R"), 1),
    ],
)
def test_a_vote_shares_ties_and_the_oracle_takes_the_best(answers: Sequence[str], vote: float) -> None:
    profiles = [profile(model, answer) for model, answer in zip("abc", answers, strict=True)]
    assert Predictor(profiles).shares("abc") == pytest.approx((100 * vote, 100))


def test_right_answers_are_the_same_however_they_are_spelt() -> None:
    spelt = [Profile(m, (Answer("q", m, m, 1.0, "eos"), Answer("r", "x", "x", 0.0, "eos"))) for m in "abc"]
    assert Predictor(spelt).shares("abc") == (50, 50)


def test_the_same_wrong_answer_to_another_question_is_no_agreement() -> None:
    profiles = [profile("a", "Ra"), profile("b", "aR"), profile("c", "bb")]
    assert Predictor(profiles).shares("abc")[0] == pytest.approx(100 / 3)


def test_graded_scores_vote_by_their_mean() -> None:
    predictor = Predictor([graded("a", [0.5, 1.0]), graded("b", [0.3, 0.2])])
    assert predictor.shares("ab") == (pytest.approx(50), pytest.approx(75))


@pytest.mark.usefixtures("_plain")
def test_a_set_is_predicted_at_the_mean_of_vote_and_oracle_against_the_best_of_all_models() -> None:
    profiles = [profile("best", "RRRRRx"), profile("b", "RRRxxx"), profile("c", "xxRRRx")]
    vote, oracle = Predictor(profiles).shares("bc")
    predicted = Predictor(profiles).decoded("bc")
    assert predicted.points == pytest.approx((vote + oracle) / 2 - 100 * 5 / 6)
    assert predicted.deviation > 2


@pytest.mark.usefixtures("_plain")
def test_a_set_that_scores_options_is_predicted_by_what_others_gained_over_their_best_member() -> None:
    texts = [profile("best", "RRRRRx"), profile("b", "RRRxxx"), profile("c", "xxRRRx")]
    options = [choosing(each) for each in texts]
    # b, the better of the two by its place, is two questions behind the best.
    assert Predictor(options).decoded("bc").points == pytest.approx(-3 - 100 * 2 / 6)
    assert Predictor(texts).decoded("bc").points > Predictor(options).decoded("bc").points


@pytest.mark.usefixtures("_plain")
def test_fewer_dev_questions_make_a_wider_interval() -> None:
    few, many = (Predictor([profile("a", "RRxR" * n), profile("b", "RxRx" * n)]).decoded("ab") for n in (5, 50))
    assert few.points == pytest.approx(many.points)
    assert few.deviation > many.deviation > 2


@pytest.mark.usefixtures("_plain")
@pytest.mark.parametrize(("accuracy", "scale"), [(50.0, 25.0), (90.0, 9.0)])
def test_a_vote_is_predicted_by_what_votes_gained_elsewhere_in_log_odds(accuracy: float, scale: float) -> None:
    before = gain_of_others("vote", accuracy)
    assert (before.points, before.deviation) == pytest.approx((0.2 * scale, 0.4 * scale))
    assert before.probability == pytest.approx(stats.norm.cdf(0.5))


def test_measuring_moves_an_expectation_by_the_precisions() -> None:
    after = Prediction(4.0, 2.0).updated(0.0, 2.0)
    assert (after.points, after.deviation) == (pytest.approx(2.0), pytest.approx(2**0.5))
    assert Prediction(4.0, 2.0).updated(1.0, 0.0).points == pytest.approx(1.0)


def test_the_expected_improvement_is_the_mean_of_what_exceeds_the_best() -> None:
    draws = np.random.default_rng(0).normal(1.0, 2.0, 400_000)
    for best in (-1.0, 0.0, 3.0):
        expected = float(np.maximum(draws - best, 0).mean())
        assert Prediction(1.0, 2.0).improvement(best) == pytest.approx(expected, abs=0.02)


def test_an_interval_leaves_the_level_on_each_side() -> None:
    assert Prediction(1.0, 2.0).interval(0.05) == pytest.approx((1 - 3.29, 1 + 3.29), abs=0.01)


# --- Which sets ---


def test_every_set_of_fitting_lengths_is_predicted_once_the_best_first() -> None:
    # c's responses are half as long as a's, and d's twice as long: each fits a, and the two do not fit each other.
    profiles = [
        profile("a", "RRRRR", 20),
        profile("b", "RRRRx", 20),
        profile("c", "RRRxx", 10),
        profile("d", "RRxxx", 40),
        profile("far", "RxxxR", 200),
    ]
    found = predicted_sets(profiles, Limits())
    assert {one.models for one in found} == {
        tuple(s) for s in ("ab", "ac", "ad", "bc", "bd", "abc", "abd", "acd", "bcd")
    }
    assert len(found) == 9
    gains = [one.predicted_gain or 0.0 for one in found]
    assert gains == sorted(gains, reverse=True)


def test_a_gap_over_the_limit_of_the_rules_excludes_no_set() -> None:
    found = predicted_sets([profile("a", "RRRR"), profile("b", "xxxR")], Limits())
    assert [(one.models, one.rules) for one in found] == [(("a", "b"), False)]


def test_the_set_of_the_rules_is_marked_whatever_its_size() -> None:
    profiles = [profile(model, "RRRR") for model in "abcdefg"]
    for most in (2, 3, 6):
        found = predicted_sets(profiles, dataclasses.replace(RULES, max_models=most))
        assert [one.models for one in found if one.rules] == [tuple("abcdefg")[:most]]


def test_candidates_that_answered_different_questions_are_refused() -> None:
    with pytest.raises(UniteError, match="a and b answered different questions"):
        predicted_sets([profile("a", "RRRR"), profile("b", "RRR")], RULES)


def test_with_many_candidates_only_the_best_are_combined() -> None:
    answers = ["R" * (60 - n) + "x" * n for n in range(40)]
    profiles = [profile(f"m{n:02}", text) for n, text in enumerate(answers)]
    found = predicted_sets(profiles, dataclasses.replace(RULES, max_models=5))
    assert len(found) < 5000
    assert max(model for one in found for model in one.models) < "m20"


# --- What is said ---


def test_the_advice_says_that_the_prediction_would_choose_otherwise_and_by_how_much() -> None:
    text = other_set_note([foreseen("bc", 5.0), foreseen("ab", 2.5, rules=True)])
    assert text is not None
    assert "would choose b and c instead: predicted gain +5.0 points (90% interval +" in text
    assert "2.5 more than that of the rules' set" in text


def test_nothing_is_said_where_the_rules_choose_as_well() -> None:
    assert other_set_note([foreseen("ab", 5.0, rules=True), foreseen("bc", 2.5)]) is None
    assert other_set_note([foreseen("bc", 5.0), foreseen("ab", 4.9, rules=True)]) is None


def test_what_real_models_came_to_is_said_with_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"decode": {"real": {"sets": 30, "gained": 2, "mean": -3.62}}}
    monkeypatch.setattr(predict, "read_coefficients", lambda: found)
    assert real_sets() == (
        "Elsewhere, decoding together gained in 2 of 30 sets of small real models within the limits of the rules "
        "(mean -3.6 points)."
    )


# --- Recommended sets, which a study judges on fresh questions ---


def decoded_pool(right: Sequence[bool]) -> DecodedSets:
    """Two models that are right on each second of 300 questions, and a set with these scores."""
    answers = {name: profile(name, ("R" + wrong) * 150) for name, wrong in (("a", "x"), ("b", "y"))}
    standings = {name: each.standing for name, each in answers.items()}
    return DecodedSets("zoo", "sums", standings, answers, answers, {("a", "b"): np.array(right, dtype=float)})


@pytest.mark.parametrize(
    ("right", "share", "gain"),
    [([True] * 300, 1.0, 50.0), ([n % 4 == 0 for n in range(300)], 0.0, None)],
)
def test_only_sets_that_gain_are_recommended_and_judged_on_other_questions(
    right: Sequence[bool], share: float, gain: float | None
) -> None:
    # What sets came to on another task is all that is known before.
    other = dataclasses.replace(decoded_pool([n % 2 == 0 for n in range(300)]), source="real", task="texts")
    found = {each.name: each.value for each in recommended_figures([decoded_pool(right), other], 3)}
    assert found["recommended_share_zoo"] == share
    # Fresh questions are a third of all, drawn anew, so half of them are right but for the draw.
    assert found.get("recommended_worst_zoo") == (None if gain is None else pytest.approx(gain, abs=8))
