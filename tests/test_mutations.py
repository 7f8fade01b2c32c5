"""The defects that `benchmarks/mutations.py` puts into code, which tests it runs, and the lanes of the tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import CASES, SECOND_LANE

from benchmarks._code_changes import changes

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a < b", "(a <= b)"), ("a and b", "(a or b)"), ("not a", "(a)"), ("a + b", "(a - b)"), ("x = 7", "x = 8"),
        ("x = True", "x = False"), ("a = max(b)", "a = min(b)"), ("a = sorted(b)", "a = list(b)"),
        ("call(b)", "pass"), ("é = a in b", "é = (a not in b)"),
    ],
)  # fmt: skip
def test_a_line_gets_a_defect(before: str, after: str) -> None:
    assert after in {change.apply(before + "\n").rstrip() for change in changes("file.py", before + "\n")}


# --- The two lanes ---


@pytest.mark.parametrize("place", [*SECOND_LANE, *CASES])
def test_what_the_second_lane_names_exists(place: str) -> None:
    file, _, function = place.partition("::")
    assert (HERE / file).is_file()
    assert not function or re.search(rf"^def {function}\(", (HERE / file).read_text(encoding="utf-8"), re.MULTILINE)


# --- Marks ---
