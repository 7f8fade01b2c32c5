"""The report's parts for a decision: cost, questions and groups by models, the page's size; and the methods."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_fixture import (
    data_of,
    make_evaluation,
    make_judges,
    make_result,
    make_samples,
    page_of,
    read,
    text_of,
    write_evaluation,
    write_json,
    write_samples,
    written,
)

from ensemble.common.text import shortened
from ensemble.errors import InputError
from reports import write_report
from reports.charts.svg import plain_style
from reports.report_data import question_columns
from reports.sections import questions, strategies
from reports.sections.strategies import front_of

pytestmark = pytest.mark.usefixtures("no_drawings")


@pytest.fixture
def samples() -> list[dict[str, Any]]:
    return make_samples(dev=30, held_out=40)


@pytest.fixture
def result() -> dict[str, Any]:
    return make_result()


def write(folder: Path, result: dict[str, Any], samples: list[dict[str, Any]]) -> Path:
    return write_samples(write_json(folder, result), samples)


# --- Accuracy and cost ---


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=12))
def test_the_front_has_what_nothing_cheaper_beats(points: list[tuple[int, int]]) -> None:
    expected = {
        (level, cost)
        for level, cost in points
        if not any(other >= level and price <= cost and (other, price) != (level, cost) for other, price in points)
    }
    assert front_of(points) == sorted(expected)


def pareto(result: dict[str, Any], folder: Path) -> dict[str, Any]:
    with plain_style():
        return strategies.strategies(read(write_json(folder, result))) or {}


@pytest.mark.parametrize(
    ("unknown", "what"),
    [
        ((), "price of 1,000 questions"),
        (("price_per_1000",), "time of a question"),
        (("price_per_1000", "seconds_per_question"), "calls a question"),
    ],
)
def test_the_cost_is_the_best_one_that_all_strategies_have(
    tmp_path: Path, result: dict[str, Any], unknown: tuple[str, ...], what: str, drawings: None
) -> None:
    # One strategy without a figure is enough: a point that is left out could be the best one.
    for key in unknown:
        result["strategies"][-1][key] = None
    found = pareto(result, tmp_path)
    assert all(what in svg for svg in found["figure"].values())


def test_strategies_that_cost_the_same_are_not_drawn(tmp_path: Path, result: dict[str, Any], drawings: None) -> None:
    for row in result["strategies"]:
        row["price_per_1000"] = 2.0
    assert pareto(result, tmp_path)["figure"] is None


def test_the_recommended_strategy_has_a_ring_and_its_name_in_bold(
    tmp_path: Path, result: dict[str, Any], drawings: None
) -> None:
    found = pareto(result, tmp_path)
    (best,) = [cell.text for row in found["table"].rows for cell in row if cell.tag]
    for svg in found["figure"].values():
        titles = {
            title.text or "": group
            for group in ElementTree.fromstring(svg).iter("g")
            for title in group.findall("title")
        }
        (marked,) = [group for title, group in titles.items() if title.startswith(f"{best}: ")]
        circles = [group for title, group in titles.items() if " alone: " in title]
        assert marked.get("data-recommended") == "1"
        rings = [path for path in ElementTree.fromstring(svg).iter("path") if path.get("stroke") == "var(--ink)"]
        assert len(rings) == 1 and rings[0].get("fill-opacity") == "0"
        assert circles and all("C" in group.find("path").get("d", "") for group in circles)  # type: ignore[union-attr]
        bold = [text.text for text in ElementTree.fromstring(svg).iter("text") if text.get("font-weight") == "700"]
        assert shortened(best, 20) in bold or best in bold


def test_a_loss_is_a_diamond_in_its_own_colour(tmp_path: Path, result: dict[str, Any], drawings: None) -> None:
    vote = next(row for row in result["strategies"] if row["strategy"] == "vote")
    vote["expected_gain"] = -3.0
    for svg in pareto(result, tmp_path)["figure"].values():
        for group in ElementTree.fromstring(svg).iter("g"):
            title, path = group.find("title"), group.find("path")
            if title is not None and path is not None and (title.text or "").startswith("Vote, 3 models"):
                assert ": 78.0 points, " in (title.text or "")
                assert (path.get("fill"), path.get("stroke")) == ("var(--paper)", "var(--rejected)")


def test_single_models_outside_the_comparison_are_points_too(
    tmp_path: Path, result: dict[str, Any], drawings: None
) -> None:
    low = min(row["accuracy"] for row in result["strategies"])
    result["single_models"] = [
        {"model": "near", "n": 40, "accuracy": low, "seconds_per_question": 0.1, "price_per_1000": 0.1},
        {"model": "far", "n": 40, "accuracy": 1.0, "seconds_per_question": 0.1, "price_per_1000": 0.2},
        {"model": "free", "n": 40, "accuracy": low, "seconds_per_question": 0.1, "price_per_1000": None},
    ]
    found = pareto(result, tmp_path)
    assert found["far"] == 1
    assert "near alone: " in found["figure"]["wide"] and "far alone: " not in found["figure"]["wide"]
    assert "free alone: " not in found["figure"]["wide"]


# --- Questions and models ---


def test_each_cell_says_whether_the_model_is_right(tmp_path: Path, result: dict[str, Any], samples: Any) -> None:
    questions = data_of(page_of(write(tmp_path, result, samples)))["questions"]
    names = [candidate["model"] for candidate in result["candidates"]]
    ordered = [*(each for each in samples if each["split"] == "held_out"), *(s for s in samples if s["split"] == "dev")]
    assert questions["ids"] == [sample["id"] for sample in ordered] and questions["heldOut"] == 40
    expected = ""
    for sample in ordered:
        for number in questions["models"]:
            response = sample["responses"].get(names[number])
            expected += "-" if response is None else str(int(response["score"]))
    assert questions["cells"] == expected
    # A model that failed was asked nothing, and has no column.
    assert names.index("broken-pieces") not in questions["models"]


def test_the_recommended_strategy_recovers_and_breaks(tmp_path: Path, result: dict[str, Any], samples: Any) -> None:
    chance, best = random.Random(1), result["ensemble"]["best_single_model"]
    expected = {}
    for sample in samples:
        if sample["split"] == "held_out":
            name, right, alone = "terse-bytes", chance.random() < 0.5, sample["responses"][best]["score"] == 1
            sample["recommended"] = {"model": name, "draw": 0, "extracted": "1", "score": float(right)}
            expected[sample["id"]] = None if right == alone else "recovered" if right else "broken"
    questions = data_of(page_of(write(tmp_path, result, samples)))["questions"]
    kinds = list(questions["kinds"])
    for name, flag in zip(questions["ids"], questions["flags"], strict=True):
        held = {kind for place, kind in enumerate(kinds) if (ord(flag) - ord("a")) >> place & 1}
        assert held & {"recovered", "broken"} == ({expected[name]} - {None} if name in expected else set())


@pytest.mark.parametrize(
    ("right", "kind"),
    [({0: True, 1: True}, "right"), ({0: False, 1: False}, "wrong"), ({0: True, 1: False}, "disagree"), ({}, None)],
)
def test_a_question_is_of_one_kind_for_the_models(
    tmp_path: Path, result: dict[str, Any], right: dict[int, bool], kind: str | None
) -> None:
    names = [candidate["model"] for candidate in result["candidates"]]
    responses = {names[number]: {"text": "7", "score": float(is_right)} for number, is_right in right.items()}
    write(tmp_path, result, [{"id": "q", "split": "held_out", "prompt": "?", "responses": responses}])
    samples = read(tmp_path).samples
    assert samples is not None
    flag = ord(samples.questions["flags"]) - ord("a")
    kinds = [name for place, name in enumerate(samples.questions["kinds"]) if flag >> place & 1]
    assert kinds == ([] if kind is None else [kind])
    assert samples.questions["models"] == sorted(right)


def test_without_script_the_page_has_the_counts(tmp_path: Path, result: dict[str, Any], samples: Any) -> None:
    page = page_of(write(tmp_path, result, samples))
    static = page.partition('<div id="questions-static">')[2].partition("</details>")[0]
    # 40 of the 70 questions are held out, and the strategy answered only these.
    drawn = questions.questions(read(tmp_path))
    assert drawn is not None
    for _, count, share in drawn["counts"][:2]:
        assert share == pytest.approx(count / 40)
    assert "Recovered</th>" in static and "With JavaScript, this page has 70" in static


@pytest.mark.parametrize("graded", ["judge", "corpus_score"])
def test_grades_are_not_right_or_wrong(tmp_path: Path, result: dict[str, Any], samples: Any, graded: str) -> None:
    if graded == "judge":
        result["judge"], _ = make_judges()
    else:
        result["candidates"][0]["corpus_score"] = 31.0
    page = page_of(write(tmp_path, result, samples))
    assert 'id="questions"' not in page and data_of(page)["questions"] is None


def test_with_more_questions_each_text_is_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reports.report_data.MOST_BYTES_OF_ROWS", 70_000)

    def shown(count: int, text: str) -> tuple[dict[str, Any], int]:
        responses = [{"by": number, "right": 1} for number in range(28)]
        questions = [
            ({"id": f"q{n}", "ask": text, "split": "dev" if n % 2 else "held_out", "responses": responses}, True, set())
            for n in range(count)
        ]
        return question_columns(questions, 28)

    (few, _), (many, weight) = shown(100, "word " * 60), shown(1000, "word " * 60)
    assert len(few["ids"]) == 100 and len(many["ids"]) == 1000
    assert len(few["asks"][0]) > len(many["asks"][0]) >= 16
    assert weight <= 70_000
    # Held-out questions come first.
    assert few["heldOut"] == 50 and few["ids"][:2] == ["q0", "q2"] and few["ids"][50] == "q1"
    assert 0 < len(shown(2000, "<b>" * 60)[0]["ids"]) < 2000


# --- Groups and models ---


def test_groups_are_a_table_with_intervals_and_a_note_on_few(tmp_path: Path, result: dict[str, Any]) -> None:
    for place, candidate in enumerate(result["candidates"]):
        if candidate["groups"]:
            candidate["groups"] = {
                "algebra": {"n": 100, "accuracy": 90.0 - place, "accuracy_ci": [80.0, 95.0]},
                "history": {"n": 8, "accuracy": 50.0, "accuracy_ci": None},
            }
    page = page_of(write_json(tmp_path, result))
    table = page.partition('id="group_models"')[2].partition("</details>")[0]
    assert '90.0 <span class="range">80.0 to 95.0</span>' in table
    assert table.count('<span class="tag">few</span>') == 1 and "less than 20 questions" in table
    # The largest accuracy has the strongest colour, the smallest one the weakest; all have numbers.
    assert 'class="num heat-8" data-value="90.0">90.0' in table and 'class="num heat-0" data-value="50.0">50.0' in table


# --- Methods ---


HEADING = "Methods side by side"


def with_methods(folder: Path, result: dict[str, Any], evaluation: dict[str, Any]) -> str:
    return page_of(write_evaluation(write_json(folder, result), evaluation))


def test_methods_that_were_evaluated_have_a_section_with_their_figures(tmp_path: Path, result: dict[str, Any]) -> None:
    assert HEADING not in written(tmp_path, result)
    page = with_methods(tmp_path, result, make_evaluation())
    text = text_of(page)
    assert "and evaluation.json. This file loads nothing" in text
    section = text[text.index(HEADING) :]
    unite = section[section.index("unite tokens") : section.index("gac-threshold tokens")]
    run = result["ensemble"]
    for figure in (f"{run['accuracy']:.1f}", f"{run['difference']:+.1f}", "0.031", "2.04", "100%", "24", "701 MB"):
        assert f" {figure} " in unite, figure
    assert "7% 2,400" in section and "1,234" in section and "Holm" in section
    assert all(f"{model} alone" in section for model in result["selected"])
    assert "average Left out: method average: it needs one vocabulary. tokens – –" in section


def test_the_methods_of_another_set_are_not_shown_as_this_ones(tmp_path: Path, result: dict[str, Any]) -> None:
    evaluation = make_evaluation()
    evaluation["members"][0]["model"] = "gone"
    text = text_of(with_methods(tmp_path, result, evaluation))
    assert "evaluation.json describes another set: gone," in text
    assert "ms/token" not in text


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ('{"schema_version": 2,\n "methods": [', "evaluation.json:2: not JSON"),
        ("{}", "evaluation.json: schema_version is missing"),
        (
            '{"schema_version": 2, "methods": [{"method": "a", "level": "word"}]}',
            "evaluation.json: methods[0].level should be token, span, response or control",
        ),
    ],
)
def test_a_damaged_evaluation_is_one_line_with_place_and_way_out(
    tmp_path: Path, result: dict[str, Any], content: str, place: str
) -> None:
    write_json(tmp_path, result)
    (tmp_path / "evaluation.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        write_report(tmp_path)
    message = str(caught.value)
    assert place in message and "run `advisor evaluate` again, or delete the file" in message and "\n" not in message
    assert not (tmp_path / "report.html").exists()


def test_an_evaluation_without_figures_is_drawn(tmp_path: Path, result: dict[str, Any]) -> None:
    bare = {
        "schema_version": 2,
        "members": [{"model": name} for name in result["selected"]],
        "methods": [{"method": "unite", "level": "token"}],
        "news": json.dumps([1]),
    }
    assert "unite tokens" in text_of(with_methods(tmp_path, result, bare))
