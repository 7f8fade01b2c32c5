"""Measuring: parts that take turns, medians of their ratios, the machine, and the file that keeps a result.

A machine's speed drifts, by heat and by what else runs. So the parts of a ratio are run one after another, round after
round (A B A B), the ratio is taken within each round, and what is told is the median, with the smallest and largest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results"
ADVISOR = "from advisor.cli import main; main()"
"""What ``python -c`` runs as the command ``advisor``."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured number.

    Attributes:
        name: Its key in the JSON object.
        value: The median; None where it could not be measured here.
        low: The smallest of all rounds.
        high: The largest.
        limit: What it should be, in words; empty where nothing is promised.
        note: What was measured, or why nothing was.
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    limit: str = ""
    note: str = ""

    @property
    def held(self) -> bool:
        """Whether it was measured and is within its limit: a number, at most or at least one, or between two."""
        if self.value is None:
            return False
        words, _, number = self.limit.rpartition(" ")
        bound = float(number)
        if words.endswith(" to"):
            return float(words.removesuffix(" to")) <= self.value <= bound
        return {"": self.value == bound, "at most": self.value <= bound, "at least": self.value >= bound}[words]


@dataclass(frozen=True, slots=True)
class Timer:
    """Times parts that take turns.

    Args:
        rounds: How often each part is timed, after the rounds that do not count.
        clock: ``wall``, or ``cpu`` for the process's own time, for a machine that others use too.
        device: Where the parts compute; the clock is read when it has nothing left to do.
        untimed: First rounds that do not count; 0 for parts that are processes of their own.
    """

    rounds: int
    clock: str = "wall"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    untimed: int = 1

    def __call__(self, parts: Mapping[str, Callable[[], int]]) -> dict[str, list[float]]:
        """Run every part in every round.

        Args:
            parts: By name; each returns how many units (tokens, steps) it did.

        Returns:
            For each part its seconds per unit [rounds].
        """
        seconds: dict[str, list[float]] = {name: [] for name in parts}
        for turn in range(self.untimed + self.rounds):
            for name, part in parts.items():
                start = self.now()
                units = part()
                taken = (self.now() - start) / units
                if turn >= self.untimed:
                    seconds[name].append(taken)
        return seconds

    def once(self, part: Callable[[], object]) -> float:
        """The seconds of a part that runs once."""
        start = self.now()
        part()
        return self.now() - start

    def now(self) -> float:
        """The time in seconds, when the device has done all that it was asked for."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()
        return time.process_time() if self.clock == "cpu" else time.perf_counter()


def ratio(name: str, above: Sequence[float], *below: Sequence[float], limit: str = "", note: str = "") -> Figure:
    """The seconds of one part over the sum of others', round by round."""
    rounds = [top / sum(rest) for top, *rest in zip(above, *below, strict=True)]
    return spread(name, rounds, limit=limit, note=note)


def spread(name: str, rounds: Sequence[float], limit: str = "", note: str = "") -> Figure:
    """The median of some rounds, with the smallest and the largest."""
    return Figure(name, statistics.median(rounds), min(rounds), max(rounds), limit, note)


def peak_memory(device: torch.device | None = None) -> float:
    """The most memory that this process has held so far, in MiB: on an accelerator its tensors, else the process."""
    if device is not None and device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if device is not None and device.type == "mps":
        # MPS keeps no peak, but what its driver took is seldom given back.
        return torch.mps.driver_allocated_memory() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def machine(device: torch.device | None = None) -> dict[str, Any]:
    """What the figures were measured on."""
    import transformers

    described: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "transformers": transformers.__version__,
    }
    if device is not None and device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        described["device"] = properties.name
        described["device_memory_gib"] = round(properties.total_memory / 2**30, 1)
        described["cuda"] = torch.version.cuda or f"ROCm {torch.version.hip}"
    elif device is not None and device.type == "mps":
        described["device"] = f"{_processor()} (MPS)"
        described["device_memory_gib"] = round(torch.mps.recommended_max_memory() / 2**30, 1)
    return described


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def commit() -> str:
    """The commit that is measured, with ``-dirty`` where the decoder differs from it."""
    try:
        run = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return run.stdout.strip()


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object of ratios, and nothing else")
    parser.add_argument("--quick", action="store_true", help="tiny shapes: tries the benchmark, measures nothing")
    parser.add_argument("--rounds", type=int, default=None, help="how often each part is timed")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: on a machine in use by others")
    parser.add_argument("--threads", type=int, default=None, help="torch's threads; its own choice without")
    parser.add_argument(
        "--save", type=Path, nargs="?", const=RESULTS, metavar="FOLDER", help="keep the result, in benchmarks/results"
    )
    return parser


def parsed(parser: argparse.ArgumentParser, given: Sequence[str] | None) -> argparse.Namespace:
    """The options that are given; torch has its threads by them from now on."""
    options = parser.parse_args(given)
    if options.threads:
        torch.set_num_threads(options.threads)
    return options


def measured(
    benchmark: str,
    sections: Mapping[str, Callable[[argparse.Namespace], list[Figure]]],
    keys: Sequence[str],
    options: argparse.Namespace,
) -> list[Figure]:
    """The figures of those sections that the options name, or of all; without a value for the keys of the others."""
    figures: list[Figure] = []
    for name in options.only or sections:
        progress(f"{benchmark}: {name}")
        figures += sections[name](options)
    there = {figure.name for figure in figures}
    return figures + [Figure(key, None, note="not measured here") for key in keys if key not in there]


def run_advisor(given: Sequence[str], folder: Path = ROOT) -> None:
    """Run a command of this project in a process of its own, which must succeed."""
    command = [sys.executable, "-I", "-c", ADVISOR, *given]
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True)


def tell(
    name: str,
    figures: Sequence[Figure],
    options: argparse.Namespace,
    device: torch.device | None = None,
    table: Mapping[str, Any] | None = None,
) -> None:
    """Print the figures, and keep them where the options say so; with the table that they are from, if there is one."""
    if options.json:
        print(json.dumps({figure.name: figure.value for figure in figures}, indent=1))
    else:
        print(_table(figures))
    keep(name, figures, options, device, table)


def keep(
    name: str,
    figures: Sequence[Figure],
    options: argparse.Namespace,
    device: torch.device | None = None,
    table: Mapping[str, Any] | None = None,
) -> None:
    """Keep the figures where the options say so; with the table that they are from, if there is one."""
    if options.save:
        kept = {
            "benchmark": name,
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "commit": commit(),
            "clock": options.clock,
            "quick": options.quick,
            "machine": machine(device),
            "figures": {figure.name: {k: v for k, v in asdict(figure).items() if k != "name"} for figure in figures},
            **({"table": table} if table else {}),
        }
        # Parts are a list; a benchmark whose parts have files for themselves names one.
        if isinstance(getattr(options, "only", None), list):
            kept["figures"] = {**_kept_before(options.save / f"{name}.json"), **kept["figures"]}
        options.save.mkdir(parents=True, exist_ok=True)
        (options.save / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _kept_before(path: Path) -> dict[str, Any]:
    """The figures of an earlier run, each with its commit, where only a part is measured again."""
    if not path.exists():
        return {}
    kept = json.loads(path.read_text(encoding="utf-8"))
    return {name: {"commit": kept["commit"], **figure} for name, figure in kept["figures"].items()}


def progress(text: str) -> None:
    """Say on standard error what is being done."""
    print(text, file=sys.stderr, flush=True)


def _table(figures: Sequence[Figure]) -> str:
    width = max((len(figure.name) for figure in figures), default=0)
    lines = []
    for figure in figures:
        value = "not measured" if figure.value is None else f"{figure.value:.3f}"
        if figure.low is not None and figure.high is not None:
            value += f" ({figure.low:.3f} to {figure.high:.3f})"
        lines.append(f"{figure.name:{width}}  {value:28}  {figure.limit:16}  {figure.note}".rstrip())
    return "\n".join(lines)
