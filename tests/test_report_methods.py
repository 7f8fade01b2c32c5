"""Methods side by side in the report: there where evaluation.json is, and only where it is of the chosen set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_fixture import make_evaluation, make_result, write_evaluation, write_json
from test_report import text_of

from ensemble.errors import InputError
from reports import write_report

pytestmark = pytest.mark.usefixtures("no_drawings")

HEADING = "Methods side by side"


@pytest.fixture
def result() -> dict[str, Any]:
    return make_result()


def page_of(folder: Path, result: dict[str, Any], evaluation: dict[str, Any] | None) -> str:
    write_json(folder, result)
    if evaluation is not None:
        write_evaluation(folder, evaluation)
    return write_report(folder).read_text(encoding="utf-8")


def test_there_is_a_section_where_methods_were_evaluated_and_only_there(tmp_path: Path, result: dict[str, Any]) -> None:
    assert HEADING not in page_of(tmp_path, result, None)
    page = page_of(tmp_path, result, make_evaluation(result))
    assert HEADING in text_of(page) and '<a href="#methods">' in page
    assert "and evaluation.json. This file loads nothing" in text_of(page)


def test_a_line_has_the_figures_of_its_method(tmp_path: Path, result: dict[str, Any]) -> None:
    text = text_of(page_of(tmp_path, result, make_evaluation(result)))
    section = text[text.index(HEADING) : text.index("Leaderboard", text.index(HEADING))]
    unite = section[section.index("unite tokens") : section.index("gac-threshold tokens")]
    run = result["ensemble"]
    for figure in (f"{run['accuracy']:.1f}", f"{run['difference']:+.1f}", "0.031", "2.04", "100%", "24", "701 MB"):
        assert f" {figure} " in unite, figure
    assert "7% 2,400" in section and "1,234" in section
    for model in result["selected"]:
        assert f"{model} alone" in section
    assert "Holm" in section


def test_what_was_left_out_has_its_reason(tmp_path: Path, result: dict[str, Any]) -> None:
    text = text_of(page_of(tmp_path, result, make_evaluation(result)))
    assert "average Left out: method average: it needs one vocabulary. tokens – –" in text


def test_the_methods_of_another_set_are_not_shown_as_this_ones(tmp_path: Path, result: dict[str, Any]) -> None:
    evaluation = make_evaluation(result)
    evaluation["members"][0]["model"] = "gone"
    text = text_of(page_of(tmp_path, result, evaluation))
    assert "evaluation.json describes another set: gone," in text
    assert "ms/token" not in text


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ('{"schema_version": 2,\n "methods": [', "evaluation.json:2: not JSON"),
        ("{}", "evaluation.json: schema_version is missing"),
        ('{"schema_version": [1]}', "evaluation.json: schema_version should be 2"),
        ('{"schema_version": 2, "methods": [{}]}', "evaluation.json: methods[0].method is missing"),
        (
            '{"schema_version": 2, "methods": [{"method": "a", "level": "token", "difference": "much"}]}',
            "evaluation.json: methods[0].difference should be a number",
        ),
        (
            '{"schema_version": 2, "methods": [{"method": "a", "level": "word"}]}',
            "evaluation.json: methods[0].level should be token, span, response or control",
        ),
    ],
)
def test_a_damaged_evaluation_is_one_line_with_place_and_way_out(
    tmp_path: Path, result: dict[str, Any], written: str, place: str
) -> None:
    write_json(tmp_path, result)
    (tmp_path / "evaluation.json").write_text(written, encoding="utf-8")
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
    assert "unite tokens" in text_of(page_of(tmp_path, result, bare))
