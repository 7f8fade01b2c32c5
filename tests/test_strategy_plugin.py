"""A strategy is one file: a new one is compared, reported, checked and run without a change of other code."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pools import Place
from test_serving_strategies import Says, planned

import advisor.strategies
from advisor.advice.comparison import compare_strategies, expected_gain
from advisor.records import Answer, Profile
from advisor.run.asking import Answerer
from advisor.run.folder import Run
from advisor.run.plan import figures_to_strategy
from advisor.strategies import kinds
from advisor.strategies.strategy import AnsweredSplit, Decoded, Replay
from advisor.tasks.task import Example, Task
from ensemble.decode.settings import Settings

pytest_plugins = ["pools"]

TOY = '''
"""The response of one member, by its place."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from advisor.strategies.strategy import Call, Strategy


@dataclass(frozen=True)
class Nth(Strategy):
    place: Annotated[int, Field(strict=True, ge=0)]

    KIND: ClassVar[str] = "nth"
    SIMPLICITY: ClassVar[int] = 70

    @classmethod
    def learn(cls, given):
        if len(given.voters) > 1:
            yield cls(given.voters, 1)

    def flow(self, question):
        yield [Call((self.place,))]
        return 0

    def title(self, members):
        return f"The answer of {members[self.place]}"

    def describe(self):
        return f"Ask {self.members[self.place]}"

    def headline(self):
        return "Ask one."
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "strategies"
    folder.mkdir()
    (folder / "nth.py").write_text(TOY, encoding="utf-8")
    monkeypatch.setattr(advisor.strategies, "__path__", [*advisor.strategies.__path__, str(folder)])
    kinds.cache_clear()
    yield
    kinds.cache_clear()
    sys.modules.pop("advisor.strategies.nth", None)


def write_log(place: Place, name: str, first: int) -> None:
    lines = []
    for n in range(first, first + 120):
        cells = {model: ["yes" if n % k else "no", int(n % k > 0), 3] for model, k in (("a", 7), ("b", 6), ("c", 5))}
        lines.append(json.dumps({"id": n, "question": f"Question {n}?", "reference": "yes", "models": cells}))
    place.write(name, "\n".join(lines) + "\n")


@pytest.mark.usefixtures("toy")
def test_a_new_strategy_is_one_file(place: Place) -> None:
    write_log(place, "first.jsonl", 0)
    ran = place.advisor("select", "--logs", "first.jsonl", "--out", "run")
    assert ran.status == 0, ran.err
    assert "The answer of b" in ran.err
    run = Run.open(place.folder / "run")
    row = next(each for each in run.result.strategies if each.strategy == "nth")
    assert next(each for each in place.json()["strategies"] if each["strategy"] == "nth")["place"] == 1
    assert "The answer of b" in (place.folder / "run" / "report.html").read_text(encoding="utf-8")

    write_log(place, "new.jsonl", 1000)
    checked = place.advisor("check", "run", "--logs", "new.jsonl", "--strategy", "nth", "--json", "--quiet")
    assert json.loads(checked.out)["strategy"] == "nth"

    # What `advisor run` and `advisor serve` do with the models of a strategy.
    strategy = figures_to_strategy(row, "result.json")
    answerer = Answerer(planned(strategy), [Says(name, f"{name} answers") for name in strategy.members])
    assert asyncio.run(answerer.answer("?", Settings())).model == strategy.members[1] == "b"


def test_sets_are_ordered_by_the_expected_gain_of_the_report() -> None:
    def split(name: str) -> Task:
        examples = tuple(Example(f"{name}{n}", f"{n}?", "yes", f"{n}?", cluster=f"{name}{n // 4}") for n in range(80))
        return Task(name, "number", name, examples, (), 1, 0, 0, None, (), "")

    def profile(model: str, task: Task, wrong: int) -> Profile:
        return Profile(
            model,
            tuple(
                Answer(each.id, "x", str(n % wrong > 0), float(n // 2 % wrong > 0), "eos")
                for n, each in enumerate(task.examples)
            ),
        )

    rates = {"a": 7, "b": 5, "c": 3, "d": 2}
    tasks = split("dev"), split("held_out")
    # c and d were passed over, and the questions share passages.
    unite = Decoded(("a", "b"), "unite")
    dev, held_out = (
        AnsweredSplit(
            task, {name: profile(name, task, k) for name, k in rates.items()}, {unite: Replay(profile("u", task, 9))}
        )
        for task in tasks
    )
    results = compare_strategies(dev, held_out, can_vote=False).results
    shown = next(each for each in results if each.strategy == unite)
    assert expected_gain(unite, dev, held_out) == shown.figures.expected_gain != shown.gain.points
