"""In which fields a JSON answer differs from the reference, in words and in the report's examples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_fixture import write_run

from reports import write_report
from reports.report_data import MOST_FIELDS, field_differences

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
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    write_report(run)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert '"differs":["name is \\"\\u003cb\\u003e\\", not \\"Ann\\""]' in page
