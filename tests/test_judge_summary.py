"""The figures on how far a judge can be trusted, against counts by hand."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from advisor.judge.bradley_terry import bradley_terry
from advisor.judge.prompts import Verdict
from advisor.judge.summary import head_to_head, judge_warnings, summarize_grades, summarize_matches
from advisor.run.figures import JudgedSplit
from advisor.statistics import cluster_interval, wilson

MATCHES = [
    Verdict("1", "a", "b", 1.0),
    Verdict("1", "b", "a", 1.0),  # the first one again: another verdict
    Verdict("2", "a", "b", 1.0),
    Verdict("2", "b", "a", 0.0),  # the same winner
    Verdict("3", "a", "b", 0.5),
    Verdict("3", "b", "a", 0.5),  # a tie twice
    Verdict("4", "a", "b", 0.5),
    Verdict("4", "b", "a", 0.0),  # a tie and a win
    Verdict("5", "a", "b", None),
    Verdict("5", "b", "a", 1.0),
]
LENGTHS = {(str(n), model): size for n in range(1, 6) for model, size in (("a", 10), ("b", 20))}


def test_position_bias_ties_and_unread_verdicts_are_counted() -> None:
    found = summarize_matches([MATCHES], [Verdict("6", "a", "b", 0.5)], LENGTHS)
    assert (found["verdicts"], found["unread"], found["settled"]) == (10, 1, 1)
    assert found["ties"]["n"] == 9
    assert found["ties"]["share"] == pytest.approx(100 * 3 / 9)
    # Decided: 1, 1, 1, 0 for the first one, then 0 and 1.
    assert found["first_wins"]["n"] == 6
    assert found["first_wins"]["share"] == pytest.approx(100 * 4 / 6)
    # Both verdicts of question 1 and of question 2 are about one question.
    expected = cluster_interval(np.array([1.0, 1, 1, 0, 0, 1]), ["1", "1", "2", "2", "4", "5"], ends=(0, 1))
    assert found["first_wins"]["share_ci"] == pytest.approx(expected)
    # The pair of question 5 has one verdict only.
    assert found["changed"]["n"] == 4
    assert found["changed"]["share"] == pytest.approx(50)
    assert found["changed"]["share_ci"] == pytest.approx(wilson(np.array([1.0, 0, 0, 1])))
    # b is longer: it wins once in question 1, never in 2 and 4, and once in 5.
    assert found["longer_wins"]["n"] == 6
    assert found["longer_wins"]["share"] == pytest.approx(100 * 2 / 6)
    assert found["agreement"] is None


def test_likelihoods_name_the_winner_that_is_more_probable() -> None:
    """The scores of the mode `likelihood` are between 0 and 1; the figures are those of the winners."""
    soft = {0.0: 0.2, 1.0: 0.7, 0.5: 0.5, None: None}
    fractions = [each._replace(score=soft[each.score]) for each in MATCHES]
    plain, found = (summarize_matches([each, MATCHES], [], LENGTHS) for each in (MATCHES, fractions))
    for name in ("ties", "first_wins", "changed", "longer_wins", "agreement"):
        assert found[name] == plain[name]


def test_models_have_the_strengths_of_all_matches_with_a_result() -> None:
    found = summarize_matches([MATCHES], [Verdict("6", "a", "b", 0.5)], {})
    assert [each.matches for each in found["models"]] == [10, 10]
    assert found["models"][0].model == "a"
    assert found["longer_wins"] == {"n": 0, "clusters": 0, "share": None, "share_ci": None}


def test_agreement_of_two_judges_is_that_of_their_winners() -> None:
    other = [each._replace(score=1.0 if n == 2 else each.score) for n, each in enumerate(MATCHES)]
    other[4] = other[4]._replace(score=1.0)
    other[5] = other[5]._replace(score=None)
    found = summarize_matches([MATCHES, other], [], {})["agreement"]
    ours = [each.score for n, each in enumerate(MATCHES) if n not in (5, 8)]
    theirs = [each.score for n, each in enumerate(other) if n not in (5, 8)]
    same = np.mean(np.array(ours) == np.array(theirs))
    by_chance = sum(ours.count(value) * theirs.count(value) for value in (0.0, 0.5, 1.0)) / 64
    assert found["n"] == 8
    assert found["equal"] == pytest.approx(100 * same)
    assert found["kappa"] == pytest.approx((same - by_chance) / (1 - by_chance))


def test_grades_have_means_and_the_agreement_of_two_judges() -> None:
    ours = [0.0, 0.25, 0.5, 1.0, None, 0.75]
    theirs = [0.25, 0.25, 1.0, 1.0, 0.5, None]
    judged = [
        [Verdict(str(n // 2), "ab"[n % 2], "", score) for n, score in enumerate(scores)] for scores in (ours, theirs)
    ]
    lengths = {(str(n // 2), "ab"[n % 2]): 10 * n for n in range(6)}
    found = summarize_grades(judged, lengths, step=0.25)
    assert (found["verdicts"], found["unread"]) == (6, 1)
    assert [(each["model"], each["grades"]) for each in found["models"]] == [("b", 3), ("a", 2)]
    assert found["models"][0]["score"] == pytest.approx(100 * 2 / 3)
    agreement = found["agreement"]
    assert agreement["n"] == 4
    assert agreement["within_one"] == pytest.approx(75)
    assert agreement["spearman"] == pytest.approx(stats.spearmanr(ours[:4], theirs[:4]).statistic)
    assert agreement["kendall"] == pytest.approx(stats.kendalltau(ours[:4], theirs[:4]).statistic)
    assert found["length"]["n"] == 5


@pytest.mark.parametrize("score", [0.5, 1.0])
def test_verdicts_that_are_all_equal_have_no_correlation(score: float) -> None:
    same = [Verdict(str(n), "a", "b", score) for n in range(5)]
    grades = [Verdict(str(n), "a", "", score) for n in range(5)]
    assert summarize_matches([same, same], [], {})["agreement"] == {"n": 5, "clusters": 5, "equal": 100, "kappa": None}
    found = summarize_grades([grades, grades], {("0", "a"): 1, ("1", "a"): 2}, 0.1)
    assert found["agreement"]["spearman"] is None
    assert found["length"]["spearman"] is None


def test_nothing_judged_has_empty_figures() -> None:
    found = summarize_matches([[], []], [], {})
    assert (found["models"], found["first_wins"]["n"], found["agreement"]["n"]) == ((), 0, 0)
    assert summarize_grades([[], []], {}, 0.1)["models"] == []
    assert judge_warnings(["j", "k"], JudgedSplit(**found)) == []


def test_head_to_head_counts_a_question_once_and_the_rivals_own_response_as_a_tie() -> None:
    matches = [
        Verdict("1", "set", "a", 1.0),
        Verdict("1", "a", "set", 0.5),
        Verdict("2", "set", "a", 0.0),
        Verdict("2", "set", "b", 1.0),
        Verdict("3", "b", "a", 1.0),
    ]
    found = head_to_head(matches, {"1": "set", "2": "set", "3": "a"}, "a")
    assert found is not None
    assert found["questions"] == 3
    assert found["win_rate"] == pytest.approx(100 * (0.75 + 0 + 0.5) / 3)
    low, high = found["win_rate_ci"]
    assert low < found["win_rate"] < high
    assert head_to_head(matches, {"1": "c"}, "a") is None


def judged(rule: Any, questions: int = 30) -> JudgedSplit:
    """The figures of a judge that scores the first one of two models by a rule."""
    matches = [
        Verdict(str(n), first, second, rule(n, first, second))
        for n in range(questions)
        for first, second in permutations("ab")
    ]
    other = [each._replace(score=1.0 if n % 2 else 0.0) for n, each in enumerate(matches)]
    return JudgedSplit(**summarize_matches([matches, other], [], {}))


def test_a_judge_that_prefers_a_place_gives_a_warning() -> None:
    warnings = judge_warnings(["judge", "other"], judged(lambda *_: 1.0))
    assert any("changes its verdict on 100% of 30 pairs" in each for each in warnings)
    assert any("the first response wins 100% of its decided verdicts" in each for each in warnings)


def test_judges_that_agree_little_give_a_warning() -> None:
    warnings = judge_warnings(["judge", "other"], judged(lambda n, first, _: float((first == "a") == (n % 2 == 0))))
    assert len(warnings) == 2
    assert "The judges judge and other agree little" in warnings[1]


def test_a_consistent_judge_that_agrees_gives_no_warning() -> None:
    assert judge_warnings(["judge", "other"], judged(lambda _, first, __: float(first == "b"))) == []


@pytest.mark.parametrize(("questions", "is_said"), [(1, False), (3, False), (4, True), (5, True)])
def test_a_place_that_always_wins_is_said_for_as_few_questions_as_chance_allows(questions: int, is_said: bool) -> None:
    """Were a third of the pairs changed, 3 questions would all be changed in 1 of 27 cases, 4 in 1 of 81."""
    models = [str(n) for n in range(8)]
    matches = [Verdict(str(n), *pair, 1.0) for n in range(questions) for pair in permutations(models, 2)]
    found = summarize_matches([matches, matches], [], {})
    assert (found["changed"]["n"], found["changed"]["clusters"]) == (28 * questions, questions)
    warnings = judge_warnings(["judge", "other"], JudgedSplit(**found))
    assert any("changes its verdict on 100%" in each for each in warnings) == is_said


@pytest.mark.parametrize("score", [0.5, 1.0])
def test_a_judge_that_prefers_no_model_is_said_to_tell_nothing(score: float) -> None:
    warnings = judge_warnings(["judge", "other"], judged(lambda *_: score))
    assert "The judge judge does not tell the models apart: the interval of every win rate contains 50" in "".join(
        warnings
    )


def test_equal_mean_grades_are_said_and_their_intervals_have_a_width() -> None:
    grades = [Verdict(str(n), model, "", 0.5) for n in range(5) for model in "ab"]
    found = summarize_grades([grades], {}, 1.0)
    assert all(np.ptp(each["score_ci"]) > 10 for each in found["models"])
    assert "all have the same mean grade" in "".join(judge_warnings(["judge"], JudgedSplit(**found)))
    better = [each._replace(score=0.6) if each.first == "a" else each for each in grades]
    assert judge_warnings(["judge"], JudgedSplit(**summarize_grades([better], {}, 1.0))) == []


def test_verdicts_that_cannot_be_read_give_a_warning() -> None:
    warnings = judge_warnings(["judge", "other"], judged(lambda n, *_: None if n % 3 else 0.5))
    assert any("40 of 60 verdicts of the judge judge cannot be read" in each for each in warnings)


# --- Strengths ---


def drawn(
    strengths: dict[str, float], questions: int, seed: int, first: float = 0.0, ties: float = 0.0
) -> Iterator[Verdict]:
    """Matches of all pairs in both orders, with results drawn from the model; a share of them are ties."""
    generator = np.random.default_rng(seed)
    for question in range(questions):
        for (a, strong), (b, weak) in permutations(strengths.items(), 2):
            wins = generator.random() < expit(strong - weak + first)
            tie = generator.random() < ties
            yield Verdict(str(question), a, b, 0.5 if tie else float(wins))


def minorized(matches: list[Verdict]) -> tuple[dict[str, float], float]:
    """Strengths and home advantage by Hunter's MM algorithm (2004, Annals of Statistics 32, section 3), with one
    imaginary tie of each model against an opponent of worth 1, and one match that the order decides both ways."""
    models = sorted({name for match in matches for name in (match.first, match.second)})
    worth, home = dict.fromkeys(models, 1.0), 1.0
    for _ in range(20_000):
        wins, below = dict.fromkeys(models, 0.5), {model: 1 / (worth[model] + 1) for model in models}
        for match in matches:
            total = home * worth[match.first] + worth[match.second]
            wins[match.first] += match.score
            wins[match.second] += 1 - match.score
            below[match.first] += home / total
            below[match.second] += 1 / total
        new = {model: wins[model] / below[model] for model in models}
        # The imaginary match of the order is one between two equal models.
        home_below = 1 / (home + 1) + sum(
            new[match.first] / (home * new[match.first] + new[match.second]) for match in matches
        )
        new_home = (0.5 + sum(match.score for match in matches)) / home_below
        change = max(abs(new[model] / worth[model] - 1) for model in models) + abs(new_home / home - 1)
        worth, home = new, new_home
        if change < 1e-13:
            break
    middle = np.mean([np.log(each) for each in worth.values()])
    return {model: float(np.log(each) - middle) for model, each in worth.items()}, home


def test_strengths_are_those_of_hunters_algorithm() -> None:
    matches = list(drawn({"a": 1.0, "b": 0.3, "c": -0.4, "d": -0.9}, 6, seed=3, first=0.6, ties=0.2))
    # Uneven matches, so that strengths are not the order of the mean scores.
    matches = [each for n, each in enumerate(matches) if n % 5]
    expected, home = minorized(matches)
    found = bradley_terry(matches)
    assert {each.model: each.log_odds for each in found.models} == pytest.approx(expected, abs=1e-6)
    assert found.equal_first_wins == pytest.approx(100 * home / (1 + home), abs=1e-6)


def test_two_models_with_a_match_a_question_have_jeffreys_interval() -> None:
    # Both orders equally often, so that the order takes nothing from the strengths.
    matches = [
        Verdict(str(n), "a", "b", float(n < 30)) if n % 2 else Verdict(str(n), "b", "a", float(n >= 30))
        for n in range(40)
    ]
    low, high = bradley_terry(matches).models[0].win_rate_ci
    # A win rate counts the tie of a model with itself.
    expected = 25 + 50 * stats.beta(30.5, 10.5).ppf([0.025, 0.975])
    assert (low, high) == pytest.approx(tuple(expected), abs=1)


def test_win_rates_are_the_mean_scores_if_all_meet_equally_often_and_the_order_has_no_effect() -> None:
    matches = list(drawn({"a": 0.8, "b": 0.0, "c": -0.5}, 200, seed=1))
    matches += [Verdict(each.question, each.second, each.first, 1 - each.score) for each in matches]
    found = bradley_terry(matches)
    assert [each.win_rate for each in found.models] == pytest.approx(
        [(50 + 2 * each.score) / 3 for each in found.models], abs=0.1
    )
    assert np.mean([each.win_rate for each in found.models]) == pytest.approx(50)


@pytest.mark.parametrize("score", [0.0, 1.0, 0.5])
def test_a_model_that_wins_or_loses_everything_has_a_finite_strength_and_an_interval(score: float) -> None:
    matches = [Verdict(str(n), "a", "b", score) for n in range(20)] + [
        Verdict(str(n), "b", "a", 1 - score) for n in range(20)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = bradley_terry(matches)
    for each in found.models:
        low, high = each.win_rate_ci
        assert np.isfinite(each.log_odds)
        assert 0 <= low < high <= 100
        assert low <= each.win_rate <= high


def test_all_matches_of_a_question_are_resampled_together() -> None:
    """The same verdicts ten times a question: the interval stays as wide as with one verdict a question."""
    once = [Verdict(str(n), *(("a", "b") if n % 2 else ("b", "a")), float(n % 4 < 2)) for n in range(40)]
    widths = []
    for matches in (once, once * 10):
        low, high = bradley_terry(matches).models[0].win_rate_ci
        widths.append(high - low)
    assert widths[1] == pytest.approx(widths[0], rel=0.1)


def test_groups_of_models_that_never_met_are_named() -> None:
    matches = [Verdict("1", "a", "b", 1.0), Verdict("1", "c", "d", 0.0), Verdict("2", "b", "e", 0.5)]
    assert bradley_terry(matches).groups == (("a", "b", "e"), ("c", "d"))


def test_sets_do_not_change_the_win_rates_of_candidates() -> None:
    matches = list(drawn({"a": 0.5, "b": -0.5, "set": 1.5}, 40, seed=2))
    found = {each.model: each for each in bradley_terry(matches, candidates=["a", "b"]).models}
    assert found["a"].win_rate == pytest.approx(25 + 50 * expit(found["a"].log_odds - found["b"].log_odds))
    assert found["a"].win_rate + found["b"].win_rate == pytest.approx(100)
    assert found["set"].win_rate > found["a"].win_rate


def test_matches_that_needed_no_judge_say_nothing_about_the_order() -> None:
    matches = [Verdict(str(n), *order, 1.0) for n in range(10) for order in (("a", "b"), ("b", "a"))]
    equal = [Verdict(str(n), "a", "b", 0.5) for n in range(10, 100)]
    alone, with_ties = (bradley_terry(matches, settled) for settled in ([], equal))
    assert with_ties.equal_first_wins == pytest.approx(alone.equal_first_wins)
    assert [each.matches for each in with_ties.models] == [110, 110]


def test_turns_of_one_conversation_do_not_narrow_the_intervals() -> None:
    matches = list(drawn({"a": 0.4, "b": 0.0, "c": -0.2}, 20, seed=5))
    turns = [each._replace(question=f"{each.question}:{turn}") for each in matches for turn in (1, 2)]
    alone, cloned = bradley_terry(matches), bradley_terry(turns, clusters={q: q.split(":")[0] for q, *_ in turns})
    as_questions = bradley_terry(turns)
    for once, twice, narrow in zip(alone.models, cloned.models, as_questions.models, strict=True):
        assert twice.win_rate_ci == pytest.approx(once.win_rate_ci, abs=0.01)
        assert np.ptp(narrow.win_rate_ci) < 0.85 * np.ptp(twice.win_rate_ci)
    assert cloned.equal_first_wins_ci == pytest.approx(alone.equal_first_wins_ci, abs=0.01)
