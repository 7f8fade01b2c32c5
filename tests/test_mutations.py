"""The defects that `benchmarks/mutations.py` puts into code, which tests it runs, and the lanes of the tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CASES, SECOND_LANE

from benchmarks._code_changes import changes
from benchmarks._line_marks import MODULE, code, marked

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


@pytest.mark.parametrize(
    "line",
    [
        "x = f'{a + 1}'", "x = zip(a, b, strict=True)", "x: Literal[1] = y", "@dataclass(frozen=True)\nclass A: ...",
        "x = sorted(a, key=b)", "if __name__ == '__main__':\n    main()", "'a text'", "x = 'a' + b",
    ],
)  # fmt: skip
def test_no_test_could_find_these_so_they_are_left_alone(line: str) -> None:
    assert changes("file.py", line + "\n") == []


# --- The two lanes ---


@pytest.mark.parametrize("place", [*SECOND_LANE, *CASES])
def test_what_the_second_lane_names_exists(place: str) -> None:
    file, _, function = place.partition("::")
    assert (HERE / file).is_file()
    assert not function or re.search(rf"^def {function}\(", (HERE / file).read_text(encoding="utf-8"), re.MULTILINE)


# --- Marks ---

MARKED = '''def f(x):
    """A text."""
    if x == 1: return "one"
    elif x in (2,
               3): return "few"
    for n in range(x):
        y = n; z = [
            each
            for each in range(n)]
    @str
    def g():
        return 1
    return "many"
'''


def test_a_mark_tells_the_test_that_reaches_a_line(tmp_path: Path) -> None:
    log = tmp_path / "reached.tsv"
    (tmp_path / MODULE).write_text(code(log), encoding="utf-8")
    (tmp_path / "a.py").write_text(marked(MARKED, "a.py", [3, 5, 8, 12, 13]) + "for x in (1, 3, 9): f(x)\n", "utf-8")
    environment = {**os.environ, "PYTEST_CURRENT_TEST": "tests/test_a.py::test_b (call)", "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-I", "a.py"], cwd=tmp_path, env=environment, check=True)
    assert not log.exists()
    subprocess.run([sys.executable, "a.py"], cwd=tmp_path, env=environment, check=True)
    reached = [line.split("\t") for line in log.read_text(encoding="utf-8").splitlines()]
    assert {test for _, test in reached} == {"tests/test_a.py::test_b"}
    # The mark of line 12 is in a function that nobody calls.
    assert sorted(mark for mark, _ in reached) == ["a.py", "a.py:13", "a.py:3", "a.py:5", "a.py:8"]
