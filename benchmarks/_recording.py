"""A plug-in of pytest: what each test costs, and which shared fixture runs, for benchmarks/mutations.py.

It stands alone, because it also runs in checkouts that have no such file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_COSTS = Path(os.environ["RECORDED_COSTS"])
_outcomes: dict[str, str] = {}


def _cpu() -> tuple[float, float]:
    spent = os.times()
    return spent.user + spent.system, spent.children_user + spent.children_system


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Measure one test with the fixtures that it sets up."""
    _outcomes[item.nodeid] = "passed"
    before, started = _cpu(), time.monotonic()
    yield
    after = _cpu()
    line = {
        "test": item.nodeid,
        "outcome": _outcomes.pop(item.nodeid),
        "cpu": round(after[0] - before[0], 3),
        "children": round(after[1] - before[1], 3),
        "wall": round(time.monotonic() - started, 3),
        "fixtures": sorted(getattr(item, "fixturenames", [])),
        "marks": sorted({mark.name for mark in item.iter_markers()}),
    }
    with _COSTS.open("a", encoding="utf-8") as costs:
        costs.write(json.dumps(line) + "\n")


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Iterator[None]:
    """Lines that a shared fixture reaches belong to all tests that ask for it."""
    before = os.environ.get("REACHED_BY", "")
    if fixturedef.scope != "function":
        os.environ["REACHED_BY"] = f"fixture {fixturedef.argname} of {fixturedef.baseid}"
    yield
    os.environ["REACHED_BY"] = before


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test that did not pass."""
    if report.outcome != "passed" and report.nodeid in _outcomes:
        _outcomes[report.nodeid] = report.outcome
