"""Answers that are JSON, from logs to the report: why there is none, and votes per field."""

from __future__ import annotations

import contextlib
import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers import completion, models, raw_server
from test_serving_strategies import serving, three, usage

from advisor.advice.drift import paired_gain
from advisor.strategies.ballot import Ballot
from advisor.strategies.cascade import is_settled
from advisor.strategies.vote_reader import VoteReader
from advisor.tasks.metrics._json import canonical
from ensemble.methods.voting import answer_codes, vote

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
    assert f"no answer found: <bdi>{problem}</bdi>" in page
    assert "is &#34;wrong a&#34;, not" in page


TASK = """
name: people
data: {dev: dev.jsonl, held_out: test.jsonl}
prompt: "{{question}}"
reference: "{{answer}}"
metric: json
compare: fields
"""


def joined_by_hand(answers: list[str | None]) -> Any:
    """What a vote per field takes, as its definition says; None if no model has an answer."""
    values = [None if answer is None else json.loads(answer) for answer in answers]

    def first_of_most(given: list[str]) -> str:
        return max(given, key=lambda each: (given.count(each), -given.index(each)))

    kinds = ["object" if isinstance(v, dict) else json.dumps(v) for v, a in zip(values, answers, strict=True) if a]
    if not kinds:
        return None
    kind = first_of_most(kinds)
    if kind != "object":
        return json.loads(kind)
    objects = [value for value in values if isinstance(value, dict)]
    won = {}
    for name in {name for each in objects for name in each}:
        value = first_of_most(
            [json.dumps(each[name], sort_keys=True) if name in each else "absent" for each in objects]
        )
        if value != "absent":
            won[name] = json.loads(value)
    return won


VALUES = st.sampled_from([1, 2, "x", [1], {"b": 1, "c": 2}])
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)
ANSWERS = st.lists(st.none() | (OBJECTS | st.sampled_from([3, [4]])).map(canonical), min_size=1, max_size=6)


@given(ANSWERS)
def test_a_vote_per_field_is_that_of_its_definition(answers: list[str | None]) -> None:
    taken = Ballot(answers, by_field=True).taken()
    answer = taken if isinstance(taken, str) else answers[taken]
    wanted = joined_by_hand(answers)
    assert answer == (None if wanted is None else canonical(wanted))
    # It is a new answer only where no model gave it, and the first of those that did is named.
    assert taken == (answers.index(answer) if answer in answers else answer)


@given(ANSWERS)
def test_a_vote_on_whole_answers_is_a_ballot_of_one_column(answers: list[str | None]) -> None:
    ballot = Ballot(answers, by_field=False)
    assert ballot.taken() == vote(answer_codes([[answer] for answer in answers]))[0]


@given(ANSWERS, st.integers(0, 2))
def test_a_vote_per_field_is_settled_exactly_if_no_further_answers_change_it(
    answers: list[str | None], left: int
) -> None:
    values = [None if answer is None else json.loads(answer) for answer in answers]
    objects = [value for value in values if isinstance(value, dict)]
    # What changes one vote the most is that all others give the same answer.
    further = [None, 9, {}, *values]
    for name in {"new", *(name for each in objects for name in each)}:
        further += [{name: value} for value in (8, *(each[name] for each in objects if name in each))]
    own = joined_by_hand(answers)
    changes = any(
        joined_by_hand([*answers, *[None if each is None else canonical(each)] * left]) != own for each in further
    )
    assert is_settled(Ballot(answers, by_field=True), left) == (not changes)


def test_votes_per_field_are_compared_recommended_and_shown(log: Place) -> None:
    Path("people.yaml").write_text(TASK, encoding="utf-8")
    ran = log.advisor("select", "--logs", "log.jsonl", "--task", "people.yaml", "--out", "run")
    assert ran.status == 0, ran.err
    result = json.loads(Path("run/result.json").read_text(encoding="utf-8"))
    assert result["task"]["compare"] == "fields"
    held_out = [sample for sample in samples_of("run") if sample["split"] == "held_out"]
    for strategy in ("vote", "cascade"):
        row = next(each for each in result["strategies"] if each["strategy"] == strategy)
        right = 0
        for sample in held_out:
            won = joined_by_hand([sample["responses"][name]["extracted"] for name in row["members"]])
            right += won == json.loads(sample["reference"])
        assert row["accuracy"] == pytest.approx(100 * right / len(held_out))
    assert result["advice"]["recommendation"]["strategy"] == "cascade"
    assert result["advice"]["ceiling"] is None
    joined = [sample for sample in held_out if sample["recommended"]["model"] is None]
    assert joined
    assert all(
        sample["recommended"]["extracted"] not in [each["extracted"] for each in sample["responses"].values()]
        for sample in joined
    )
    assert "Fields of several models" in Path("run/report.html").read_text(encoding="utf-8")
    assert log.advisor("report", "run").status == 0


def test_a_task_whose_answers_have_no_fields_refuses_a_vote_per_field(log: Place) -> None:
    Path("people.yaml").write_text(TASK.replace("metric: json", "metric: number"), encoding="utf-8")
    assert "people.yaml: compare goes with `metric: json` or `json_fields`; leave it out" in log.refused(
        "select", "--logs", "log.jsonl", "--task", "people.yaml"
    )


def says(model: int, prompt: str) -> str:
    """What a model answers: as in :func:`write_log`."""
    # A server is also asked other texts, to find out what it can do.
    number = int(re.sub(r"\D", "", prompt) or 0)
    given = {"name": f"n{number}", "age": number, "city": "Rome"}
    return f"So: {json.dumps({**given, **({FIELDS[model]: f'wrong {model}'} if number >> model & 1 else {})})}"


@pytest.fixture
def people(place: Place) -> Iterator[Place]:
    """A task, and a pool of three models behind servers."""
    Path("task.yaml").write_text(TASK, encoding="utf-8")
    for split, numbers in (("dev", range(60)), ("test", range(60, 120))):
        records = [
            {"question": f"q{n}", "answer": json.dumps({"name": f"n{n}", "age": n, "city": "Rome"})} for n in numbers
        ]
        Path(f"{split}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    with contextlib.ExitStack() as stack:
        lines = []
        for model, name in enumerate("abc"):
            raw = stack.enter_context(raw_server())
            raw.answer = lambda path, body, model=model: (
                completion(says(model, body["prompt"])) if path.endswith("/completions") else models("m")
            )
            lines.append(f"openai:{raw.url}#m name={name} chat_template=never\n")
        Path("models.txt").write_text("".join(lines), encoding="utf-8")
        yield place


def test_a_run_of_models_votes_per_field_and_so_do_its_commands(people: Place) -> None:
    ran = people.advisor("select", "--pool", "models.txt", "--task", "task.yaml", "--out", "run")
    assert ran.status == 0, ran.err
    result = json.loads(Path("run/result.json").read_text(encoding="utf-8"))
    accuracies = {each["strategy"]: each["accuracy"] for each in result["strategies"]}
    assert accuracies["vote"] == accuracies["cascade"] == 100
    # All three are wrong in 127, each in another field.
    options = ("run", "--pool", "models.txt", "--raw")
    joined = '{"age":127,"city":"Rome","name":"n127"}'
    traced = people.advisor("run", *options, "q127", "--trace")
    assert (traced.out, traced.status) == (f"{joined}\n", 0)
    assert "the response joins the fields of several, after 3 calls" in traced.err
    assert people.advisor("run", *options, "q128").out.startswith("So: {")
    places = re.findall(r"http://[^/]+", Path("models.txt").read_text(encoding="utf-8"))
    trusted = [option for each in places for option in ("--allow-server", each)]
    methods = ("--methods", "voting", "--members", "a,b,c", "--json")
    evaluated = people.advisor("evaluate", "run", "--task", "task.yaml", *methods, *trusted)
    assert evaluated.status == 0, evaluated.err
    (voting, _) = json.loads(evaluated.out)["methods"]
    assert (voting["method"], voting["accuracy"]) == ("voting", 100)
    write_log(Path("fresh.jsonl"), range(200, 260))
    checked = people.advisor("check", "run", "--logs", "fresh.jsonl", "--metric", "json", "--json")
    assert checked.status == 0, checked.err
    assert json.loads(checked.out)["accuracy"] > 90
    assert people.advisor("export", "run", "saved", "--pool", "models.txt").status == 0
    assert people.advisor("run", "saved", "--raw", "q127", *trusted).out == f"{joined}\n"


def test_labels_of_whole_answers_give_the_comparison_of_all_references(people: Place) -> None:
    Path("task.yaml").write_text(TASK.replace('reference: "{{answer}}"\n', ""), encoding="utf-8")
    own = ("--pool", "models.txt", "--task", "task.yaml", "--quiet")

    def label(*more: str) -> list[dict[str, str]]:
        ran = people.advisor("label", *own, *more)
        assert ran.status == 0, ran.err
        with Path("labels.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            number = int(row["question"].removeprefix("q"))
            row["reference"] = json.dumps({"name": f"n{number}", "city": "Rome", "age": number})
        with Path("labels.csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)
        return rows

    label()
    rows = label("--labels", "labels.csv", "--accuracy", "9")
    # All three models are wrong in it, and the vote joins the right answer.
    asked = next(row for row in rows if row["question"] == "q119")
    assert '{"age":119,"city":"Rome","name":"n119"}' in asked.values()
    ran = people.advisor("select", *own, "--labels", "labels.csv", "--out", "run")
    assert ran.status == 0, ran.err
    result = json.loads(Path("run/result.json").read_text(encoding="utf-8"))
    row = next(each for each in result["strategies"] if each["strategy"] == "cascade")
    numbers = range(60, 120)
    right = [json.dumps({"age": n, "city": "Rome", "name": f"n{n}"}, separators=(",", ":")) for n in numbers]
    given = [[canonical(json.loads(says(model, f"q{n}")[4:])) for model in range(3)] for n in numbers]
    voted = np.array([canonical(joined_by_hand(answers)) == r for answers, r in zip(given, right, strict=True)])
    best = "abc".index(row["best_single_model"])
    single = np.array([answers[best] == r for answers, r in zip(given, right, strict=True)])
    wanted = paired_gain(voted.astype(float), single.astype(float))
    assert (row["measured_gain"], tuple(row["measured_gain_ci"])) == (wanted.points, wanted.interval())
    assert wanted.points > 0
    taken = [sample["recommended"] for sample in samples_of("run") if sample["split"] == "held_out"]
    assert {each["score"] for each in taken if each["model"] is None} == {1.0}


def test_json_that_a_client_asks_for_is_compared_as_json() -> None:
    # The metric of the run, exact_match, ignores the brackets and sees three texts alike.
    with serving("vote", three('{"a": [1]}', '{"a": 1}', '{"a":1.0}')) as (_, client):
        made = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x"}], response_format={"type": "json_object"}
        )
    assert made.choices[0].message.content == '{"a": 1}'
    assert usage(made)["agreement"] == [2 / 3]


PERSON = {"type": "object", "properties": {name: {} for name in FIELDS}, "required": list(FIELDS)}


@pytest.mark.parametrize(
    ("schema", "text", "members"),
    [
        (PERSON, '{"age":127,"city":"Rome","name":"n127"}', [None]),
        # Fields that each are valid may break a rule on several fields.
        ({**PERSON, "anyOf": [{}]}, says(0, "q127"), ["a"]),
    ],
)
def test_a_server_joins_fields_where_the_schema_asked_for_allows_it(
    schema: dict[str, Any], text: str, members: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("test_serving_strategies.READER", VoteReader("json", None, "x", "fields"))
    chosen: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    with serving("vote", three(*(says(model, "q127") for model in range(3)))) as (_, client):
        made = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "q127"}], response_format=chosen
        )
        parts = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "q127"}], response_format=chosen, stream=True
        )
        assert "".join(part.choices[0].delta.content or "" for part in parts) == text
    assert made.choices[0].message.content == text
    assert usage(made)["members"] == members
    # Two of three models have each of the three fields of the joined object; those of `a` have 1, 2 and 2.
    assert usage(made)["agreement"] == [pytest.approx(2 / 3 if members == [None] else 5 / 9)]
