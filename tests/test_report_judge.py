"""The figures of a judge in result.json, evaluation.json, on the terminal and in the report, on real runs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pools import Place, shared_place
from report_fixture import read
from servers import Answer, Raw, completion, models, raw_server
from test_judge import PAIRWISE, QUESTIONS, SINGLE, accuracies, asked, line, longer, prepare, serve

from reports.page import section_values

pytest_plugins = ["pools"]
pytestmark = pytest.mark.usefixtures("no_pauses")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A run whose judge prefers the longer response, beside a second one that sees only ties, and its server."""
    with raw_server() as raw, shared_place(tmp_path_factory.mktemp("compared")) as place:
        serve(raw, judge=longer, second=lambda _: "[[C]]")
        arguments = prepare(place, raw, PAIRWISE)
        ran = place.advisor("select", *arguments, "--judge", line(raw, "second"), "--out", "run")
        assert ran.status == 0
        yield SimpleNamespace(place=place, raw=raw, err=ran.err, prompts=asked(raw))


def page(place: Place) -> str:
    return (place.folder / "run" / "report.html").read_text(encoding="utf-8")


def test_a_win_share_is_the_mean_over_all_opponents_in_both_orders(compared: SimpleNamespace) -> None:
    # Of three opponents, one of them the response itself, which is a tie.
    assert accuracies(compared.place) == pytest.approx({"short": 100 / 6, "medium": 50, "longest": 500 / 6})
    # Two splits, three pairs, two orders.
    assert len(compared.prompts) == len(set(compared.prompts)) == 2 * QUESTIONS * 3 * 2


def test_comparisons_have_figures_in_the_result_on_the_terminal_and_in_the_report(compared: SimpleNamespace) -> None:
    found = compared.place.json()["judge"]
    assert (found["mode"], found["judges"]) == ("pairwise", ["judge", "second"])
    assert [(each["split"], each["verdicts"]) for each in found["splits"]] == [("dev", 36), ("held_out", 36)]
    last = found["splits"][-1]
    assert [each["model"] for each in last["models"]] == ["longest", "medium", "short"]
    assert last["models"][1]["win_rate"] == pytest.approx(50)
    assert last["changed"]["share"] == 0
    assert last["longer_wins"]["share"] == 100
    assert last["agreement"]["equal"] == 0
    assert "points are win rates" in compared.err
    assert "the longer response wins 100.0%" in compared.err
    html = page(compared.place)
    assert 'id="judge"' in html
    assert "second says the same in 0.0% of 36 verdicts" in html
    assert ">Win rate</th>" in html
    assert ">Accuracy</th>" not in html


def test_the_evaluation_of_methods_has_the_judge(compared: SimpleNamespace) -> None:
    place, raw = compared.place, compared.raw
    run = shutil.copytree(place.folder / "run", place.folder / "evaluated")
    options = ("--task", "task.yaml", "--judge", line(raw, "judge"), "--methods", "mbr", "--allow-server", raw.url)
    ran = place.advisor("evaluate", "evaluated", *options)
    assert ran.status == 0, ran.err
    found = place.json("evaluated/evaluation.json")["judge"]["splits"][-1]
    judged = {each["model"].partition(" of ")[0] for each in found["models"]}
    assert {"short", "medium", "longest", "mbr"} <= judged
    assert "points are win rates" in ran.out
    values = section_values(read(run))["judge"]
    assert [title for title, *_ in values["parts"]][-1] == "advisor evaluate, held-out questions"


def test_a_judge_that_prefers_a_place_is_named_in_the_warnings(place: Place, raw: Raw) -> None:
    serve(raw, judge=lambda _: "[[A]]")
    arguments = prepare(place, raw, PAIRWISE)
    assert place.advisor("select", *arguments, "--out", "run", "--quiet").status == 0
    assert any("changes its verdict on 100% of" in each for each in place.json()["advice"]["warnings"])
    split = place.json()["judge"]["splits"][-1]
    assert split["first_wins"]["share"] == 100
    assert split["equal_first_wins"] > 95
    assert [each["win_rate"] for each in split["models"]] == pytest.approx([50, 50, 50])
    assert "; their order changes 100.0% of its verdicts</bdi></h2>" in page(place)


def test_a_grade_is_the_share_of_the_scale_and_has_figures_in_the_result_and_in_the_report(
    place: Place, raw: Raw
) -> None:
    grades = {"short": 1, "medium": 4, "longest": 10}
    serve(
        raw,
        judge=lambda prompt: f"It is short. Rating: [[{grades[prompt.split(' | ')[1]]}]].",
        second=lambda prompt: f"[[{min(grades[prompt.split(' | ')[1]] + 2, 10)}]]",
    )
    arguments = prepare(place, raw, SINGLE)
    ran = place.advisor("select", *arguments, "--judge", line(raw, "second"), "--out", "run")
    assert ran.status == 0
    assert accuracies(place) == pytest.approx({"short": 0, "medium": 100 / 3, "longest": 100})
    found = place.json()
    assert re.search(r"\|judge:judge@[0-9a-f]{12}$", found["task"]["signature"])
    assert list(found["provenance"]["judges"]) == ["judge", "second"]
    last = found["judge"]["splits"][-1]
    assert {each["model"]: each["score"] for each in last["models"]} == pytest.approx(accuracies(place))
    # Two grades more, but for the best grade.
    assert last["agreement"]["within_one"] == pytest.approx(100 / 3)
    assert last["agreement"]["spearman"] == pytest.approx(1)
    assert last["length"]["spearman"] == pytest.approx(1)
    assert found["judge"]["head_to_head"] == []
    assert "points are grades" in ran.err
    html = page(place)
    assert ">Grade</th>" in html and "judge gives the best grades to longest: 100.0 points</bdi></h2>" in html


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
        for n in range(60)
    ]
    place.task(questions, metric="judge", judge=PAIRWISE, group="{{topic}}")
    place.pool(line(raw, "cats"), line(raw, "sums"))
    arguments = ("--pool", "models.txt", "--task", "task.yaml", "--judge", line(raw, "judge"), "--max-gap", "100")
    ran = place.advisor("select", *arguments, "--out", "run")
    assert ran.status == 0
    (found,) = place.json()["judge"]["head_to_head"]
    assert (found["strategy"], found["rival"]) == ("group_router", "sums")
    # It wins all questions about cats, and has the response of the other model to the rest, which is a tie.
    about_cats = sum("cat" in each["prompt"] for each in place.samples("held_out"))
    assert found["questions"] == 30
    assert found["win_rate"] == pytest.approx(100 * (about_cats + (30 - about_cats) / 2) / 30)
    low, high = found["win_rate_ci"]
    assert 50 < low < found["win_rate"] < high
    assert f"its responses win {found['win_rate']:.1f}% against those of sums" in ran.out
    assert "Group router, 2 models: wins" in page(place)
