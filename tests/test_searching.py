"""The search: which sets are worth decoding, which one is put forward, and what is said of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_pipeline import LENIENT, plan_of, run, spoil_loading, statuses

from advisor.choose.rules import select
from advisor.choose.search import Prospect, Try, best_of, promising_sets, put_forward, sentence
from advisor.output.result_json import result_of
from advisor.profile.profiler import Profiler
from advisor.progress import Progress
from advisor.records import Answer, Profile, Rules, Standing
from advisor.response_cache import Store
from advisor.tasks import load_task
from ensemble.errors import MemberError, UniteError

if TYPE_CHECKING:
    from pools import Place

    from ensemble import Ensemble

pytest_plugins = ["pools"]

RULES = Rules(max_gap=100)


def profile(model: str, answers: str, length: int = 1) -> Profile:
    """A letter a question: R is right, any other a wrong answer, a space one in which nothing was found."""
    return Profile(
        model,
        tuple(
            Answer(f"q{n}", "x" * length, letter.strip() or None, float(letter == "R"), "eos")
            for n, letter in enumerate(answers)
        ),
    )


def graded(model: str, scores: Sequence[float]) -> Profile:
    return Profile(model, tuple(Answer(f"q{n}", "x", "x", score, "eos") for n, score in enumerate(scores)))


def prospect(models: str, predicted: float = 50.0, greedy: bool = False) -> Prospect:
    return Prospect(tuple(models), predicted, predicted, predicted, greedy)


# --- What is promising ---


@pytest.mark.parametrize(
    ("answers", "vote"),
    [
        (("R", "R", "a"), 1),
        (("R", "a", "b"), 1 / 3),
        (("R", "a", "a"), 0),
        (("R", " ", " "), 1 / 3),  # nothing is like nothing else
        (("R", "R", "R"), 1),
    ],
)
def test_a_vote_counts_heads_and_shares_ties(answers: Sequence[str], vote: float) -> None:
    profiles = [profile(model, answer) for model, answer in zip("abc", answers, strict=True)]
    found = promising_sets(profiles, RULES, tries=1)[0]
    assert found.vote == pytest.approx(100 * vote)
    assert found.oracle == 100
    assert found.predicted == pytest.approx((100 * vote + 100) / 2)


def test_right_answers_are_the_same_however_they_are_spelt() -> None:
    spelt = [Profile(m, (Answer("q", m, m, 1.0, "eos"), Answer("r", "x", "x", 0.0, "eos"))) for m in "abc"]
    assert promising_sets(spelt, RULES, tries=1)[0].vote == 50


def test_the_same_wrong_answer_to_another_question_is_no_agreement() -> None:
    profiles = [profile("a", "Ra"), profile("b", "aR"), profile("c", "bb")]
    assert promising_sets(profiles, RULES, tries=1)[0].vote == pytest.approx(100 / 3)


def test_graded_scores_vote_by_their_mean() -> None:
    found = promising_sets([graded("a", [0.5, 1.0]), graded("b", [0.3, 0.2])], RULES)[0]
    assert (found.vote, found.oracle) == (pytest.approx(50), pytest.approx(75))


def test_models_that_err_on_different_questions_come_before_those_that_err_on_the_same() -> None:
    # All are right on 4 of 6; b errs where a does, c where the others are right.
    profiles = [profile("a", "RRRRxx"), profile("b", "RRRRxx"), profile("c", "xxRRRR")]
    found = promising_sets(profiles, dataclasses.replace(RULES, max_models=2), tries=3)
    assert [one.models for one in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [one.greedy for one in found] == [True, False, False]
    assert [one.predicted for one in found] == pytest.approx([66.67, 83.33, 83.33], abs=0.01)


def test_the_greedy_set_is_always_the_first_and_once() -> None:
    profiles = [profile("a", "RRRx"), profile("b", "RRxx"), profile("c", "RxxR"), profile("d", "xxxR")]
    for tries in range(1, 20):
        found = promising_sets(profiles, RULES, tries)
        assert len(found) == min(tries, 10)  # 6 pairs, 4 triples
        assert len({one.models for one in found}) == len(found)
        assert [one.models for one in found if one.greedy] == [("a", "b", "c")] == [found[0].models]
        rest = [one.predicted for one in found[1:]]
        assert rest == sorted(rest, reverse=True)


def test_every_set_fits_the_best_candidate_and_its_own_primary() -> None:
    # c's responses are half as long as a's, and d's twice as long: each fits a, and the two do not fit each other.
    profiles = [
        profile("a", "RRRRR", 20),
        profile("b", "RRRRx", 20),
        profile("c", "RRRxx", 10),
        profile("d", "RRxxx", 40),
        profile("far", "RxxxR", 200),
    ]
    found = {one.models for one in promising_sets(profiles, RULES, tries=100)}
    assert found == {tuple(s) for s in ("ab", "ac", "ad", "bc", "bd", "abc", "abd", "acd", "bcd")}


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_no_set_is_larger_than_the_rules_allow_and_only_the_greedy_one_larger_than_three(most: int) -> None:
    profiles = [profile(model, "RRRR") for model in "abcde"]
    found = promising_sets(profiles, dataclasses.replace(RULES, max_models=most), tries=100)
    assert max((len(one.models) for one in found), default=1) == most
    assert all(one.greedy == (one.models == tuple("abcde")[:most]) for one in found)
    assert sum(len(one.models) > 3 for one in found) == (most == 4)


def test_where_nothing_fits_there_is_nothing_to_search() -> None:
    assert promising_sets([profile("a", "RRRR"), profile("b", "xxxx")], Rules(), tries=4) == ()
    assert promising_sets([profile("a", "RRRR")], Rules(), tries=4) == ()


def test_candidates_that_were_asked_different_questions_are_refused() -> None:
    with pytest.raises(UniteError, match="a and b answered different questions"):
        promising_sets([profile("a", "RRRR"), profile("b", "RRR")], RULES)


# --- What is put forward ---


def test_the_best_on_dev_is_put_forward_and_the_greedy_set_where_it_is_as_good() -> None:
    greedy, other = Try(prospect("ab", greedy=True), 70.0), Try(prospect("ac"), 70.0)
    assert best_of([greedy, other]) is greedy
    better = dataclasses.replace(other, accuracy=70.1)
    assert best_of([greedy, better]) is better
    assert best_of([dataclasses.replace(greedy, accuracy=None), other]) is other


def test_where_no_set_can_be_decoded_none_is_found() -> None:
    assert best_of([Try(prospect("ab", greedy=True), None)]) is None
    assert best_of([]) is None


STANDINGS = [Standing(model, points, 20.0) for model, points in zip("abcd", (80.0, 78.0, 76.0, 60.0), strict=True)]


def test_another_set_has_its_own_primary_and_reasons() -> None:
    greedy = select(STANDINGS, Rules(max_models=2))
    moved = put_forward(greedy, prospect("bc"), STANDINGS, Rules(max_models=2))
    assert moved.selected == ("b", "c")
    assert [d.model for d in moved.decisions] == list("abcd")
    assert [d.status for d in moved.decisions] == ["rejected", "primary", "selected", "rejected"]
    a, b, c, d = (decision.reason for decision in moved.decisions)
    assert "the set that did best is one without it" in a
    assert "the most accurate of the set that did best" in b
    assert c.startswith("its gap to the primary is 2.00 points")
    assert d == greedy.decisions[3].reason


def test_the_greedy_set_leaves_the_selection_as_it_is() -> None:
    greedy = select(STANDINGS, Rules())
    assert put_forward(greedy, prospect("abc", greedy=True), STANDINGS, Rules()) is greedy


def test_the_sentence_says_what_was_compared_where() -> None:
    tried = [Try(prospect("ab", greedy=True), 70.0), Try(prospect("ac"), 71.5), Try(prospect("bc"), None)]
    single = dataclasses.replace(STANDINGS[0], accuracy=70.5)
    assert sentence(tried, tried[1], single, 300) == (
        "A search found this set, the best of 2 that were decoded: 71.5 points on the 300 dev questions; the rules' "
        "own choice, a and b, 70.0."
    )
    assert sentence(tried, tried[0], single, 300) == (
        "The rules' own choice was the best of the 2 sets decoded in a search: 70.0 points on the 300 dev questions; "
        "a alone scores 70.5."
    )


# --- With models ---


def test_a_search_decodes_sets_on_dev_and_one_on_the_held_out_questions(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = dataclasses.replace(plan_of(place, models, "alpha", "beta", "gamma"), search=3)
    loaded = spoil_loading(monkeypatch, lambda *_: None)
    outcome = run(plan)
    result = result_of(outcome)
    (put,) = [one for one in result["search"] if one["put_forward"]]
    assert put["models"] == result["selected"]
    assert result["ensemble"] is not None
    assert [one["greedy"] for one in result["search"]] == [True, False, False]
    decoded = ["+".join(one["models"]) for one in result["search"]]
    assert [name for name in loaded if "+" in name][: len(decoded)] == decoded
    assert "sets decoded in a search" in result["advice"]["text"] or "A search found" in result["advice"]["text"]


def test_a_set_that_is_better_on_dev_is_put_forward_and_verified(place: Place, models: Path) -> None:
    plan = dataclasses.replace(plan_of(place, models, "alpha", "beta", "gamma"), search=4)
    with Store(place.cache) as store:
        profiler = Profiler(plan, store, Progress(quiet=True))
        order = select(
            [
                Standing(p.profile.model, p.profile.accuracy, p.profile.mean_length)
                for p in profiler.alone(["alpha", "beta", "gamma"], plan.dev).values()
            ],
            LENIENT,
        ).selected
        wanted = order[1:]
        answers = [answer.text for answer in profiler.together(wanted, plan.dev).profile.answers]
    # Now what this set writes is right.
    questions = [{"question": f"What is {n} + {n}?", "answer": "?"} for n in range(1, 13)]
    for question, answer in zip(questions, answers, strict=False):
        question["answer"] = answer
    place.task(questions, metric="exact_match")
    plan = dataclasses.replace(plan, dev=load_task("task.yaml"), held_out=load_task("task.yaml", "held_out"))
    outcome = run(plan)
    result = result_of(outcome)
    assert result["selected"] == list(wanted)
    assert statuses(outcome)[wanted[0]] == "primary"
    assert (result["search"][0]["greedy"], len(result["search"][0]["models"])) == (True, 3)
    put = [one for one in result["search"] if one["put_forward"]]
    assert [(one["models"], one["dev_accuracy"]) for one in put] == [(list(wanted), 100)]
    assert [member["model"] for member in result["ensemble"]["members"]] == list(wanted)
    assert outcome.verified is not None
    best = result["search"][0]["models"][0]
    assert {*outcome.verified.comparison.members} == {*wanted, best}, "the best candidate is held against the set too"
    assert "A search found this set, the best of 4" in result["advice"]["text"]
    assert "No other set was compared on held-out questions" in result["advice"]["text"]


def test_a_set_that_cannot_be_run_is_listed_with_its_reason(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_three(names: Sequence[str], ensemble: Ensemble) -> None:
        if len(names) == 3:
            raise MemberError("not enough memory for three")

    spoil_loading(monkeypatch, fail_three)
    plan = dataclasses.replace(plan_of(place, models, "alpha", "beta", "gamma", verify=False), search=2)
    first, second = result_of(run(plan))["search"]
    assert (first["dev_accuracy"], first["error"]) == (None, "not enough memory for three")
    assert (second["dev_accuracy"], second["error"]) == (0, None)
