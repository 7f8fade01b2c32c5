"""Changed files and messages: each gives a result or a line, within limits; a short part of ``make fuzz``.

``tests/fuzz/cases`` keeps inputs that once failed.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _fuzzing as fuzzing
from benchmarks._fuzz_readers import offline, warm

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the limits need Linux"),
    # Python warns of every fork of a process with threads; the children use none of them.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]
SEED = 20
SHORT = {
    "samples": 15,
    "evaluation": 15,
    "store": 12,
    "numbers": 30,
    "pool": 30,
    "ensemble": 15,
    "request": 30,
}
"""Inputs of a kind in `make test`. The others' take longer, and the kept cases stand for them, or other tests.

Those of task files and logs are in `test_tasks_format.py` and `test_logs_formats.py`.
"""


@pytest.fixture(scope="module", autouse=True)
def kinds() -> dict[str, fuzzing.Kind]:
    offline()
    made = fuzzing.kinds()
    warm([*SHORT, *{name for name, _ in fuzzing.cases()}])
    return made


@pytest.mark.parametrize("name", SHORT)
def test_a_changed_input_gives_a_result_or_a_line(name: str, kinds: dict[str, fuzzing.Kind]) -> None:
    assert fuzzing.run(name, kinds[name], fuzzing.inputs(kinds[name], name, SEED, SHORT[name]))[1] == []


@pytest.mark.parametrize(
    ("name", "path"), [pytest.param(name, path, id=f"{name}/{path.name}") for name, path in fuzzing.cases()]
)
def test_an_input_that_once_failed_passes(name: str, path: Path) -> None:
    assert path.read_bytes() not in failing_cases(name)


@cache
def failing_cases(name: str) -> list[bytes]:
    """The kept cases of a kind that fail; read together, because a process for each takes long to start."""
    given = [path.read_bytes() for kind, path in fuzzing.cases() if kind == name]
    return [failure.data for failure in fuzzing.run(name, fuzzing.kinds()[name], given)[1]]


# What the fuzzing itself finds


@pytest.mark.parametrize("read", [lambda *_: 1 / 0, lambda *_: os._exit(3)], ids=["a fault", "its end"])
def test_a_fault_of_a_process_and_its_end_are_tracebacks(read: Any) -> None:
    counts, _ = fuzzing.run("x", fuzzing.Kind((b"seed",), lambda seed, _: seed, read), [b"x"])
    assert {name for name, count in counts.items() if count} == {"inputs", "tracebacks"}
