"""The time of a question: from the calls' own times, where calls that are made at the same time count once."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pools import Place

pytest_plugins = ["pools"]

N = 120
RATES = {"a": 0.8, "b": 0.75, "c": 0.7}


def rows(chance: random.Random) -> list[dict[str, Any]]:
    """A log of three models, whose wrong answers differ, with the seconds of each response."""
    return [
        {
            "id": f"q{n}",
            "question": f"What is {n}?",
            "reference": str(n),
            "model": name,
            "response": str(n) if chance.random() < rate else f"{n}{name}",
            "seconds": round(chance.uniform(0.1, 2.0), 3),
        }
        for name, rate in RATES.items()
        for n in range(N)
    ]


def select(place: Place, lines: list[dict[str, Any]], *more: str) -> dict[str, Any]:
    place.write("log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    options = ("--metric", "exact_match", "--out", "run", "--force", "--json", "--quiet")
    ran = place.advisor("select", "--logs", "log.jsonl", *options, *more)
    assert ran.status == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def test_a_vote_takes_the_slowest_of_the_calls_at_once_and_then_the_others(place: Place) -> None:
    lines = rows(random.Random(0))
    found = select(place, lines)
    (vote,) = (each for each in found["strategies"] if each["strategy"] == "vote")
    (single,) = (each for each in found["strategies"] if each["strategy"] == "single")
    own = {(line["model"], line["id"]): line for line in lines}
    asked = [sample["id"] for sample in place.samples("held_out")]
    first, second, third = vote["members"]
    times = []
    for key in asked:
        two = own[first, key], own[second, key]
        differ = two[0]["response"] != two[1]["response"]
        times.append(max(each["seconds"] for each in two) + differ * own[third, key]["seconds"])
    times.sort()
    assert vote["seconds_p95"] == times[-(-95 * len(times) // 100) - 1]
    assert vote["seconds_median"] == pytest.approx((times[len(times) // 2 - 1] + times[len(times) // 2]) / 2)
    assert single["seconds_p95"] == sorted(own[single["members"][0], key]["seconds"] for key in asked)[-4]


def test_what_takes_too_long_is_not_recommended(place: Place) -> None:
    lines = rows(random.Random(0))
    assert select(place, lines)["advice"]["recommendation"]["strategy"] in ("vote", "learned_vote")
    found = select(place, lines, "--latency", "2")
    told = found["advice"]["recommendation"]
    assert (told["strategy"], found["rules"]["latency"]) == ("single", 2.0)
    assert "no other strategy within 2.0 s for 95% of the questions" in told["text"]
    assert "95% of its answers take up to" in told["text"]
    told = select(place, lines, "--latency", "0.2")["advice"]["recommendation"]
    assert told["strategy"] == "single"
    assert "no strategy takes at most 200 ms for 95% of the questions. This is the best single model" in told["text"]


def test_without_times_a_limit_of_time_is_an_error_of_one_line(place: Place) -> None:
    lines = [{name: value for name, value in line.items() if name != "seconds"} for line in rows(random.Random(0))]
    assert "seconds_p95" in (select(place, lines)["strategies"][0])
    ran = place.advisor("select", "--logs", "log.jsonl", "--metric", "exact_match", "--latency", "1", "--quiet")
    assert ran.status == 2
    assert ran.err.startswith("advisor: --latency: no time is known; give logs with a column of seconds")
