"""Answers that are JSON, from logs to the report: why there is none, and how they are compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from logs import write_lines
from pools import Place
from report_fixture import page_of, write_run, write_samples
from test_serving_strategies import serving, three, usage

from reports.report_data import MOST_FIELDS, field_differences

pytest_plugins = ["pools"]

FIELDS = ("name", "age", "city")
BROKEN = '{"name": "n",\n "age": }'


def write_log(path: Path) -> None:
    """Three models, each of which is wrong in one field of half the questions; some responses are no JSON."""
    lines = []
    for number in range(120):
        right = {"name": f"n{number}", "age": number, "city": "Rome"}
        for place, model in enumerate("abc"):
            given = {**right, **({FIELDS[place]: f"wrong {model}"} if number >> place & 1 else {})}
            text = BROKEN if number % 20 == place else f"So: {json.dumps(given)}"
            line = {"id": number, "question": f"q{number}", "reference": json.dumps(right), "model": model}
            lines.append({**line, "response": text})
    write_lines(path, lines)


def test_samples_and_report_say_where_a_response_is_no_json(place: Place) -> None:
    write_log(Path("log.jsonl"))
    assert place.advisor("select", "--logs", "log.jsonl", "--metric", "json", "--out", "run").status == 0
    responses = [each for sample in place.samples() for each in sample["responses"].values()]
    problem = "Expecting value: line 2 column 9 (char 22)"
    assert {each.get("problem") for each in responses if each["text"] == BROKEN} == {problem}
    assert all("problem" not in each for each in responses if each["text"] != BROKEN)
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert f'"differs":["{problem}"]' in page
    assert 'is \\"wrong a\\", not' in page


def test_json_that_a_client_asks_for_is_compared_as_json() -> None:
    # The metric of the run, exact_match, ignores the brackets and sees three texts alike.
    with serving("vote", three('{"a": [1]}', '{"a": 1}', '{"a":1.0}')) as (_, client):
        made = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x"}], response_format={"type": "json_object"}
        )
    assert made.choices[0].message.content == '{"a": 1}'
    assert usage(made)["agreement"] == [2 / 3]


# --- In which fields an answer differs ---


ANN = '{"name": "Ann", "age": 41, "new": true}'


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ANN, ()),
        ('{"new": true, "age": 41.0, "name": "Ann"}', ()),
        ('{"name": "Ann", "age": 40, "new": true}', ("age is 40, not 41",)),
        ('{"name": "Ann", "new": true}', ("age is missing",)),
        ('{"name": "Ann", "age": 41, "new": 1}', ("new is 1, not true",)),
        ('{"name": "Ann", "age": 41, "new": true, "x": {}}', ("x is not in the reference",)),
        ("[1]", ()),
        ("41", ()),
        ("{", ()),
        ('{"a":' * 5000, ()),
        (None, ()),
    ],
)
def test_each_field_that_differs_is_named(answer: str | None, words: tuple[str, ...]) -> None:
    assert field_differences(answer, [ANN]) == words


def test_the_reference_that_is_most_like_the_answer_counts() -> None:
    assert field_differences('{"a": 1}', ['{"b": 1, "c": 2}', '{"a": 2}']) == ("a is 1, not 2",)


def test_many_fields_are_counted() -> None:
    *_, last = field_differences("{}", [json.dumps({f"k{n}": n for n in range(MOST_FIELDS + 3)})])
    assert last == "3 more fields"


def test_a_long_value_is_cut() -> None:
    (words,) = field_differences(json.dumps({"a": "x" * 5000}), ['{"a": 1}'])
    assert len(words) < 80


def test_the_examples_of_the_report_have_the_fields(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    path = run / "samples.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        line["reference"] = ANN
        for response in line["responses"].values():
            response |= {"extracted": '{"name": "<b>", "age": 41, "new": true}', "score": 0.0}
    page = page_of(write_samples(run, lines))
    assert '"differs":["name is \\"\\u003cb\\u003e\\", not \\"Ann\\""]' in page
