"""The figures of a judge in result.json, evaluation.json, on the terminal and in the report, on real runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from servers import Raw, raw_server
from test_judge import PAIRWISE, SINGLE, line, longer, prepare, result, serve

if TYPE_CHECKING:
    from pools import Place

pytest_plugins = ["pools"]


@pytest.fixture
def raw() -> Iterator[Raw]:
    with raw_server() as server:
        yield server


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ensemble.servers.client.FIRST_PAUSE_S", 0.01)


def judged(place: Place) -> dict[str, Any]:
    section: dict[str, Any] = result(place)["judge"]
    return section


def test_comparisons_have_their_figures_in_the_result(place: Place, raw: Raw) -> None:
    serve(raw, judge=longer, second=lambda prompt: longer(prompt) if "3" in prompt else "[[C]]")
    arguments = prepare(place, raw, PAIRWISE)
    ran = place.advisor("select", *arguments, "--second-judge", line(raw, "second"), "--out", "run")
    assert ran.status == 0
    found = judged(place)
    assert (found["mode"], found["judges"]) == ("pairwise", ["judge", "second"])
    dev, held_out = found["splits"]
    assert dev["split"] == "dev"
    print(json.dumps(found, indent=1)); print(ran.out); print(ran.err)
    assert 0
