"""Commands that are killed at random moments: ``python -m benchmarks.kills``.

``select``, ``profile``, ``report`` and ``serve`` run on the demo's pool and are ended by SIGKILL, again and again, with
one cache and one run folder. After each kill every stored response must be what it was: one that was computed again
would have another time. The run folder must have a complete result or none. At the end the command runs undisturbed,
and its result must be that of a run that was never killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks._measure import ADVISOR, ROOT, Figure, arguments, progress, tell

KILLS = 100
LONGEST = 9.0
"""Seconds; about as long as the longest of the commands takes with an empty cache."""
MEASURED = (
    "seconds_total",
    "seconds_per_question",
    "seconds_median",
    "seconds_p95",
    "tokens_per_second",
    "peak_memory",
    "loads",
    "command",
    "date",
    "versions",
)
"""What differs between two honest runs."""


class Place:
    """A run folder and a cache, and the commands that work on them."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.run, self.cache = folder / "run", folder / "cache"
        pool = ["--pool", "demo", "--task", "word_problems", "--limit", str(limit), "--cache-dir", str(self.cache)]
        self.commands: dict[str, list[str]] = {
            "select": ["select", *pool, "--out", str(self.run), "--quiet"],
            "profile": ["profile", *pool, "--quiet"],
            "report": ["report", str(self.run)],
            "serve": ["serve", str(self.run), "--port", "0"],
        }

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Start a command in a group of processes that can be killed together."""
        return subprocess.Popen(
            [sys.executable, "-I", "-c", ADVISOR, *self.commands[command]],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def stored(self) -> dict[str, str]:
        """Every stored response, by key."""
        path = self.cache / "responses.sqlite"
        if not path.exists():
            return {}
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60) as connection:
            try:
                return dict(connection.execute("SELECT key, value FROM responses"))
            except sqlite3.OperationalError:  # killed before the tables were made
                return {}

    def is_whole(self) -> bool:
        """Whether the run folder has no result, or a result with all of its samples."""
        path = self.run / "result.json"
        if not path.exists():
            return True
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            lines = (self.run / "samples.jsonl").read_text(encoding="utf-8").splitlines()
            splits = [json.loads(line)["split"] for line in lines]
        except (OSError, ValueError, KeyError):
            return False
        return bool(splits.count("dev") == result["task"]["n"])

    def result(self) -> Any:
        """The result, without what differs between two honest runs."""
        return without_measures(json.loads((self.run / "result.json").read_text(encoding="utf-8")))


def without_measures(value: Any) -> Any:
    """A JSON value without times, memory, the command line and versions."""
    if isinstance(value, dict):
        return {key: without_measures(each) for key, each in value.items() if key not in MEASURED}
    return [without_measures(each) for each in value] if isinstance(value, list) else value


def figures(kills: int, limit: int, seed: int) -> Iterator[Figure]:
    """Kill commands, and count what went wrong."""
    chance = random.Random(seed)
    twice = broken = 0
    with tempfile.TemporaryDirectory() as folder:
        honest, place = Place(Path(folder, "honest"), limit), Place(Path(folder, "killed"), limit)
        if honest.start("select").wait():
            raise SystemExit("the undisturbed run failed")
        before = place.stored()
        for number in range(kills):
            # A report and a server need a run folder, so they begin when there is one.
            names = ["select", "profile"] + ["report", "serve"] * (place.run / "result.json").exists()
            name = chance.choice(names)
            process = place.start(name)
            time.sleep(chance.uniform(0.2, LONGEST))
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            after = place.stored()
            twice += sum(after.get(key) != value for key, value in before.items())
            broken += not place.is_whole()
            before = after
            progress(f"{number + 1} of {kills}: {name}, {len(after)} responses")
        status = place.start("select").wait()
        same = status == 0 and place.result() == honest.result() and place.stored().keys() == honest.stored().keys()
    yield Figure("kills", float(kills), note=f"select, profile, report and serve; {limit} questions; seed {seed}")
    yield Figure("computed_twice", float(twice), limit="0", note="stored responses that were lost or computed again")
    yield Figure("broken_folders", float(broken), limit="0", note="run folders with a part of a result")
    yield Figure("same_result", float(same), limit="1", note="1 if the last run's result is that of an undisturbed run")


def main(given: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = arguments("Kill commands at random moments, and see what is left.")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(given)
    kills, limit = (2, 8) if options.quick else (options.kills, 60)
    tell("kills", list(figures(kills, limit, options.seed)), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
