"""``advisor check``: whether a recommendation holds on fresh questions, from logs and from models."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pools import Place, Prepare, Ran
from servers import Raw, completion, models, raw_server
from sharing import demo_cache

from advisor.advice.comparison import compare_strategies
from advisor.advice.drift import change_interval, judge_accuracy, judge_gain
from advisor.advice.gain import Gain, cross_fitted_gain
from advisor.records import Answer, Profile
from advisor.statistics import wilson
from advisor.strategies.replay import replay_all
from advisor.strategies.schema import strategy_json, strategy_of
from advisor.strategies.strategy import AnsweredSplit
from advisor.tasks import load_task

pytest_plugins = ["pools"]

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("a", "b", "c")


# --- The rules ---


def gain(points: float, error: float) -> Gain:
    return Gain(points, error, 99.0, 100)


@pytest.mark.parametrize(
    ("points", "error", "expected", "half", "verdict"),
    [
        (-5, 2, 5, 3, "worse"),  # worse than the single model
        (-2, 2, 5, 3, "worse"),  # less than expected, and perhaps nothing
        (-2, 2, 5, 9, "unclear"),  # the run was not sure of its 5 points
        (5, 2, 5, 3, "better"),
        (5, 2, 20, 3, "better"),  # less than expected, and above 0
        (5, 4, 5, 3, "unclear"),
        (-1, 2, 0, 3, "equal"),  # nothing was expected, and no large loss is possible
        (-1, 8, 0, 3, "unclear"),
    ],
)
def test_a_gain_is_judged_by_the_rules(points: float, error: float, expected: float, half: float, verdict: str) -> None:
    found = judge_gain(gain(points, error), expected, (expected - half, expected + half))
    assert found.verdict == verdict
    assert (found.questions is not None) == (verdict == "unclear")


def test_a_gain_that_does_not_pay_fails_only_if_it_is_less_than_expected() -> None:
    less, as_expected = gain(6, 2), gain(20, 10)
    assert judge_gain(less, 20, (17, 23), min_gain=4).verdict == "worse"
    assert judge_gain(less, 20, (17, 23)).verdict == "better"
    assert judge_gain(as_expected, 20, (17, 23), min_gain=4).verdict == "better"
    # Whatever was expected, a gain that is too small does not pay.
    assert judge_gain(less, 6, (3, 9), min_gain=30).verdict == "worse"


def test_the_expected_gain_is_shown_with_as_many_questions_as_the_check_names() -> None:
    chance = np.random.default_rng(0)

    def drawn(questions: int) -> Gain:
        # A true gain of 10 points: 20% of the questions are gained, and 10% lost.
        gained = chance.choice([1.0, -1.0, 0.0], p=[0.2, 0.1, 0.7], size=questions)
        return cross_fitted_gain(gained / 2)

    expected = 5.0  # of half points
    few = next(found for found in map(drawn, [40] * 50) if judge_gain(found, expected, (2, 8)).verdict == "unclear")
    needed = judge_gain(few, expected, (2, 8)).questions
    assert needed is not None
    shown = np.mean([judge_gain(drawn(needed), expected, (2, 8)).verdict == "better" for _ in range(300)])
    assert 0.6 < shown < 0.95


def test_no_number_of_questions_makes_up_for_a_run_that_had_few() -> None:
    found = judge_accuracy(80, (78, 82), 80, (60, 95), 5000)
    assert (found.verdict, found.questions) == ("unclear", None)


def test_a_gain_that_no_task_can_tell_from_none_needs_no_number_of_questions() -> None:
    found = judge_gain(gain(0.02, 2.0), 0.06, (-1.0, 1.0))
    assert (found.verdict, found.questions) == ("unclear", None)
    assert found.reason == "20,000 questions would not tell a gain as small as this one from none"


def test_the_interval_of_a_change_is_newcombes() -> None:
    first, second = (np.repeat([1.0, 0.0], counts) for counts in ((56, 14), (48, 32)))
    # Table II of the paper, method 10: 56 of 70 against 48 of 80.
    found = change_interval(80.0, wilson(first), 60.0, wilson(second))
    assert found == pytest.approx((5.24, 33.39), abs=0.01)


@pytest.mark.parametrize("clusters", [None, 20])
def test_a_strategy_that_is_no_worse_seldom_fails(clusters: int | None) -> None:
    chance = np.random.default_rng(1)
    labels = None if clusters is None else [str(n % clusters) for n in range(100)]

    def p_no_loss() -> float:
        strategy, single = (chance.random((2, 100)) < 0.6).astype(float)
        if clusters is not None:
            # The questions of a cluster are gained or lost together.
            sign = np.tile(chance.choice([0.0, 1.0], clusters), 5)
            strategy, single = np.where(chance.random(100) < 0.5, (sign, 1 - sign), (strategy, strategy))
        return cross_fitted_gain(strategy - single, labels).p_no_loss

    assert np.mean([p_no_loss() <= 0.05 for _ in range(1000)]) < 0.07


def test_a_check_takes_the_answers_that_the_comparison_took(place: Place) -> None:
    topics = [("sum", "What is {n} + 1?"), ("capital", "Which town is the capital of country {n}?")]
    questions = [
        {"question": text.format(n=n), "answer": str(n), "topic": topic} for n in range(40) for topic, text in topics
    ]
    place.task(questions, metric="exact_match", group="{{topic}}")
    chance = np.random.default_rng(2)

    def split(name: str) -> AnsweredSplit:
        task = load_task("task.yaml", split=name)

        def answer(number: int, model: int) -> Answer:
            example = task.examples[number]
            # Each topic has a model that is good at it.
            is_right = chance.random() < (0.9 if (example.group == "sum") == (model == 0) else 0.5)
            text = str(example.reference) if is_right else str(chance.integers(3))
            return Answer(example.id, text, text, float(is_right), "eos", group=example.group)

        profiles = {
            name: Profile(name, tuple(answer(n, model) for n in range(len(task.examples))))
            for model, name in enumerate(MODELS)
        }
        return AnsweredSplit(task, profiles)

    dev, held_out = split("dev"), split("held_out")
    results = compare_strategies(dev, held_out, can_vote=True).results
    assert {"vote", "group_router"} <= {each.strategy.name for each in results}
    for each in results:
        strategy = strategy_of(strategy_json(each.strategy), "test", "")
        assert replay_all(strategy, held_out).takes == replay_all(each.strategy, held_out).takes, each.strategy.name


# --- From logs ---


def write_log(place: Place, name: str, rates: dict[str, float], questions: range, copy: bool = False) -> None:
    """Write a log in which models are right independently; as ``copy`` all but the first are wrong together."""
    chance = np.random.default_rng(questions.start)
    lines = []
    for n in questions:
        is_right = {model: chance.random() < rate for model, rate in rates.items()}
        wrong = {model: "no" if copy else f"no {model}" for model in rates}
        cells = {model: ["yes" if right else wrong[model], int(right), 3] for model, right in is_right.items()}
        lines.append(json.dumps({"id": n, "question": f"Question {n}?", "reference": "yes", "models": cells}))
    place.write(name, "\n".join(lines) + "\n")


@pytest.fixture
def vote(place: Place, prepare: Prepare) -> Place:
    """A place with the run of a log whose three models vote well."""

    def make() -> None:
        write_log(place, "first.jsonl", dict.fromkeys(MODELS, 0.7), range(600))
        ran = place.advisor("select", "--logs", "first.jsonl", "--out", "run", "--quiet")
        assert ran.status == 0, ran.err
        assert place.json()["advice"]["recommendation"]["strategy"] in ("vote", "learned_vote")

    prepare("check", place, make)
    return place


def best_single(place: Place) -> str:
    found: str = place.json()["strategies"][0]["best_single_model"]
    return found


def check(place: Place, *options: str) -> tuple[int, dict[str, Any]]:
    ran: Ran = place.advisor("check", "run", "--json", "--quiet", *options)
    assert ran.err == "", ran.err
    return ran.status, json.loads(ran.out)


def test_a_vote_that_still_gains_holds(vote: Place) -> None:
    write_log(vote, "new.jsonl", dict.fromkeys(MODELS, 0.7), range(1000, 1300))
    # The file of a run from logs is a log.
    assert check(vote, "new.jsonl") == check(vote, "--logs", "new.jsonl")
    status, found = check(vote, "new.jsonl")
    assert (status, found["verdict"], found["n"], found["left_out"]) == (0, "better", 300, 0)
    told = vote.json()["advice"]["recommendation"]
    assert (found["strategy"], found["members"]) == (told["strategy"], told["members"])
    assert (found["expected_gain"], found["expected_gain_ci"]) == (told["expected_gain"], told["expected_gain_ci"])
    assert found["measured_gain"] == pytest.approx(found["accuracy"] - found["best_single_accuracy"])
    assert found["measured_gain_ci"][0] > 0


def test_a_vote_whose_members_got_worse_together_ends_with_status_3(vote: Place) -> None:
    rates = {name: 0.8 if name == best_single(vote) else 0.2 for name in MODELS}
    write_log(vote, "new.jsonl", rates, range(1000, 1200), copy=True)
    status, found = check(vote, "--logs", "new.jsonl")
    assert (status, found["verdict"]) == (3, "worse")
    assert found["p_no_loss"] < 0.05
    ran = vote.advisor("check", "run", "--logs", "new.jsonl", "--quiet")
    assert (ran.status, ran.err) == (3, "")
    assert ran.out.startswith("The recommendation no longer holds.") and ran.out.count("\n") == 1


def test_another_strategy_of_the_run_is_checked_against_its_own_expected_gain(vote: Place) -> None:
    write_log(vote, "new.jsonl", dict.fromkeys(MODELS, 0.7), range(1000, 1100))
    _, found = check(vote, "--logs", "new.jsonl", "--strategy", "vote")
    [row] = [row for row in vote.json()["strategies"] if row["strategy"] == "vote"]
    assert (found["expected_gain"], found["expected_gain_ci"]) == (row["expected_gain"], row["expected_gain_ci"])
    assert found["expected_gain"] != row["measured_gain"]


def test_a_few_questions_are_unsure_and_name_how_many_would_tell(vote: Place) -> None:
    write_log(vote, "new.jsonl", dict.fromkeys(MODELS, 0.7), range(1000, 1008))
    status, found = check(vote, "--logs", "new.jsonl")
    assert (status, found["verdict"]) == (0, "unclear")
    assert found["questions_needed"] > 8
    assert f"About {found['questions_needed']:,} fresh ones would tell." in found["text"]


def test_questions_of_the_run_are_left_out(vote: Place) -> None:
    write_log(vote, "new.jsonl", dict.fromkeys(MODELS, 0.7), range(590, 690))
    _, found = check(vote, "--logs", "new.jsonl")
    assert (found["n"], found["left_out"]) == (90, 10)
    assert "Left out, because the run has them: 10 questions." in found["text"]


def test_a_single_model_is_checked_against_its_accuracy_in_the_run(vote: Place) -> None:
    for rate, wanted in ((0.7, (0, "equal")), (0.4, (3, "worse"))):
        write_log(vote, "new.jsonl", dict.fromkeys(MODELS, rate), range(1000, 1300))
        status, found = check(vote, "--logs", "new.jsonl", "--strategy", "single")
        assert (status, found["verdict"]) == wanted
        assert (found["measured_gain"], found["p_no_loss"], found["best_single_model"]) == (
            None,
            None,
            best_single(vote),
        )
        assert found["change"] == pytest.approx(found["accuracy"] - found["accuracy_in_run"])


def test_questions_without_a_response_are_counted_and_said(vote: Place) -> None:
    shutil.copytree(vote.folder / "run", vote.folder / "new")
    lines = [json.loads(line) for line in (vote.folder / "run" / "samples.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines):
        line["prompt"] = f"New {line['prompt']}"
        failed = {"score": 0, "finish_reason": "error", "error": "timeout", "extracted": None, "text": None}
        if number < 5:
            line["responses"] = {name: {**answer, **failed} for name, answer in line["responses"].items()}
    vote.write("new/samples.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines))
    _, found = check(vote, "--logs", "new")
    assert (found["n"], found["errors"]) == (600, 5)
    assert "5 questions without a response count as wrong." in found["text"]


def test_clusters_widen_the_interval(vote: Place) -> None:
    lines = []
    for n in range(1000, 1200):
        # All questions of a passage have the same result.
        right = (n // 10) % 3
        cells = {
            name: ["yes" if number != right else "no", int(number != right), 3] for number, name in enumerate(MODELS)
        }
        lines.append(
            json.dumps({"id": n, "question": f"Q {n}?", "group": str(n // 10), "reference": "yes", "models": cells})
        )
    vote.write("new.jsonl", "\n".join(lines) + "\n")
    plain, clustered = (
        check(vote, "--logs", "new.jsonl", *more)[1]["measured_gain_ci"] for more in ((), ("--column", "cluster=group"))
    )
    assert plain[0] > clustered[0] and plain[1] <= clustered[1]


def test_a_log_without_fresh_questions_is_refused(vote: Place) -> None:
    line = vote.refused("check", "run", "--logs", "first.jsonl")
    assert line == (
        "advisor: --logs: the run has all of its 600 questions, so none is fresh; give new questions, for example "
        "another log"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda result: result["advice"].update(recommendation=None), "it recommends nothing"),
        (lambda result: result["strategies"][0].update(expected_gain="much"), "expected_gain should be a number"),
        (
            lambda result: result["advice"]["recommendation"].update(accuracy=None),
            "should have expected_gain, accuracy",
        ),
    ],
)
def test_an_odd_run_is_one_line(vote: Place, change: Callable[[dict[str, Any]], object], message: str) -> None:
    vote.edit(change)
    assert message in vote.refused("check", "run", "--logs", "first.jsonl")


def test_a_run_of_logs_says_what_it_lacks(vote: Place) -> None:
    strategy = ("--logs", "first.jsonl", "--strategy", "unite")
    assert "--strategy unite: run/result.json has no such strategy" in vote.refused("check", "run", *strategy)
    assert "was made from logs; give --logs FILE with fresh questions, or --task" in vote.refused("check", "run")
    vote.task(metric="exact_match")
    assert "it does not say where its model" in vote.refused("check", "run", "--task", "task.yaml")
    (vote.folder / "run" / "samples.jsonl").unlink()
    assert "samples.jsonl: the run's questions are in this file" in vote.refused(
        "check", "run", "--logs", "first.jsonl"
    )
    assert "no such folder" in vote.refused("check", "gone", "--logs", "first.jsonl")


# --- From models ---


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The option for the responses of the demo's models, which other tests have, too."""
    return "--cache-dir", str(demo_cache(tmp_path_factory) / "unite-advisor")


@pytest.fixture
def run(place: Place, demo_run: Path) -> Place:
    """A place with a copy of a run on the demo's models, and a task with 8 fresh questions and 2 of the run."""
    shutil.copytree(demo_run, place.folder / "run")
    data = ROOT / "advisor" / "demo" / "data"
    records = map(json.loads, (data / "held_out.jsonl").read_text(encoding="utf-8").splitlines())
    questions = {record["question"]: record for record in records}
    asked = [each["prompt"].split("Question: ")[1].split("\n")[0] for each in place.samples("held_out")]
    fresh = [record for question, record in questions.items() if question not in asked][:8]
    for name, records in (("mixed", [questions[asked[0]], questions[asked[1]], *fresh]), ("fresh", fresh)):
        place.write(f"{name}.jsonl", "".join(f"{json.dumps(record)}\n" for record in records))
        task = (ROOT / "advisor" / "demo" / "word_problems.yaml").read_text(encoding="utf-8")
        own = f"data: {{dev: dev.jsonl, held_out: {name}.jsonl}}"
        place.write(f"{name}.yaml", re.sub("^data:.*$", own, task, flags=re.MULTILINE))
    shutil.copy(data / "dev.jsonl", place.folder)
    return place


def test_models_are_asked_fresh_questions_only_and_score_as_in_evaluate(run: Place, cache: tuple[str, str]) -> None:
    for strategy, method in (("unite", "unite"), ("vote", "voting")):
        members = next(each["members"] for each in run.json()["strategies"] if each["strategy"] == strategy)
        methods = "--methods", method, "--members", ",".join(members)
        ran = run.advisor("evaluate", "run", "--task", "fresh.yaml", *methods, "--json", "--quiet", *cache)
        assert (ran.status, ran.err) == (0, "")
        evaluated = json.loads(ran.out)
        accuracies = {each["method"]: each["accuracy"] for each in evaluated["methods"]}
        alone = {each["model"]: each["accuracy"] for each in evaluated["members"]}
        _, found = check(run, "--task", "mixed.yaml", "--strategy", strategy, *cache)
        assert found["members"] == members
        assert (found["n"], found["left_out"]) == (8, 2)
        assert found["accuracy"] == accuracies[method]
        assert found["best_single_accuracy"] == alone[found["best_single_model"]]


def test_without_a_task_fresh_questions_of_the_runs_own_are_asked(run: Place, cache: tuple[str, str]) -> None:
    _, found = check(run, "--strategy", "single", "--limit", "2", *cache)
    assert (found["task"], found["n"]) == ("word_problems", 2)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (None, "does not say which task it had; give --task"),
        ({"task": ["a"]}, "does not say which task it had"),
        ({"task": "lm_eval:gsm8k"}, "give --task lm_eval:gsm8k to load the task of the run, which may run code"),
        ({"task": "gsm8k", "data": "/data"}, "--data is missing: the run read gsm8k from /data"),
    ],
)
def test_a_task_of_the_run_that_only_the_user_may_name_is_refused(
    run: Place, settings: dict[str, Any] | None, says: str
) -> None:
    run.edit(lambda result: result["provenance"].update(settings=settings))
    assert says in run.refused("check", "run")


def test_questions_with_other_prompts_than_the_run_are_noted(run: Place, cache: tuple[str, str]) -> None:
    task = (run.folder / "mixed.yaml").read_text()
    run.write("mixed.yaml", task.replace("Question:", "Sum:"))
    ran = run.advisor("check", "run", "--task", "mixed.yaml", "--limit", "1", "--strategy", "single", *cache)
    assert "has other prompts or another metric than the run" in ran.err


def test_a_task_without_fresh_questions_is_refused_before_a_model_runs(run: Place) -> None:
    lines = (run.folder / "mixed.jsonl").read_text().splitlines()
    run.write("mixed.jsonl", "\n".join(lines[:2]))
    line = run.refused("check", "run", "--task", "mixed.yaml")
    assert "--split held_out of word_problems: the run has all of its 2 questions, so none is fresh" in line


def test_logs_cannot_check_a_set_that_decodes_together(run: Place) -> None:
    line = run.refused("check", "run", "--strategy", "unite", "--logs", "run")
    assert "write a new text together (unite), and logs have the answers of models alone" in line


@pytest.fixture
def raw(run: Place) -> Iterator[Raw]:
    """A server in place of the first model of the run's vote."""
    with raw_server() as server:
        server.answer = lambda path, _: models("m") if path.endswith("/models") else completion("The answer is 17.")

        def move(result: dict[str, Any]) -> None:
            strategy = next(each for each in result["strategies"] if each["strategy"] == "vote")
            remote = {"address": f"openai:{server.url}#m"}
            result["provenance"]["models"][strategy["members"][0]] = {"remote": remote, "chat_template": "never"}

        run.edit(move)
        yield server


def test_a_server_of_the_run_folder_is_asked_only_with_consent(run: Place, raw: Raw, cache: tuple[str, str]) -> None:
    options = "--task", "mixed.yaml", "--strategy", "vote", "--limit", "3"
    assert "--allow-server" in run.refused("check", "run", *options)
    assert raw.asked == []
    _, found = check(run, *options, "--allow-server", raw.url, *cache)
    assert found["n"] == len(raw.questions) == 3
    # One that does not answer is an error, and no alarm.
    raw.answer = lambda *_: (404, {}, b"{}")
    ran = run.advisor("check", "run", *options, "--quiet", "--allow-server", raw.url)
    assert (ran.status, ran.out, "(404)" in ran.line) == (2, "", True)
