"""The report of a large run in a browser: ``python -m benchmarks.report``.

``advisor select`` makes runs of 28 models on made-up logs of 1,000 and of 10,000 questions in 14 groups. Chromium opens
their reports: the size, the first screen, the slowest filter, search and sort, and the printed pages. The status is 1
if a figure misses its target.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._measure import Figure, arguments, progress, run_advisor, spread, tell
from reports import write_report

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

KEYS = ("page_mb", "page_10000_mb", "first_screen_s", "filter_ms", "search_ms", "sort_ms", "printed_pages")
MODELS, GROUPS = 28, 14
_A4 = {"paperWidth": 8.27, "paperHeight": 11.69}
# The layout is part of what a reader waits for, so each part asks for it.
_TIMED = """const [act, given] = arguments;
            const parts = {
              click: () => document.querySelector(given).click(),
              search: () => { const field = document.querySelector('#questions-tool input'); field.value = given;
                              field.dispatchEvent(new Event('input')); },
            };
            const before = performance.now(); parts[act](); document.body.getBoundingClientRect();
            return performance.now() - before"""
_PAINTED = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def make_log(path: Path, questions: int) -> Path:
    """Write a log of models that are between 45 and 80% accurate, with questions of about 300 characters."""
    chance = random.Random(questions)
    with path.open("w", encoding="utf-8") as file:
        for number in range(questions):
            hard, answers = chance.gauss(0, 0.25), {}
            for model in range(MODELS):
                right = chance.random() < 0.8 - 0.35 * model / MODELS - hard
                answer = str(number) if right else str(chance.randrange(10))
                answers[f"organisation/model-{model:02}-instruct"] = [answer, int(right), chance.randrange(200, 900)]
            words = " ".join(f"w{chance.randrange(1000)}" for _ in range(60))
            line = {"id": number, "question": words, "group": f"subject {number % GROUPS}", "reference": str(number)}
            file.write(json.dumps(line | {"models": answers}) + "\n")
    return path


def make_run(folder: Path, questions: int) -> Path:
    """Select from such a log, and return the run folder."""
    log = make_log(folder / f"log-{questions}.jsonl", questions)
    run = folder / f"run-{questions}"
    run_advisor(["select", "--logs", str(log), "--out", str(run), "--quiet"])
    return run


def add_texts(run: Path) -> None:
    """Give each response of a run a text of 600 characters, and draw the report again."""
    samples = run / "samples.jsonl"
    lines = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        for response in line["responses"].values():
            response["text"] = "Let us think step by step. " * 22 + f"So it is {response['extracted']}."
    samples.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    write_report(run)


@contextmanager
def browser() -> Iterator[Chrome | None]:
    """A Chromium without access to any network; None where there is none."""
    driver, program = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or program is None:
        yield None
        return
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"):
        options.add_argument(argument)
    window = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    try:
        yield window
    finally:
        window.quit()


def first_screen(window: Chrome, report: Path) -> float:
    """Seconds from the start of loading until the first screen is painted."""
    window.get("about:blank")
    window.get(report.as_uri())
    deadline = time.monotonic() + 30
    while (painted := window.execute_script(_PAINTED)) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return float(painted) / 1000


def slowest(window: Chrome, act: str, given: Sequence[str], rounds: int) -> list[float]:
    """Milliseconds of the slowest of some actions, until the page has its new layout [rounds]."""
    return [max(float(window.execute_script(_TIMED, act, each)) for each in given) for _ in range(rounds)]


def printed_pages(window: Chrome) -> int:
    """The pages of the open report on A4."""
    printed: Any = window.execute_cdp_cmd("Page.printToPDF", _A4)
    return len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(printed["data"])))


def figures(folder: Path, options: argparse.Namespace) -> Iterator[Figure]:
    """Make the runs, and measure their reports."""
    rounds, large = (1, 500) if options.quick else (options.rounds or 5, 10_000)
    progress(f"benchmarks.report: runs of {MODELS} models on 1,000 and {large:,} questions")
    small, big = (make_run(folder, questions) / "report.html" for questions in (1000, large))
    add_texts(small.parent)
    for name, page, what in ((KEYS[0], small, "1,000 questions, with texts"), (KEYS[1], big, f"{large:,} questions")):
        yield Figure(name, page.stat().st_size / 1e6, limit="at most 2", note=f"megabytes, {MODELS} models, {what}")
    with browser() as window:
        if window is None:
            yield from (Figure(name, None, note="needs chromium and chromedriver") for name in KEYS[2:])
            return
        seconds = [first_screen(window, big) for _ in range(rounds)]
        yield spread(KEYS[2], seconds, "at most 1", f"seconds to the first screen, {large:,} questions")
        window.execute_script("document.querySelectorAll('#examples, #questions').forEach((each) => each.open = true)")
        buttons = window.execute_script(
            "return [...document.querySelectorAll('#questions-tool [data-filter]')].map((each) => each.dataset.filter)"
        )
        filters = [f"#questions-tool [data-filter={name}]" for name in (*buttons, "all")]
        note = f"milliseconds of the slowest of {len(buttons)} filters, {large:,} questions"
        yield spread(KEYS[3], slowest(window, "click", filters, rounds), "at most 100", note)
        words = slowest(window, "search", ["w1", "w12", "w123", "not there", ""], rounds)
        yield spread(KEYS[4], words, "at most 100", "milliseconds of the slowest of 5 searches")
        heads = [f"#questions-tool th:nth-child({column}) button" for column in range(1, 9)]
        yield spread(
            KEYS[5], slowest(window, "click", heads, rounds), "at most 100", "milliseconds of the slowest sort"
        )
        yield Figure(KEYS[6], printed_pages(window), limit="at most 2", note="A4 pages of the printed report")


def main(given: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = arguments("Measure the report of a large run in a browser.").parse_args(given)
    with tempfile.TemporaryDirectory() as folder:
        found = list(figures(Path(folder), options))
    tell("report", found, options)
    return int(any(figure.value is not None and not figure.held for figure in found))


if __name__ == "__main__":
    sys.exit(main())
