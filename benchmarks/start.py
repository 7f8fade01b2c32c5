"""How long a user waits: ``python -m benchmarks.start``.

It times ``advisor --help`` in a new process, against Python alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence

from benchmarks._measure import ROOT, Figure, Timer, arguments, ratio, spread, tell

KEYS = ("help_over_python", "help_s")
HELP = "import sys; from advisor.cli import main; sys.argv = ['advisor', '--help']; main()"


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


def main(given: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = arguments("Time the start of the command.").parse_args(given)
    tell("start", list(figures(options)), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
