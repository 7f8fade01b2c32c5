"""``advisor select --until-sure``: batches, runs that are repeated, and held-out questions that are not fresh."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pools import Place, Prepare

from advisor.advice.gain import Gain
from advisor.advice.sequential import look_until_sure
from advisor.run.result import InterimAnalysis

pytest_plugins = ["pools"]

QUESTIONS = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(1, 31)]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.advice.sequential.FIRST_LOOK", 4)


@pytest.fixture
def asked(place: Place, models: Path, prepare: Prepare) -> Place:
    """A place with a run on 15 dev and 15 held-out questions, of two models that fit each other."""

    def make() -> None:
        place.task(QUESTIONS)
        place.pool(*(str(models / name) for name in ("alpha", "beta")))
        place.select("--until-sure")

    prepare("until sure", place, make)
    return place


@pytest.fixture
def job(asked: Place) -> Place:
    """The same without the run, but with the responses."""
    shutil.rmtree(asked.folder / "run")
    return asked


def held_out_in(place: Place) -> list[str]:
    return [sample["id"] for sample in place.samples("held_out")]


def sure_at(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """Make the gain certain as soon as so many questions are asked."""

    def looks(verify: Callable[[int], Gain | None], blank: InterimAnalysis, *rest: Any) -> Sequence[InterimAnalysis]:
        def better(asked: int) -> Gain | None:
            gain = verify(asked)
            return gain if gain is None or asked < n else replace(gain, points=50.0, error=1.0)

        return look_until_sure(better, blank, *rest)

    monkeypatch.setattr("advisor.commands.select.look_until_sure", looks)


def test_all_questions_are_asked_in_batches_if_nothing_shows(asked: Place) -> None:
    result = asked.json()
    assert [look["n"] for look in result["looks"]] == [4, 6, 9, 15]
    assert len(held_out_in(asked)) == result["ensemble"]["n"] == 15
    assert "the test is not sure after all 15" in result["advice"]["text"]
    # A repeated run gives the same result.
    asked.select("--until-sure")
    assert asked.json() == result


def test_no_more_questions_are_asked_when_the_test_is_sure(job: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sure_at(monkeypatch, 6)
    job.select("--until-sure")
    result = job.json()
    assert [look["n"] for look in result["looks"]] == [4, 6]
    assert len(held_out_in(job)) == result["ensemble"]["n"] == 6
    assert "after 6 of at most 15" in result["advice"]["text"]


def test_the_first_questions_are_those_that_a_limit_asks(job: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    job.select("--limit", "6")
    limited = held_out_in(job)
    (job.folder / "run" / "result.json").unlink()
    sure_at(monkeypatch, 6)
    job.select("--until-sure")
    assert held_out_in(job) == limited


def test_a_limit_bounds_the_questions_of_each_split(job: Place) -> None:
    job.select("--until-sure", "--limit", "9")
    result = job.json()
    assert result["task"]["n"] == 9
    assert len(held_out_in(job)) == 9


def test_another_set_on_the_same_questions_is_corrected_and_says_so(job: Place) -> None:
    job.select()
    first = job.json()
    job.select("--k", "5", "--force")
    second = job.json()
    assert [look["test"] for look in second["looks"]] == [1, 2]
    assert second["looks"][0] == first["looks"][0]
    [warning] = [text for text in second["advice"]["warnings"] if "looked at" in text]
    assert "looked at 1 time before" in warning
    assert not any("looked at" in text for text in first["advice"]["warnings"])
    assert [look["limit"] for look in second["looks"]] == pytest.approx([0.05, 0.05 / 6])


def test_looks_that_cannot_be_read_are_left_out_with_a_note(job: Place) -> None:
    job.select()
    job.edit(lambda result: result["looks"][0].update(members=[]))
    ran = job.select("--force")
    assert "its looks are not counted" in " ".join(ran.err.split())
    assert "\x1b[2J" not in ran.err
    assert [look["test"] for look in job.json()["looks"]] == [1]


def test_without_a_set_all_questions_are_asked_at_once(place: Place, models: Path) -> None:
    place.task(QUESTIONS)
    place.pool(str(models / "alpha"))
    ran = place.select("--until-sure")
    assert "has no set or vote to test" in " ".join(ran.err.split())
    assert place.json()["looks"] == []
