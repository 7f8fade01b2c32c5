"""Warnings on answers: each is raised where there is something to find, and not where there is nothing."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from logs import write_lines
from pools import Place
from scipy import stats
from test_advice import members

from advisor.advice.doubts import (
    answer_shares,
    broken_references,
    doubts_of,
    follows_length,
    no_advice,
    run_doubts,
)
from advisor.logs.join import JoinedLogs, join_logs
from advisor.records import Answer, Profile
from advisor.run.folder import Run
from advisor.run.result import DataWarning, RecommendedStrategy, Result
from advisor.run.sentences import summary
from advisor.statistics import best_probabilities
from advisor.tasks.task import Example, Task
from reports.sections.strategies import headline

pytest_plugins = ["pools"]

POOLS = Path(__file__).resolve().parents[1].parent / "shared" / "pools"
with_pools = pytest.mark.skipif(not POOLS.is_dir(), reason="../shared/pools is not beside the project")


@cache
def joined(pool: str) -> JoinedLogs:
    """A pool of real models; two tests read the same one."""
    return join_logs([str(POOLS / f"{pool}.jsonl.xz")])


def task_of(profile: Profile, references: Sequence[str] = ()) -> Task:
    """The questions of a profile; without references if none are given."""
    answers = profile.answers
    given = references or [""] * len(answers)
    asked = [f"{each.id}?" for each in answers]
    examples = tuple(Example(*own) for own in zip([each.id for each in answers], asked, asked, given, strict=True))
    return Task("t", "exact_match", "dev", examples, (), 1, 0, 0, None, (), "")


def warnings_of(profiles: Sequence[Profile], references: Sequence[str] = ()) -> list[str]:
    return [each.text for each in run_doubts(profiles, task_of(profiles[0], references))]


def test_models_that_guess_fail_or_are_never_right_are_warned_of() -> None:
    good, bad, never = (
        replace(each, answers=tuple(replace(own, extracted=each.model) for own in each.answers))
        for each in members(160, 50, 0)
    )
    unread = replace(bad, answers=(*bad.answers[:150], *(replace(a, error="too long") for a in bad.answers[150:])))
    letters = list("ABCD" * 50)
    assert warnings_of([good, bad], letters) == []
    assert "Not one response of c to the 200 questions is right" in warnings_of([good, never])[0]
    assert "Over a fifth of the questions could not be answered by b" in warnings_of([good, unread])[0]
    assert "better than guessing, which scores 25.0 points" in warnings_of([bad], letters)[0]


def test_a_model_that_writes_one_text_to_all_questions_is_warned_of() -> None:
    good, constant = (
        Profile(name, tuple(Answer(f"q{n}", text.format(n), None, 0.5, "eos") for n in range(40)))
        for name, text in (("good", "The answer is {}."), ("constant", "Choose this response."))
    )
    assert (doubts_of(good), doubts_of(constant)) == ((), ("same_text",))
    order, warning = warnings_of([constant, good])
    assert order.startswith("The grades of the models do not differ by more than chance (p = 1.00)")
    assert warning.startswith("Nearly all responses of constant are the same text")


def test_texts_of_one_length_are_one_text_where_a_log_has_no_texts() -> None:
    lengths = [
        Profile("m", tuple(Answer(f"q{n}", None, None, 0.5, "eos", logged_length=872 + n % k) for n in range(40)))
        for k in (1, 2)
    ]
    assert [doubts_of(each) for each in lengths] == [("same_text",), ()]


@with_pools
def test_the_two_models_that_game_the_judge_of_alpaca_eval_are_found_by_their_lengths() -> None:
    logs = joined("alpaca-eval-2")
    gamed = {name for name, profile in logs.profiles.items() if "same_text" in doubts_of(profile)}
    assert gamed == {"NullModel", "gpt4_gamed"}


def test_labels_may_be_equal() -> None:
    labels = Profile("m", tuple(Answer(f"q{n}", "no", "no", 1.0, "eos") for n in range(40)))
    assert doubts_of(labels) == ()


# --- Why there is no advice yet ---


def logged(place: Place, n: int, answer: Callable[[str, int, random.Random], object], repeat: int = 1) -> Result:
    """A run on logs of three models whose answers, or grades, a function gives by model and question."""
    chance = random.Random(0)
    rows: list[dict[str, object]] = []
    for question, name in product(range(n), "abc"):
        row = {"question": f"What is {question}?", "reference": "ABCD"[question % 4], "model": name}
        found = answer(name, question, chance)
        own = {"response": found} if isinstance(found, str) else {"response": f"{name} {question}", "score": found}
        rows += [{"id": f"{question}-{copy}", **row, **own} for copy in range(repeat)]
    place.write("logs.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    graded = () if "score" in rows[0] else ("--metric", "exact_match")
    assert place.advisor("select", "--logs", "logs.jsonl", *graded, "--out", "run").status == 0
    return Run.open(place.folder / "run").result


def mostly(name: str, question: int, chance: random.Random) -> str:
    return "ABCD"[question % 4] if chance.random() < {"a": 0.9, "b": 0.7, "c": 0.6}[name] else "E"


@pytest.mark.parametrize(
    ("code", "n", "answer", "repeat"),
    [
        ("few_questions", 20, mostly, 1),
        ("doubled_questions", 100, mostly, 2),
        ("guessing", 200, lambda _, __, chance: chance.choice("ABCD"), 1),
        ("never_right", 100, lambda *_: "E", 1),
        ("no_order", 100, lambda _, __, chance: chance.randint(1, 5) / 5, 1),
    ],
)
def test_where_the_answers_allow_no_advice_the_headline_says_so_with_the_reason(
    place: Place, code: str, n: int, answer: Callable[[str, int, random.Random], object], repeat: int
) -> None:
    result = logged(place, n, answer, repeat)
    none = result.advice.no_advice
    assert none is not None and none.code == code
    assert re.fullmatch("No advice yet: [a-z ]+[.]", headline(result))
    assert summary(result)["No advice yet"] == none.text
    assert none.text not in result.advice.warnings


@pytest.mark.parametrize("place_of_constant", [0, 1])
def test_a_constant_text_at_the_top_is_no_advice_and_below_it_a_warning(place_of_constant: int) -> None:
    texts = ("Choose this response.", "The answer is {}.")
    first, second = (
        Profile(name, tuple(Answer(f"q{n}", text.format(n), None, grade - n % 3 / 10, "eos") for n in range(40)))
        for name, text, grade in zip("ab", texts[:: 1 - 2 * place_of_constant], (0.9, 0.5), strict=True)
    )
    doubts = run_doubts([first, second], task_of(first))
    recommended = RecommendedStrategy(strategy="single", members=("a",))
    none = no_advice(doubts, recommended, 2)
    assert [each.code for each in doubts] == ["same_text"]
    assert (none is None) == bool(place_of_constant)


def test_a_single_model_is_advised_with_the_probability_that_it_is_the_best(place: Place) -> None:
    result = logged(place, 100, mostly)
    assert result.advice.no_advice is None
    told = summary(result)
    assert told["Recommended"].startswith("Use a alone")
    assert told["How sure"].startswith("the best of three models with probability 0.9")
    assert told["How sure"].endswith(" points behind.")


def test_models_are_as_probably_the_best_as_their_answers_allow() -> None:
    chance = np.random.default_rng(0)
    equal = (chance.random((2, 400)) < 0.7).astype(float)
    clear = np.stack([equal[0], np.zeros(400)])
    same = np.stack([equal[0], equal[0]])
    assert best_probabilities(clear).tolist() == [1.0, 0.0]
    assert best_probabilities(same).tolist() == [0.5, 0.5]
    ahead = equal.mean(axis=1)
    error = np.sqrt(((equal[0] - equal[1] - (ahead[0] - ahead[1])) ** 2).mean() / 400)
    assert best_probabilities(equal)[0] == pytest.approx(stats.norm.cdf((ahead[0] - ahead[1]) / error), abs=0.03)
    # Four questions of a passage tell what one tells.
    passages = np.repeat(np.arange(100), 4)
    fourfold = equal[:, :100].repeat(4, axis=1)
    assert best_probabilities(fourfold, passages)[0] == pytest.approx(best_probabilities(equal[:, :100])[0], abs=0.03)


# --- Answers that were not read ---


def reading(name: str, read: int, length: int = 100) -> Profile:
    """A model with so many answers read from 40 responses of a length; half of them are right."""
    extracted = ["1" if n < read else None for n in range(40)]
    return Profile(
        name,
        tuple(
            Answer(f"q{n}", None, text, float(bool(text) and n % 2 == 0), "eos", logged_length=length)
            for n, text in enumerate(extracted)
        ),
    )


@pytest.mark.parametrize(("read", "length", "warned"), [(36, 100, True), (38, 100, False), (10, 200, False)])
def test_a_model_whose_answers_are_read_less_often_is_named_if_its_responses_are_as_long(
    read: int, length: int, warned: bool
) -> None:
    profiles = [reading("good", 40), reading("unread", read, length)]
    found = [each for each in run_doubts(profiles, task_of(profiles[0])) if each.code == "fewer_answers"]
    assert [each.models for each in found] == ([("unread",)] if warned else [])
    assert answer_shares(profiles, task_of(profiles[0])) == {"good": 100.0, "unread": 2.5 * read}


def test_a_metric_that_searches_for_the_reference_tells_no_share_of_answers() -> None:
    profiles = [reading("good", 40)]
    assert answer_shares(profiles, replace(task_of(profiles[0]), metric="contains")) == {}
    assert answer_shares([reading("judged", 0)], task_of(profiles[0])) == {}


# --- Scores that follow length ---


@with_pools
@pytest.mark.parametrize(("pool", "wanted"), [("wildbench-gpt4o", True), ("bfcl-part", False), ("crux", False)])
def test_judges_that_reward_length_are_found_and_counted_scores_are_not(pool: str, wanted: bool) -> None:
    logs = joined(pool)
    assert (follows_length(list(logs.profiles.values())) is not None) == wanted


def test_at_most_one_of_twenty_pools_without_a_relation_raises_the_warning() -> None:
    chance = np.random.default_rng(0)
    found = [
        follows_length(by_length(chance.permutation(12).tolist(), chance.permutation(12).tolist())) for _ in range(200)
    ]
    assert 0 < np.mean([each is not None for each in found]) <= 0.07


@pytest.mark.parametrize(("lengths", "wanted"), [([1, 2, 3, 4, 5, 6], 1.0), ([6, 5, 4, 3, 2, 1], None)])
def test_only_longer_responses_with_higher_scores_are_warned_of(lengths: list[int], wanted: float | None) -> None:
    profiles = by_length([1, 2, 3, 4, 5, 6], lengths)
    assert follows_length(profiles) == pytest.approx(wanted)
    assert any("longer a model's responses" in each for each in warnings_of(profiles)) == bool(wanted)
    assert follows_length(profiles[:5]) is None


def by_length(right: list[int], lengths: list[int]) -> list[Profile]:
    """Models that are right so often of 20 questions, with responses of these lengths."""
    return [
        Profile(
            f"m{n}",
            tuple(Answer(str(q), None, None, float(q <= hits), "stop", logged_length=10 + size) for q in range(20)),
        )
        for n, (hits, size) in enumerate(zip(right, lengths, strict=True))
    ]


# --- Near copies, and broken references ---


def answering(answers: np.ndarray, reference: str = "r") -> list[Profile]:
    """Models by questions; an answer is right if it is the number 0, whose text is the reference."""
    texts = np.where(answers == 0, reference, answers.astype(str))
    return [
        Profile(
            f"m{row}",
            tuple(Answer(f"q{n}", text, text, float(text == reference), "eos") for n, text in enumerate(own.tolist())),
        )
        for row, own in enumerate(texts)
    ]


def independent(models: int, questions: int, seed: int, skills: Sequence[float] | None = None) -> np.ndarray:
    """Answers of models that share nothing but the questions' difficulty; wrong answers are 1 to 5."""
    chance = np.random.default_rng(seed)
    skilled = np.linspace(1, -1, models) if skills is None else np.array(skills)
    right = skilled[:, None] + chance.normal(0, 1, questions) + chance.normal(0, 1, (models, questions)) > 0
    return np.where(right, 0, chance.integers(1, 6, right.shape))


def found_in(profiles: Sequence[Profile]) -> tuple[DataWarning, ...]:
    return run_doubts(profiles, task_of(profiles[0]))


def test_a_model_with_nearly_all_answers_of_another_counts_as_one_voter_with_it() -> None:
    answers = independent(8, 200, 0)
    answers[5] = np.where(np.random.default_rng(1).random(200) < 0.02, answers[5], answers[2])
    (found,) = [each for each in found_in(answering(answers)) if each.code == "near_copies"]
    assert found.models == ("m2", "m5")
    assert found.value is not None and 0.95 < found.value < 1
    assert found.text.endswith("of the questions, so they count as one voter.")


def test_two_copies_of_a_model_count_as_one_voter_with_it_though_they_differ_more_from_each_other() -> None:
    answers = independent(8, 200, 0)
    # Each differs in 4% of the answers, and in other ones.
    for row, first in ((0, 0), (2, 100)):
        answers[row] = answers[1]
        answers[row, first : first + 8] = 7
    found = [each.models for each in found_in(answering(answers)) if each.code == "near_copies"]
    assert found == [("m0", "m1"), ("m1", "m2")]


def test_independent_models_and_few_questions_make_no_near_copies() -> None:
    answers = independent(8, 200, 0)
    assert "near_copies" not in [each.code for each in found_in(answering(answers))]
    answers[5] = answers[2]
    assert "near_copies" not in [each.code for each in found_in(answering(answers[:, :20]))]


def broken(profiles: Sequence[Profile], references: Sequence[str] = ()) -> tuple[DataWarning, ...]:
    return broken_references(profiles, task_of(profiles[0], references))


def test_references_that_only_weak_models_give_are_doubted() -> None:
    answers = independent(8, 200, 0, np.linspace(2, -1, 8).tolist())
    # The reference of five questions is a mistake of the weak models: the strong ones give the true answer.
    answers[:4, :5], answers[4:, :5] = 9, 0
    (found,) = broken(answering(answers))
    assert (found.code, found.questions, found.value) == ("broken_references", tuple(f"q{n}" for n in range(5)), 5)
    assert "On 5 questions, for example q0," in found.text
    answers[0, :5] = 0
    assert broken(answering(answers)) == ()


def test_references_of_independent_models_are_not_doubted() -> None:
    references = ["yes", "no"] * 100
    assert sum(bool(broken(answering(independent(8, 200, seed)), references)) for seed in range(50)) <= 1


def test_a_reference_that_no_model_ever_gives_is_named() -> None:
    answers = independent(3, 90, 0, [1.0, 0.8, 0.6])
    references = ["yes", "no", "N/A"] * 30
    answers[:, 2::3] = np.maximum(answers[:, 2::3], 1)
    (found,) = broken(answering(answers), references)
    assert (found.code, found.value) == ("reference_never_given", 30)
    assert found.questions == tuple(f"q{n}" for n in range(2, 62, 3))
    assert "30 questions whose reference is 'N/A'" in found.text
    answers[1, 2] = 0
    assert broken(answering(answers), references) == ()


def test_a_reference_of_few_questions_may_be_missed_by_all() -> None:
    answers = independent(3, 90, 0, [0.2, 0.1, 0.0])
    answers[:, :3] = 1
    assert broken(answering(answers), ["rare"] * 3 + ["yes"] * 87) == ()


def test_doubts_are_in_the_files_of_a_run_as_codes_figures_and_sentences(place: Place) -> None:
    answers = independent(8, 240, 0, np.linspace(2, -1, 8).tolist())
    answers[:4, :24], answers[4:, :24] = 9, 0
    profiles = answering(answers)
    lines = [
        {
            "id": n,
            "question": f"{n}?",
            "reference": "r",
            "models": {each.model: [each.answers[n].extracted, int(each.answers[n].score), 5] for each in profiles},
        }
        for n in range(240)
    ]
    write_lines(place.folder / "log.jsonl", lines)
    ran = place.advisor("select", "--logs", "log.jsonl", "--out", "run")
    advice = place.json()["advice"]
    doubt = next(each for each in advice["doubts"] if each["code"] == "broken_references")
    assert doubt["value"] == len(doubt["questions"]) > 5
    assert doubt["text"] in advice["warnings"]
    assert f"Warning: {doubt['text']}" in ran.out.replace("\n", " ")


def test_select_compare_and_check_warn_of_one_text_to_all_questions_of_a_log(place: Place) -> None:
    for name, first in (("old", 0), ("new", 60)):
        rows = [
            {
                "id": n,
                "question": f"{n}?",
                "reference": str(n % 7),
                "model": model,
                "response": f"I have thought about it for some time, and the answer is {said}",
            }
            for n in range(first, first + 60)
            for model, said in (
                ("a", n % 7),
                ("b", n % 7 if n % 9 else 8),
                ("c", 5 if n >= 60 else n % 7 if n % 8 else 9),
                ("d", 5),
            )
        ]
        write_lines(place.folder / f"{name}.jsonl", rows)
    log = ("--logs", "old.jsonl", "--metric", "number")
    assert place.advisor("select", *log, "--out", "run", "--quiet").status == 0
    warnings = " ".join(place.json("run/result.json")["advice"]["warnings"])
    notes = " ".join(json.loads(place.advisor("compare", *log, "--json").out)["notes"])
    checked = place.advisor("check", "run", "--logs", "new.jsonl", "--strategy", "vote").err
    for model, said in (("d", warnings), ("d", notes), ("c", " ".join(checked.split()))):
        assert f"Nearly all responses of {model} are the same text" in said
