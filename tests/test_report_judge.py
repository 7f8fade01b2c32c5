"""The figures of a judge in result.json, evaluation.json, on the terminal and in the report, on real runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from servers import Answer, Raw, completion, models
from test_judge import PAIRWISE, SINGLE, line, longer, prepare, result, serve

from advisor.run.folder import Run
from reports.page import section_values
from reports.report_data import report_data

if TYPE_CHECKING:
    from pools import Place

pytest_plugins = ["pools"]
pytestmark = pytest.mark.usefixtures("no_pauses")


def judged(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = result(place)["judge"]
    return found


def page(place: Place) -> str:
    return (place.folder / "run" / "report.html").read_text(encoding="utf-8")


def test_comparisons_have_figures_in_the_result_on_the_terminal_and_in_the_report(place: Place, raw: Raw) -> None:
    serve(raw, judge=longer, second=lambda _: "[[C]]")
    arguments = prepare(place, raw, PAIRWISE)
    ran = place.advisor("select", *arguments, "--judge", line(raw, "second"), "--out", "run")
    assert ran.status == 0
    found = judged(place)
    assert (found["mode"], found["judges"]) == ("pairwise", ["judge", "second"])
    assert [(each["split"], each["verdicts"]) for each in found["splits"]] == [("dev", 36), ("held_out", 36)]
    last = found["splits"][-1]
    assert [each["model"] for each in last["models"]] == ["longest", "medium", "short"]
    assert last["models"][1]["win_rate"] == pytest.approx(50)
    assert last["changed"]["share"] == 0
    assert last["longer_wins"]["share"] == 100
    assert last["agreement"]["equal"] == 0
    assert "points are win rates" in ran.err
    assert "the longer response wins 100.0%" in ran.err
    html = page(place)
    assert 'id="judge"' in html
    assert "second says the same in 0.0% of 36 verdicts" in html
    assert ">Win rate</th>" in html
    assert ">Accuracy</th>" not in html


def test_a_judge_that_prefers_a_place_is_named_in_the_warnings(place: Place, raw: Raw) -> None:
    serve(raw, judge=lambda _: "[[A]]")
    questions = [{"question": f"What is {n} + {n}?", "answer": str(n)} for n in range(40)]
    arguments = prepare(place, raw, PAIRWISE, questions=questions)
    assert place.advisor("select", *arguments, "--out", "run", "--quiet").status == 0
    assert any("changes its verdict on 100% of" in each for each in result(place)["advice"]["warnings"])
    split = judged(place)["splits"][-1]
    assert split["first_wins"]["share"] == 100
    assert split["equal_first_wins"] > 95
    assert [each["win_rate"] for each in split["models"]] == pytest.approx([50, 50, 50])


def test_grades_have_figures_in_the_result_and_in_the_report(place: Place, raw: Raw) -> None:
    grades = {"short": 1, "medium": 4, "longest": 10}
    serve(
        raw,
        judge=lambda prompt: f"[[{grades[prompt.split(' | ')[1]]}]]",
        second=lambda prompt: f"[[{min(grades[prompt.split(' | ')[1]] + 2, 10)}]]",
    )
    arguments = prepare(place, raw, SINGLE)
    ran = place.advisor("select", *arguments, "--judge", line(raw, "second"), "--out", "run")
    assert ran.status == 0
    last = judged(place)["splits"][-1]
    assert {each["model"]: each["score"] for each in last["models"]} == pytest.approx(
        {"short": 0, "medium": 100 / 3, "longest": 100}
    )
    # Two grades more, but for the best grade.
    assert last["agreement"]["within_one"] == pytest.approx(100 / 3)
    assert last["agreement"]["spearman"] == pytest.approx(1)
    assert last["length"]["spearman"] == pytest.approx(1)
    assert judged(place)["head_to_head"] == []
    assert "points are grades" in ran.err
    assert ">Grade</th>" in page(place)


def by_subject(path: str, body: dict[str, Any]) -> Answer:
    """Two candidates: one writes the better responses about cats, and the other one about sums."""
    if path.endswith("/models"):
        return models("cats", "sums", "judge")
    prompt = body["prompt"]
    if body["model"] != "judge" or prompt == "Hello":
        return completion(body["model"])
    question, first, _ = prompt.split(" | ")
    return completion("[[A]]" if (first == "cats") == ("cat" in question) else "[[B]]")


def test_a_router_is_compared_directly_with_the_best_single_model(place: Place, raw: Raw) -> None:
    raw.answer = by_subject
    subjects = ["Tell of the black cat in a garden", "Add these two numbers for a sum", "Why do sums have an order"]
    questions = [
        {"question": f"{subjects[n % 3]}, {n}", "answer": "0", "topic": "cats" if n % 3 == 0 else "sums"}
        for n in range(90)
    ]
    place.task(questions, metric="judge", judge=PAIRWISE, group="{{topic}}")
    place.pool(line(raw, "cats"), line(raw, "sums"))
    arguments = ("--pool", "models.txt", "--task", "task.yaml", "--judge", line(raw, "judge"), "--max-gap", "100")
    ran = place.advisor("select", *arguments, "--out", "run")
    assert ran.status == 0
    (found,) = judged(place)["head_to_head"]
    assert (found["strategy"], found["rival"]) == ("group_router", "sums")
    # It wins all questions about cats, and has the response of the other model to the rest, which is a tie.
    held_out = [json.loads(each) for each in (place.folder / "run" / "samples.jsonl").read_text().splitlines()]
    about_cats = sum("cat" in each["prompt"] for each in held_out if each["split"] == "held_out")
    assert found["questions"] == 45
    assert found["win_rate"] == pytest.approx(100 * (about_cats + (45 - about_cats) / 2) / 45)
    low, high = found["win_rate_ci"]
    assert 50 < low < found["win_rate"] < high
    assert f"its responses win {found['win_rate']:.1f}% against those of sums" in ran.out
    assert "Group router, 2 models: wins" in page(place)


def test_the_evaluation_of_methods_has_the_judge(place: Place, raw: Raw) -> None:
    serve(raw, judge=longer)
    arguments = prepare(place, raw, PAIRWISE)
    assert place.advisor("select", *arguments, "--out", "run", "--quiet").status == 0
    options = ("--task", "task.yaml", "--judge", line(raw, "judge"), "--methods", "mbr", "--allow-server", raw.url)
    ran = place.advisor("evaluate", "run", *options)
    assert ran.status == 0, ran.err
    evaluation = json.loads((place.folder / "run" / "evaluation.json").read_text(encoding="utf-8"))
    found = evaluation["judge"]["splits"][-1]
    judged = {each["model"].partition(" of ")[0] for each in found["models"]}
    assert {"short", "medium", "longest", "mbr"} <= judged
    assert "points are win rates" in ran.out
    values = section_values(report_data(Run.open(place.folder / "run")))["judge"]
    assert [title for title, *_ in values["parts"]][-1] == "advisor evaluate, held_out questions"
