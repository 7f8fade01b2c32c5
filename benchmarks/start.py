"""How long a user waits: ``python -m benchmarks.start``.

It times ``advisor --help`` in a new process, against Python alone, and the way from a table to a report on the demo's
models, ``advisor init questions.csv --yes`` and ``advisor select --pool demo --task questions.yaml``, with an empty
cache; the first command of ``make demo``, with an empty cache and with all responses stored; and ``advisor FILE`` on
answers of 51 real models, up to the first line of the advice, and with the report.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks._measure import ADVISOR, ROOT, Figure, Timer, arguments, ratio, run_advisor, spread, tell

SLOW = ("table_to_report_s", "demo_s", "demo_again_s", "advice_s", "advice_report_s")
KEYS = ("help_over_python", "help_s", *SLOW)
HELP = "import sys; from advisor.cli import main; sys.argv = ['advisor', '--help']; main()"
DEMO = ("select", "--pool", "demo", "--task", "word_problems", "--out", "run", "--cache-dir", "cache", "--quiet")
CRUX = ROOT.parent / "shared" / "pools" / "crux.jsonl.xz"
DATA = ROOT / "advisor" / "demo" / "data" / "held_out.jsonl"


def run_python(code: str) -> int:
    """Run a line of Python in a new process, which must succeed; 1 for the timer."""
    subprocess.run([sys.executable, "-I", "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return 1


def figures(options: argparse.Namespace) -> Iterator[Figure]:
    """Time each part."""
    timer = Timer(2 if options.quick else options.rounds or 9, options.clock)
    seconds = timer({"help": lambda: run_python(HELP), "python": lambda: run_python("pass")})
    yield ratio("help_over_python", seconds["help"], seconds["python"], note="advisor --help over python -c pass")
    yield spread("help_s", seconds["help"], "at most 0.2", "seconds of advisor --help, Python's own start included")
    if options.quick:
        yield from (Figure(name, None, note="takes too long for --quick") for name in SLOW)
        return
    yield _from_table()
    yield from _demo(options.rounds or 5)
    if CRUX.exists():
        yield from _advice(options.rounds or 5)


def _from_table() -> Figure:
    """A table of the demo's questions, two commands, and a report."""
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    table = [("Question", "Answer"), *((row["question"], row["answer"]) for row in rows)]
    seconds = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with (folder / "questions.csv").open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows(table)
            commands = ("init questions.csv --yes", "select --pool demo --task questions.yaml --cache-dir cache")
            seconds.append(sum(_seconds_of(command.split(), folder) for command in commands))
            # Fails where the command wrote no report.
            (folder / "runs" / "questions" / "report.html").stat()
    note = f"seconds, {len(rows)} questions of a CSV file, half of them dev"
    return spread("table_to_report_s", seconds, "at most 90", note)


def _demo(rounds: int) -> Iterator[Figure]:
    """The first command of ``make demo``."""
    first, again = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            first.append(_seconds_of(DEMO, Path(name)))
            shutil.rmtree(Path(name) / "run")
            again.append(_seconds_of(DEMO, Path(name)))
    note = f"seconds of advisor {' '.join(DEMO[:5])}"
    yield spread("demo_s", first, "at most 20", f"{note}, with an empty cache")
    yield spread("demo_again_s", again, note=f"{note}, all responses stored")


def _advice(rounds: int) -> Iterator[Figure]:
    """``advisor FILE`` on a pool of real logs; standard output begins with the advice."""
    first, whole, command = [], [], [sys.executable, "-I", "-c", ADVISOR, str(CRUX), "--quiet"]
    for _ in range(rounds):
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as name, subprocess.Popen(command, cwd=name, stdout=subprocess.PIPE) as ran:
            next(iter(ran.stdout or ()))
            first.append(time.perf_counter() - start)
            ran.communicate()
            whole.append(time.perf_counter() - start)
    yield spread("advice_s", first, "at most 6", f"seconds of advisor {CRUX.name} to the first line of advice")
    yield spread("advice_report_s", whole, "at most 10", f"seconds of advisor {CRUX.name}, with the report")


def _seconds_of(given: Sequence[str], folder: Path) -> float:
    start = time.perf_counter()
    run_advisor(given, folder)
    return time.perf_counter() - start


def main(given: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = arguments("Time the start of the command, and the way from a table to a report.").parse_args(given)
    tell("start", list(figures(options)), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
