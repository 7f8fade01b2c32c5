"""How long a user waits: ``python -m benchmarks.start``.

It times ``advisor --help`` in a new process, against Python alone; the way from a table to a report on the demo's
models, ``advisor init questions.csv --yes`` and ``advisor select --pool demo --task questions.yaml``, with an empty
cache; and the filters of a report in a browser where there is one: ``--run runs/demo`` names the run folder whose
report is opened.
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

from benchmarks._measure import ROOT, Figure, Timer, arguments, ratio, spread, tell

KEYS = ("help_over_python", "help_s", "table_to_report_s", "filter_ms")
HELP = "import sys; from advisor.cli import main; sys.argv = ['advisor', '--help']; main()"
DATA = ROOT / "advisor" / "demo" / "data" / "held_out.jsonl"
CLICK = """const before = performance.now(); document.querySelector(arguments[0]).click();
           document.body.getBoundingClientRect(); return performance.now() - before"""


def run_python(code: str) -> int:
    """Run a line of Python in a new process, which must succeed; 1 for the timer."""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return 1


def figures(options: argparse.Namespace) -> Iterator[Figure]:
    """Time each part."""
    timer = Timer(2 if options.quick else options.rounds or 9, options.clock)
    seconds = timer({"help": lambda: run_python(HELP), "python": lambda: run_python("pass")})
    yield ratio("help_over_python", seconds["help"], seconds["python"], note="advisor --help over python -c pass")
    yield spread("help_s", seconds["help"], "at most 0.2", "seconds of advisor --help, Python's own start included")
    yield _from_table(options)
    yield _filters(options.run)


def _from_table(options: argparse.Namespace) -> Figure:
    """A table of the demo's questions, two commands, and a report."""
    if options.quick:
        return Figure("table_to_report_s", None, note="takes too long for --quick")
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    table = [("Question", "Answer"), *((row["question"], row["answer"]) for row in rows)]
    seconds = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            with (folder / "questions.csv").open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows(table)
            start = time.perf_counter()
            for command in ("init questions.csv --yes", "select --pool demo --task questions.yaml --cache-dir cache"):
                _run_advisor(command.split(), folder)
            seconds.append(time.perf_counter() - start)
            # Fails where the command wrote no report.
            (folder / "runs" / "questions" / "report.html").stat()
    note = f"seconds, {len(rows)} questions of a CSV file, half of them dev"
    return spread("table_to_report_s", seconds, "at most 90", note)


def _run_advisor(arguments: Sequence[str], folder: Path) -> None:
    code = f"import sys; from advisor.cli import main; sys.argv = ['advisor', *{list(arguments)!r}]; main()"
    subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, check=True)


def _filters(run: Path | None) -> Figure:
    """The slowest filter of a report's examples."""
    driver, program = shutil.which("chromedriver"), shutil.which("chromium")
    if run is None or driver is None or program is None:
        return Figure("filter_ms", None, note="needs --run, chromium and chromedriver")
    from selenium import webdriver

    chrome = webdriver.ChromeOptions()
    chrome.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"):
        chrome.add_argument(argument)
    window = webdriver.Chrome(options=chrome, service=webdriver.ChromeService(executable_path=driver))
    try:
        window.get((run / "report.html").absolute().as_uri())
        tags = window.execute_script(
            "return [...document.querySelectorAll('[data-filter]')].map(f => f.dataset.filter)"
        )
        times = [float(window.execute_script(CLICK, f"[data-filter={tag}]")) for tag in tags if tag]
    finally:
        window.quit()
    return Figure("filter_ms", max(times), min(times), max(times), "at most 100", f"milliseconds, {len(times)} filters")


def main(given: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = arguments("Time the start of the command and the filters of a report.")
    parser.add_argument("--run", type=Path, help="a run folder with a report")
    options = parser.parse_args(given)
    tell("start", list(figures(options)), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
