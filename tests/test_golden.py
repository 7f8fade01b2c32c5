"""Run folders, cache keys and help texts are those that were recorded; see ``tests/golden/make.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden.compare import differences, dump
from tests.golden.make import CASES, EXPECTED, write

RECORDED = [str(path.relative_to(EXPECTED)) for path in sorted(EXPECTED.rglob("*.json"))]
MOST = 60
"""Differences of a file that are shown."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """What this code writes, and what failed."""
    folder = tmp_path_factory.mktemp("golden")
    return folder, write(folder)


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_case_runs_and_writes_the_recorded_files(made: tuple[Path, str]) -> None:
    folder, failed = made
    assert failed == ""
    assert {Path(name).parts[0] for name in RECORDED} == CASES.keys()
    assert [str(path.relative_to(folder)) for path in sorted(folder.rglob("*.json"))] == RECORDED


@pytest.mark.parametrize("name", RECORDED)
def test_a_file_is_the_recorded_one(made: tuple[Path, str], name: str) -> None:
    found = list(differences(read(EXPECTED / name), read(made[0] / name)))
    shown = "\n".join(found[:MOST])
    assert not found, f"{len(found)} differences; if all are meant, python -m tests.golden.make records them:\n{shown}"


MODELS = [{"model": "a", "accuracy": 72.5}, {"model": "b", "accuracy": None}]


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ([{"model": "a", "accuracy": 72.5 + 1e-8}, MODELS[1]], [".a.accuracy: recorded 72.5, now 72.50000001"]),
        ([{"model": "a", "accuracy": "72.5"}, MODELS[1]], ['.a.accuracy: recorded 72.5, now "72.5"']),
        ([{"model": "a"}, MODELS[1]], [".a.accuracy: recorded 72.5, now gone"]),
        ([{**MODELS[0], "n": 0}, MODELS[1]], [".a.n: not recorded, now 0"]),
        ([{"model": "a", "accuracy": 72.5 + 1e-12}, MODELS[1]], []),
        (MODELS[::-1], [' in order: recorded ["a", "b"], now ["b", "a"]']),
    ],
)
def test_the_comparer_says_what_changed_what_is_gone_and_what_is_new(now: Any, said: list[str]) -> None:
    assert list(differences(MODELS, now)) == said


@pytest.mark.parametrize("value", [MODELS, [], {}, {"long": ["word " * 9] * 9, "empty": {}}])
def test_what_is_written_is_read_again(value: Any) -> None:
    assert json.loads(dump(value)) == value
