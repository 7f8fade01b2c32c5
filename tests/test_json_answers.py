"""Answers that are JSON, from logs to the report: why there is none, and how they are compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_serving_strategies import serving, three, usage

if TYPE_CHECKING:
    from pools import Place

pytest_plugins = ["pools"]

FIELDS = ("name", "age", "city")
BROKEN = '{"name": "n",\n "age": }'


def write_log(path: Path, numbers: Sequence[int] = range(120)) -> None:
    """Three models, each of which is wrong in one field of half the questions; some responses are no JSON."""
    lines = []
    for number in numbers:
        right = {"name": f"n{number}", "age": number, "city": "Rome"}
        for place, model in enumerate("abc"):
            given = {**right, **({FIELDS[place]: f"wrong {model}"} if number >> place & 1 else {})}
            text = BROKEN if number % 20 == place else f"So: {json.dumps(given)}"
            line = {"id": number, "question": f"q{number}", "reference": json.dumps(right), "model": model}
            lines.append(json.dumps({**line, "response": text}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def samples_of(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, "samples.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def log(place: Place) -> Place:
    write_log(Path("log.jsonl"))
    return place


def test_samples_and_report_say_where_a_response_is_no_json(log: Place) -> None:
    assert log.advisor("select", "--logs", "log.jsonl", "--metric", "json", "--out", "run").status == 0
    responses = [each for sample in samples_of("run") for each in sample["responses"].values()]
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
