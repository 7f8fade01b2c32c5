"""Which defects the tests find: ``python -m benchmarks.mutations``.

Single-line defects are drawn with a seed from all folders in turn. Two steps. ``--record`` runs the whole suite once on
a copy of the checkout in which their lines have marks, and keeps what each test costs and which marks it reaches, in
child processes, too. Without it, the defects are put into a copy, one after the other. Each runs only the tests that
reach its line, first those of the first lane (``make test``), then the others, and stops at the first failure.
``--root`` measures another checkout, also one of before the two lanes: there all tests are in the first.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

from benchmarks._code_changes import Change, chosen
from benchmarks._line_marks import MODULE, code, marked
from benchmarks._measure import ROOT, Figure, arguments, progress, tell
from benchmarks.structure import PACKAGES

NUMBER = 60
SECONDS = 900
"""The longest that the tests of one lane may take for one defect, in seconds; afterwards it counts as not found."""
SECOND_LANE = "second_lane"
"""The marker of the tests that `make test` leaves out."""
_ONE_TEST = 120
"""Seconds that one test may take on a machine in use; a defect may make a loop endless, and counts as found then."""
_COPIED = ("advisor", "benchmarks", "docs", "ensemble", "notebooks", "reports", "tests", ".ci", ".github")


@dataclass(frozen=True, slots=True)
class RecordedTest:
    """A test that was recorded.

    Attributes:
        name: Its node id.
        cost: Seconds of processor time.
        is_second: Whether it is in the second lane.
        fixtures: The fixtures that it asks for.
    """

    name: str
    cost: float
    is_second: bool
    fixtures: frozenset[str]

    @property
    def file(self) -> str:
        """The file that it is in."""
        return self.name.partition("::")[0]


class Recorded:
    """What one run of the suite told of a checkout.

    Args:
        root: The checkout.
        folder: ``costs.jsonl`` and ``reached.tsv``.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        lines = [json.loads(line) for line in (folder / "costs.jsonl").read_text(encoding="utf-8").splitlines()]
        self.root = root
        self.tests = {
            line["test"]: RecordedTest(
                line["test"],
                line["cpu"] + line["children"],
                SECOND_LANE in line["marks"],
                frozenset(line["fixtures"]),
            )
            for line in lines
            if line["outcome"] == "passed"
        }
        self._of_fixture: dict[str, set[str]] = defaultdict(set)
        for test in self.tests.values():
            for fixture in test.fixtures:
                self._of_fixture[fixture].add(test.name)
        self._reached: dict[str, set[str]] = defaultdict(set)
        for line in (folder / "reached.tsv").read_text(encoding="utf-8").splitlines():
            mark, _, context = line.partition("\t")
            self._reached[mark] |= self._tests(context)

    def reaching(self, change: Change) -> set[str]:
        """The tests that reach a line; for a line that runs at import, those that reach its module's functions."""
        found = self._reached[f"{change.path}:{change.line}"] if change.in_function else set()
        # A line that no test's processes reach may still be held by the tests that reach its module.
        return found or self._reached[change.path]

    def beside(self, names: set[str]) -> set[str]:
        """Tests that share a cached result with some tests: the cache shows only the first one reaching the code."""
        files = {self.tests[name].file for name in names}
        caching = {file for file in files if "@cache" in (self.root / file).read_text(encoding="utf-8")}
        return {name for name, test in self.tests.items() if test.file in caching} - names

    def _tests(self, context: str) -> set[str]:
        fixture = re.fullmatch(r"fixture (\S+) of (.*)", context)
        if fixture:
            return {name for name in self._of_fixture[fixture[1]] if name.startswith(fixture[2])}
        return {context} & self.tests.keys()


def record(root: Path, folder: Path, found: Sequence[Change], only: Sequence[str], processes: int) -> None:
    """Run the suite of a checkout once, with marks at the lines of the defects, and keep what it tells."""
    folder.mkdir(parents=True, exist_ok=True)
    costs, reached = folder / "costs.jsonl", folder / "reached.tsv"
    for old in (costs, reached):
        old.unlink(missing_ok=True)
    reached.touch()
    plugin = folder / "plugin"
    plugin.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).with_name("_recording.py"), plugin / "_recording.py")
    (plugin / MODULE).write_text(code(reached), encoding="utf-8")
    lines: dict[str, list[int]] = defaultdict(list)
    for change in found:
        lines[change.path] += [change.line] if change.in_function else []
    with tempfile.TemporaryDirectory() as place:
        copy = Copy(root, Path(place))
        for path, own in lines.items():
            source = (copy.root / path).read_text(encoding="utf-8")
            (copy.root / path).write_text(marked(source, path, own), encoding="utf-8")
        command = [
            *(copy.python, "-m", "pytest", "-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder"),
            *("-p", "_recording", "-p", "no:cacheprovider", "--timeout", "3600", *only),
        ]
        # The marked code is this copy's, in the processes that tests start, too.
        env = {**_environment(copy.root), "RECORDED_COSTS": str(costs)}
        env["PYTHONPATH"] = f"{copy.root}{os.pathsep}{plugin}"
        subprocess.run(command, cwd=copy.root, env=env, check=False)


def _python(root: Path) -> str:
    own = root / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}


class Copy:
    """A copy of a checkout that takes defects, with the same folders beside it."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.python = folder / "checkout", _python(root)
        self.root.mkdir()
        for path in root.iterdir():
            if path.name in _COPIED:
                skipped = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
                shutil.copytree(path, self.root / path.name, symlinks=True, ignore=skipped)
            elif path.is_file() and path.name != ".git":
                shutil.copy(path, self.root / path.name)
        (self.root / ".venv").symlink_to(root / ".venv")
        if (root.parent / "shared").exists():
            (folder / "shared").symlink_to(root.parent / "shared")
        # By their contents, because a defect may leave a file's size and time as they are.
        compiled = [self.python, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", *PACKAGES, "tests"]
        subprocess.run(compiled, cwd=self.root, check=True)

    def finds(self, change: Change, tests: Sequence[RecordedTest]) -> tuple[bool, str]:
        """Whether one of the tests fails on a defect, and which, or what ended the run."""
        path = self.root / change.path
        source = path.read_text(encoding="utf-8")
        path.write_text(change.apply(source), encoding="utf-8")
        try:
            return self._run(tests)
        finally:
            path.write_text(source, encoding="utf-8")

    def _run(self, tests: Sequence[RecordedTest]) -> tuple[bool, str]:
        names = self.root.parent / "tests.txt"
        names.write_text("".join(f"{name}\n" for name in in_order(tests)), encoding="utf-8")
        command = [
            *(self.python, "-m", "pytest", "-x", "-q", "-o", "addopts=", "--hypothesis-profile=ci"),
            *("-p", "no:cacheprovider", "-rfE", "--tb=no", "--no-header", "--timeout", str(_ONE_TEST), f"@{names}"),
        ]
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env=_environment(self.root),
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False, f"not found in {SECONDS} seconds"
        if done.returncode == 0:
            return False, f"{len(tests)} tests pass"
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
        if done.returncode not in (1, 2) and failed is None:  # a process that ended by a signal is a failure, too
            return done.returncode < 0, f"pytest ended with {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}"
        return True, failed[1] if failed else f"exit status {done.returncode}"


def in_order(tests: Sequence[RecordedTest]) -> list[str]:
    """The names of tests, file by file, the cheapest files first."""
    costs: dict[str, float] = defaultdict(float)
    for test in tests:
        costs[test.file] += test.cost
    # Within a file the recorded order, in which tests share fixtures.
    return [test.name for test in sorted(tests, key=lambda test: (costs[test.file], test.file))]


def outcomes(recorded: Recorded, found: Sequence[Change], copies: Sequence[Copy]) -> list[dict[str, Any]]:
    """Each defect with the lane that finds it: 1, 2, or None. Each copy takes one defect at a time."""
    free = Queue[Copy]()
    for copy in copies:
        free.put(copy)
    # What a defect reaches is looked up here, because a database belongs to one thread.
    cases = [(change, _tests_of(recorded, change)) for change in found]

    def outcome(case: tuple[Change, list[RecordedTest]]) -> dict[str, Any]:
        copy = free.get()
        try:
            return _outcome(recorded.root, *case, copy)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        lines = []
        for line in pool.map(outcome, cases):
            lines.append(line)
            progress(f"{len(lines)} of {len(found)}: {json.dumps(line, ensure_ascii=False)}")
    return lines


def _tests_of(recorded: Recorded, change: Change) -> list[RecordedTest]:
    """The tests that reach a line, then those that may reach it by a cached result."""
    reaching = recorded.reaching(change)
    beside = recorded.beside(reaching)
    return [recorded.tests[name] for names in (reaching, beside) for name in recorded.tests if name in names]


def _outcome(root: Path, change: Change, tests: Sequence[RecordedTest], copy: Copy) -> dict[str, Any]:
    start, lane, told = time.monotonic(), None, "no test reaches it"
    for number, is_second in ((1, False), (2, True)):
        of_lane = [test for test in tests if test.is_second == is_second]
        if of_lane and lane is None:
            is_found, told = copy.finds(change, of_lane)
            lane = number if is_found else None
    return {
        "change": change.describe((root / change.path).read_text(encoding="utf-8")),
        "tests": len(tests),
        "lane": lane,
        "by": told,
        "seconds": round(time.monotonic() - start),
    }


def figures(lines: Sequence[dict[str, Any]], seed: int) -> list[Figure]:
    """What is told of all defects."""
    first, second = (sum(line["lane"] == lane for line in lines) for lane in (1, 2))
    unreached = sum(line["tests"] == 0 for line in lines)
    return [
        Figure("defects", float(len(lines)), note=f"single lines of product code, over all folders; seed {seed}"),
        Figure("found_by_lane_one", float(first), note="by the tests of `make test` that reach the line"),
        Figure("found_by_both_lanes", float(first + second), note="by any test that reaches the line"),
        Figure("reached_by_no_test", float(unreached), note="lines that only other processes run, or none"),
    ]


def main(given: Sequence[str] | None = None) -> int:
    """Record the suite, or measure what it finds."""
    parser = arguments("Put defects into single lines, and see which the tests find.")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    parser.add_argument("--recorded", type=Path, default=None, help="where the recorded run is; build/mutations")
    parser.add_argument("--record", nargs="*", default=None, metavar="TESTS", help="run the suite once; or these tests")
    parser.add_argument("--number", type=int, default=NUMBER, help="how many defects; as recorded")
    parser.add_argument("--seed", type=int, default=0, help="as recorded")
    parser.add_argument("--processes", type=int, default=2, help="how many processes run tests")
    parser.add_argument("--name", default="mutations", help="the name of the result's file")
    options = parser.parse_args(given)
    root = options.root.resolve()
    folder = (options.recorded or root / "build" / "mutations").resolve()
    found = chosen(root, PACKAGES, 3 if options.quick else options.number, options.seed)
    if options.record is not None:
        record(root, folder, found, options.record, options.processes)
        return 0
    if not (folder / "costs.jsonl").exists():
        raise SystemExit(f"{folder} has no recorded run: run python -m benchmarks.mutations --record first")
    recorded = Recorded(root, folder)
    with tempfile.TemporaryDirectory() as place:
        copies = []
        for number in range(options.processes):
            folder = Path(place, str(number))
            folder.mkdir()
            copies.append(Copy(root, folder))
        lines = outcomes(recorded, found, copies)
    tell(options.name, figures(lines, options.seed), options, table={"rows": lines})
    return 0


if __name__ == "__main__":
    sys.exit(main())
