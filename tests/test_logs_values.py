"""Logs in which responses, references, ids and tables have other forms: read right, counted, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from excel import replace_in, write_book
from forms import BLANK_REFERENCES, REFERENCES, RESPONSES, SPELLED_REFERENCES, TEXT, UNCLOSED, UNKNOWN_RESPONSES
from pools import Place

from advisor.logs.join import JoinedLogs, Scoring, join_logs
from advisor.logs.sources import LogOptions
from ensemble.errors import InputError
from tests.logs import write_lines as lines
from tests.logs import write_table as table

pytest_plugins = ["pools"]

N = 8
RIGHT = {"alpha": 6, "beta": 4}
"""The number of questions that each model answers right: the first ones."""


def rows(response: Callable[[int], object] = str, **fields: Any) -> list[dict[str, Any]]:
    """A row for each question and model; a right response is that of the number 5."""
    return [
        {"id": n, "question": f"What is {n}+5-{n}?", "reference": "5", "model": name}
        | {key: value(n) if callable(value) else value for key, value in fields.items()}
        | {"response": response(5 if n < right else 6)}
        for n in range(N)
        for name, right in RIGHT.items()
    ]


def joined(*paths: Path, metric: str = "number", models: Sequence[str] = ()) -> JoinedLogs:
    options = LogOptions(model_columns=tuple(models))
    return join_logs([str(path) for path in paths], options, scoring=Scoring.of_text(metric))


def right(logs: JoinedLogs) -> dict[str, float]:
    return {name: sum(answer.score for answer in profile.answers) for name, profile in logs.profiles.items()}


def in_form(form: object, number: int) -> Any:
    return json.loads(json.dumps(form).replace(TEXT, f"It is {number}"))


@pytest.mark.parametrize("form", RESPONSES)
@pytest.mark.parametrize("spell", [None, json.dumps, repr])
def test_responses_in_each_form_are_scored(form: str, spell: Any, tmp_path: Path) -> None:
    if spell is None:
        path = lines(tmp_path / "log.jsonl", rows(lambda number: in_form(RESPONSES[form], number)))
    else:
        path = table(tmp_path / "log.csv", rows(lambda number: spell(in_form(RESPONSES[form], number))))
    assert right(joined(path)) == RIGHT


@pytest.mark.parametrize("form", UNKNOWN_RESPONSES)
def test_a_response_in_another_form_is_refused_with_its_place(form: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "log.jsonl", rows(lambda _: UNKNOWN_RESPONSES[form]))
    with pytest.raises(InputError, match=r"log.jsonl:1: the response in the column response is an? .*--column"):
        joined(path)


@pytest.mark.parametrize(
    ("form", "spell"),
    [*product(REFERENCES, (None, json.dumps, repr)), *((form, str) for form in SPELLED_REFERENCES)],
)
def test_references_in_each_form_are_accepted(form: str, spell: Any, tmp_path: Path) -> None:
    said = (REFERENCES | SPELLED_REFERENCES)[form]
    if spell is None:
        path = lines(tmp_path / "log.jsonl", rows(lambda n: f"Town {n}", reference=lambda _: said))
    else:
        path = table(tmp_path / "log.csv", rows(lambda n: f"Town {n}", reference=spell(said)))
    assert right(joined(path, metric="exact_match")) == RIGHT


def test_a_column_in_which_some_references_are_lists_has_texts(tmp_path: Path) -> None:
    answers = ["['a', 'b']", "7"]
    items = [{**row, "reference": answers[row["id"] % 2], "response": answers[row["id"] % 2]} for row in rows()]
    assert right(joined(table(tmp_path / "log.csv", items), metric="exact_match")) == {"alpha": N, "beta": N}


def test_json_is_a_response_and_a_reference_of_a_metric_for_json(tmp_path: Path) -> None:
    items = rows(lambda n: {"sum": n, "text": "x"}, reference=lambda _: {"text": "x", "sum": 5})
    assert right(joined(lines(tmp_path / "log.jsonl", items), metric="json")) == RIGHT
    items = [
        {**row, "reference": json.dumps(row["reference"]), "response": json.dumps(row["response"])} for row in items
    ]
    assert right(joined(table(tmp_path / "log.csv", items), metric="json")) == RIGHT


def test_json_that_models_wrote_is_text_for_other_metrics_and_python_is_refused(tmp_path: Path) -> None:
    said = rows(lambda n: json.dumps({"sum": n, "unit": "m"}), reference=json.dumps({"sum": 5, "unit": "m"}))
    assert right(joined(table(tmp_path / "log.csv", said), metric="exact_match")) == RIGHT
    for said in (lambda n: repr({"sum": n, "unit": "m"}), lambda n: json.dumps([n, "m", "s"])):
        with pytest.raises(InputError, match=r"log\.csv:2: the response in the column response is an? (object|list)"):
            joined(table(tmp_path / "log.csv", rows(said)))


@pytest.mark.parametrize("reference", [["five", "5"], "5|five", "five || 5", {"value": "5", "aliases": ["five"]}])
def test_of_several_accepted_texts_a_metric_uses_those_that_it_can(reference: object, tmp_path: Path) -> None:
    path = lines(tmp_path / "log.jsonl", rows(reference=lambda _: reference))
    assert right(joined(path)) == RIGHT


def test_references_that_a_metric_cannot_use_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--metric number cannot use 8 references; for the question '0' .*five"):
        joined(lines(tmp_path / "log.jsonl", rows(reference="five")))


@pytest.mark.parametrize("form", BLANK_REFERENCES)
def test_questions_without_a_reference_are_left_out_and_counted(form: str, tmp_path: Path) -> None:
    blank = BLANK_REFERENCES[form]
    logs = joined(lines(tmp_path / "log.jsonl", rows(reference=lambda n: blank if n % 4 == 0 else "5")))
    assert right(logs) == {"alpha": 4, "beta": 3}
    assert "left out, because they have no reference: 2 questions of 8" in logs.notes
    with pytest.raises(InputError, match="no question of the logs has a reference"):
        joined(lines(tmp_path / "log.jsonl", rows(reference=lambda _: blank)))


@pytest.mark.parametrize("response", ["", None, [], {"content": None, "role": "assistant"}, {"choices": []}, "  "])
def test_missing_responses_are_counted_for_each_model(response: object, tmp_path: Path) -> None:
    items = [row if row["model"] == "beta" or row["id"] > 2 else {**row, "response": response} for row in rows()]
    logs = joined(lines(tmp_path / "log.jsonl", items))
    assert right(logs) == {"alpha": 3, "beta": 4}
    assert {name: counts["missing"] for name, counts in logs.lost.items()} == {"alpha": 3, "beta": 0}
    assert "some questions have no response and count as wrong: alpha (3)" in logs.notes
    assert any("the order of the models depends on these" in note for note in logs.notes)


def test_errors_are_no_answers_and_are_counted(tmp_path: Path) -> None:
    error = {"error": {"message": "timeout", "code": 504}}
    items = [{**row, "response": error} if row["model"] == "alpha" and row["id"] < 2 else row for row in rows()]
    logs = joined(lines(tmp_path / "log.jsonl", items))
    assert {name: counts["failed"] for name, counts in logs.lost.items()} == {"alpha": 2, "beta": 0}
    assert logs.profiles["alpha"].answers[0].error == "timeout"


IDS: dict[str, Callable[[int], object]] = {
    "decimal": lambda n: f"{n}.0",
    "zeros": lambda n: f"{n:04}",
    "blanks": lambda n: f"{n} ",
    "float": float,
    "blanks before": lambda n: f"\t{n}",
    "other ids": lambda n: f"row-{n}",
    "shuffled": lambda n: (n + 3) % N,
}


@pytest.mark.parametrize("form", IDS)
def test_ids_join_where_only_their_spelling_differs_else_by_the_question(form: str, tmp_path: Path) -> None:
    items = rows()
    first = [row for row in items if row["model"] == "alpha"]
    second = [row | {"id": IDS[form](row["id"])} for row in items if row["model"] == "beta"]
    logs = joined(lines(tmp_path / "a.jsonl", first), lines(tmp_path / "b.jsonl", second))
    assert right(logs) == RIGHT
    assert any("were joined by their text" in note for note in logs.notes) == (form in ("other ids", "shuffled"))


def test_a_reference_and_a_question_join_where_only_their_spelling_differs(tmp_path: Path) -> None:
    items = rows()
    first = [row for row in items if row["model"] == "alpha"]
    second = [
        row | {"reference": 5.0, "question": row["question"].replace(" ", "  ") + " "}
        for row in items
        if row["model"] == "beta"
    ]
    assert right(joined(lines(tmp_path / "a.jsonl", first), lines(tmp_path / "b.jsonl", second))) == RIGHT


def test_logs_with_other_references_say_what_differs(tmp_path: Path) -> None:
    items = [row | ({"reference": "6"} if row["model"] == "beta" else {}) for row in rows()]
    with pytest.raises(InputError, match="'0' has another reference in beta \\('6'\\) than in alpha \\('5'\\)"):
        joined(lines(tmp_path / "log.jsonl", items))


def by_column(items: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in items] for name in items[0]}


ORIENTATIONS: dict[str, Callable[[Sequence[Mapping[str, Any]]], object]] = {
    "columns": lambda items: {name: dict(enumerate(cells)) for name, cells in by_column(items).items()},
    "lists": by_column,
    "index": lambda items: {str(n): row for n, row in enumerate(items)},
    "split": lambda items: {"columns": list(items[0]), "index": [0], "data": [list(row.values()) for row in items]},
    "table": lambda items: {"schema": {"fields": []}, "data": list(items)},
    "wrapped": lambda items: {"date": "2026-11-27", "results": list(items), "settings": {"seed": 0}},
}


@pytest.mark.parametrize("form", ORIENTATIONS)
@pytest.mark.parametrize("indent", [None, 2])
def test_one_json_object_has_its_rows(form: str, indent: int | None, tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(ORIENTATIONS[form](rows()), indent=indent), encoding="utf-8")
    assert right(joined(path)) == RIGHT


def test_names_that_differ_in_blanks_are_one_model(tmp_path: Path) -> None:
    items = [row | {"model": row["model"] + " " * (row["id"] % 2)} for row in rows()]
    assert right(joined(lines(tmp_path / "log.jsonl", items))) == RIGHT


def wide(number: int, **fields: str) -> dict[str, str]:
    answer = str(2 * number)
    cells = {"id": f"q{number}", "question": f"What is {number}+{number}?", "answer": answer, "a": answer, "b": "0"}
    return cells | fields


@pytest.mark.parametrize(
    "other",
    [wide(5, answer="999"), wide(7, id="q5"), wide(5, question="And 5 times 2?"), wide(7, id="q5", answer="15")],
)
def test_an_id_with_two_questions_or_references_has_two_rows(other: dict[str, str], tmp_path: Path) -> None:
    path = table(tmp_path / "log.csv", [*(wide(n) for n in range(1, 7)), other])
    logs = joined(path, metric="exact_match", models=["a", "b"])
    for example, answer in zip(logs.examples, logs.profiles["a"].answers, strict=True):
        assert (answer.score, answer.id) == (answer.text == example.reference, example.id)
    assert len({example.id for example in logs.examples}) == len(logs.examples) == 7
    assert any("1 id has several questions or references" in note for note in logs.notes)
    assert not any("in one log than in another" in note for note in logs.notes)


@pytest.mark.parametrize("form", UNCLOSED)
def test_a_thinking_without_an_end_is_cut_off_where_the_model_ends_it_elsewhere(form: str, tmp_path: Path) -> None:
    items = rows(lambda n: f"<think>{n}</think>It is 5" if n == 5 else UNCLOSED[form])
    profile = joined(lines(tmp_path / "log.jsonl", items)).profiles["alpha"]
    assert (profile.truncated, profile.accuracy) == (2, 75.0)


def test_compare_says_that_no_response_is_right(place: Place) -> None:
    lines(place.folder / "log.jsonl", rows(lambda _: "six"))
    ran = place.advisor("compare", "--logs", "log.jsonl", "--metric", "exact_match")
    assert "not one response of any model is right: for '5' the response is 'six'" in ran.err


@pytest.mark.parametrize("command", ["select", "compare", "label", "check", "judge"])
def test_every_command_says_which_responses_are_missing(command: str, place: Place) -> None:
    items = [{**row, "score": int(row["response"] == "5"), "extracted": row["response"]} for row in rows()]
    items[0] |= {"response": "", "score": 0}
    lines(place.folder / "log.jsonl", items)
    logs = ["--logs", "log.jsonl"]
    if command in ("check", "judge"):
        assert place.advisor("select", *logs, "--out", "run").status == 0
    arguments = {"check": ["run", *logs], "judge": ["run"]}.get(command, logs)
    assert "some questions have no response and count as wrong: alpha (1)" in place.advisor(command, *arguments).err


def test_select_and_compare_give_the_counts_of_each_model(place: Place) -> None:
    items = [row if row["id"] or row["model"] == "beta" else {**row, "response": ""} for row in rows()]
    lines(place.folder / "log.jsonl", items)
    ran = place.advisor("select", "--logs", "log.jsonl", "--metric", "number", "--json")
    counts = {
        each["model"]: (each["unread"], each["missing"], each["failed"]) for each in json.loads(ran.out)["candidates"]
    }
    assert counts == {"alpha": (0, 1, 0), "beta": (0, 0, 0)}
    ran = place.advisor("compare", "--logs", "log.jsonl", "--metric", "number", "--json")
    assert {each["model"]: each["missing"] for each in json.loads(ran.out)["models"]} == {"alpha": 1, "beta": 0}


SHEETS = {
    # tidyverse/readxl 533, awalker89/openxlsx 434, hughbe/excel-mapper 28, SheetJS/sheetjs 123, tidyverse/readxl 513
    "hidden": ({"Old": "hidden", "Now": "", "Notes": ""}, "Old (hidden), Notes"),
    "very hidden": ({"Old": "veryHidden", "Now": "", "Notes": ""}, "Old (hidden), Notes"),
    "visible": ({"Now": "", "Old": "", "Notes": ""}, "Old, Notes"),
    "hidden at the end": ({"Now": "", "Old": "veryHidden"}, "Old (hidden)"),
    "two hidden": ({"Old": "hidden", "Now": "", "Notes": "hidden"}, "Old (hidden), Notes (hidden)"),
}
"""The sheets of a book with the state of each, and how a note names those that are not read."""


@pytest.mark.parametrize("form", SHEETS)
def test_a_hidden_sheet_is_not_read_and_the_other_sheets_are_named(form: str, tmp_path: Path) -> None:
    items, (states, others) = rows(), SHEETS[form]
    cells = [list(items[0]), *(list(row.values()) for row in items)]
    path = write_book(tmp_path / "log.xlsx", {n: cells if n == "Now" else [["id", "score"], [1, 1]] for n in states})
    for name, state in states.items():
        if state:
            replace_in(path, "xl/workbook.xml", f'name="{name}"'.encode(), f'name="{name}" state="{state}"'.encode())
    logs = joined(path)
    assert right(logs) == RIGHT
    assert f"{path}: of its {len(states)} sheets only Now was read, and not {others}" in logs.notes


@pytest.mark.parametrize("write", [lines, table])
def test_true_as_a_reference_accepts_yes(write: Callable[..., Path], tmp_path: Path) -> None:
    said = rows(lambda n: "Yes." if n == 5 else "No.", reference=lambda _: True)
    assert (
        right(joined(write(tmp_path / f"log.{'jsonl' if write is lines else 'csv'}", said), metric="exact_match"))
        == RIGHT
    )


def test_options_of_a_table_are_compared_by_their_letters(tmp_path: Path) -> None:
    said = rows(lambda n: "The answer is B." if n == 5 else "It is (C).", reference=lambda _: "green")
    said = [{**row, "options": ["red", "green", "blue"]} for row in said]
    assert right(joined(lines(tmp_path / "log.jsonl", said), metric="choice")) == RIGHT


def test_a_response_of_several_texts_is_refused_with_the_way_to_write_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a list of 2 texts; write a row for each, and number them in a column"):
        joined(lines(tmp_path / "log.jsonl", rows(lambda _: ["It is 5", "It is 6"])))
