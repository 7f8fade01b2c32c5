"""A router from elsewhere, beside the single models and the votes of the logs."""

from __future__ import annotations

import json
import random

import pytest
from pools import Place

from advisor.run.folder import Run
from advisor.run.sentences import summary

pytest_plugins = ["pools"]

N = 60
DOLLARS = {"a": 0.01, "b": 0.004, "c": 0.001}


@pytest.fixture
def logs(place: Place) -> Place:
    """Logs of three models, each right where its number of the question has no remainder by 7, 3 and 2."""
    rows = [
        {
            "id": f"q{n}",
            "question": f"What is {n}?",
            "reference": f"{n}",
            "model": name,
            "response": "no" if n % step == 0 else f"{n}",
            "cost": DOLLARS[name],
        }
        for name, step in (("a", 7), ("b", 3), ("c", 2))
        for n in range(N)
    ]
    random.Random(0).shuffle(rows)
    place.write("logs.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return place


def route(place: Place, key: str = "id", models: str = "abc", n: int = N) -> tuple[str, ...]:
    """A table that sends the questions to some models in turn, and the command with it."""
    named = [f"q{k}" if key == "id" else f"What is {k}?" for k in range(n)]
    rows = [f"{question},{models[k % len(models)]}" for k, question in enumerate(named)]
    place.write("router.csv", "\n".join([f"{key},model", *rows]) + "\n")
    options = ("--metric", "exact_match", "--column", "dollars=cost", "--out", "run", "--force")
    return ("select", "--logs", "logs.jsonl", "--router", "router.csv", *options)


@pytest.mark.parametrize("key", ["id", "question"])
def test_its_points_price_and_paired_gain_are_those_of_its_choices(logs: Place, key: str) -> None:
    assert logs.advisor(*route(logs, key)).status == 0
    result = Run.open(logs.folder / "run").result
    (row,) = (each for each in result.strategies if each.strategy == "router")
    steps = {"a": 7, "b": 3, "c": 2}
    right = {n: {name: n % step != 0 for name, step in steps.items()} for n in range(N)}
    gains = [right[n]["abc"[n % 3]] - right[n]["a"] for n in range(N)]
    assert (row.questions, row.measured_gain) == (N, pytest.approx(100 * sum(gains) / N))
    assert row.calls_per_question == 1
    held_out = [int(each["id"][1:]) for each in logs.samples("held_out")]
    assert row.accuracy == pytest.approx(100 * sum(right[n]["abc"[n % 3]] for n in held_out) / len(held_out))
    price = 1000 * sum(DOLLARS["abc"[n % 3]] for n in held_out) / len(held_out)
    assert row.price_per_1000 == pytest.approx(price)
    told = summary(result)["Your router"]
    assert told.startswith("Your router, 3 models has ") and "a alone has " in told


@pytest.mark.parametrize(
    ("models", "verdict"),
    [
        ("aaab", "It costs less, and has fewer points"),
        ("ac", "It pays"),
        ("b", "It does not pay: b alone has as many points"),
    ],
)
def test_one_sentence_says_whether_it_pays(logs: Place, models: str, verdict: str) -> None:
    assert logs.advisor(*route(logs, models=models)).status == 0
    assert verdict in summary(Run.open(logs.folder / "run").result)["Your router"]


@pytest.mark.parametrize(
    ("models", "n", "says"),
    [
        ("ax", N, "no log has the model 'x'; there are a, b, c"),
        ("ab", N - 2, "--router router.csv: it has no model for 2 questions, for example 'q58'"),
    ],
)
def test_a_file_that_does_not_fit_the_logs_is_refused(logs: Place, models: str, n: int, says: str) -> None:
    ran = logs.advisor(*route(logs, models=models, n=n))
    assert ran.status == 2 and says in ran.err


def test_a_table_without_its_columns_is_refused(logs: Place) -> None:
    command = route(logs)
    logs.write("router.csv", "id,choice\nq1,a\n")
    ran = logs.advisor(*command)
    assert ran.status == 2
    assert "give a table with the columns id (or question) and model; it has id, choice" in ran.err
