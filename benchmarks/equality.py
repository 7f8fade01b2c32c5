"""Whether all ways to decode write the same texts: ``python -m benchmarks.equality``.

Three groups of cases come from the tests, which run a share of them. The reference's cases compare the decoder with the
plainest implementation (tests/reference.py). Random ensembles of 18 architectures, greedy and drawn, and five kinds of
text in which words seldom end, compare plain, drafted, batched, traced and streamed decoding. Models are tiny and in
float64. Two processes take about ten minutes; the figures do not depend on the machine.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks._measure import ROOT, Figure, arguments, progress, tell
from ensemble.decode.settings import Settings

GROUPS = ("reference", "ensembles", "kinds")
CASES = {"reference": "at least 700", "ensembles": "at least 100", "kinds": "at least 500"}
NOTES = {
    "reference": "texts of 20 combinations of vocabularies, by the tests' reference and in every way",
    "ensembles": "random ensembles of 18 architectures; each writes 4 texts greedily and 4 with draws, in every way",
    "kinds": "texts of CSV, JSON, Markdown tables, LaTeX and Thai, by the tests' reference and in every way",
}
KEYS = tuple(f"{group}_{what}" for group in GROUPS for what in ("cases", "differences"))
_SETTINGS = 5
"""Settings of a combination of the reference, with seven prompts each."""
_PROCESSES = 2

Unit = tuple[str, str]
"""A group and the name of some of its cases, which share their models and run in one process."""


def main(given: Sequence[str] | None = None) -> int:
    """Run all cases, print how many there are and how many differ, keep it where asked; 1 where any differs."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", choices=GROUPS, action="append", help="just this group; can be given several times")
    options = parser.parse_args(given)
    groups = options.only or GROUPS
    units = [unit for group in groups for unit in units_of(group, options.quick)]
    counts = dict.fromkeys(groups, 0)
    found: dict[str, list[str]] = {group: [] for group in groups}
    for (group, name), cases, differing in _outcomes(units, options):
        counts[group] += cases
        found[group] += [f"{name}: {difference}" for difference in differing]
        progress(f"benchmarks.equality: {group}, {name}: {cases} cases, {len(differing)} differences")
    figures = []
    for group in groups:
        figures.append(Figure(f"{group}_cases", counts[group], limit=CASES[group], note=NOTES[group]))
        note = "; ".join(found[group][:3])
        figures.append(Figure(f"{group}_differences", len(found[group]), limit="0", note=note))
    tell("equality", figures, options)
    return int(any(found.values()))


def units_of(group: str, quick: bool) -> list[Unit]:
    """The parts of a group; few with made-up vocabularies for a trial."""
    decoder, kinds, ensembles = test_modules("test_decoder", "test_kinds_of_text", "test_random_ensembles")
    if group == "ensembles":
        names: Iterable[str] = map(str, range(2 if quick else ensembles.NUMBER))
    else:
        lines = decoder.COMBINATIONS if group == "reference" else kinds.LINES
        # Combinations of real vocabularies that are absent here are left out, which the number of cases shows.
        names = lines[:1] if quick else [line for line in lines if not decoder.available(line).marks]
    return [(group, name) for name in names]


def run_unit(unit: Unit, tables: Path, quick: bool) -> tuple[int, list[str]]:
    """Decode some cases.

    Args:
        unit: The cases.
        tables: A folder for the tables of joint vocabularies.
        quick: Whether to run a few of them.

    Returns:
        How many there are, and what differs.
    """
    decoder, kinds, ensembles = test_modules("test_decoder", "test_kinds_of_text", "test_random_ensembles")
    group, name = unit
    if group == "ensembles":
        return 1, ensembles.differing(int(name), tables)
    if group == "reference":
        return _judged(decoder, name, tables, 1 if quick else _SETTINGS)
    cases = [(kind, number) for kind in kinds.KINDS for number in range(kinds.SETTINGS_EACH)]
    if quick:
        cases = cases[:1]
    differing = [
        f"{kind}, {difference}" for kind, number in cases for difference in kinds.differing(kind, name, number, tables)
    ]
    return len(cases) * kinds.TEXTS_EACH, differing


def _judged(decoder: Any, line: str, tables: Path, count: int) -> tuple[int, list[str]]:
    """The cases of a combination of the tests of the decoder."""
    (ways,) = test_modules("ways")
    cases, differing = 0, []
    for setting, expected in decoder.judged(line, count):
        ensemble = decoder.ensemble_of(line, tables, setting.k, setting.weights)
        own = Settings(setting.max_new_tokens, setting.stop)
        plain = ways.decode(ensemble, setting.prompts, own)
        cases += len(plain)
        differing += [
            f"reference: {prompt!r}"
            for prompt, made, wanted in zip(setting.prompts, plain, expected, strict=True)
            # Where two tokens are equally likely, rounding may decide.
            if not wanted.is_tie and decoder.outcome(made) != wanted.outcome
        ]
        differing += ways.differences(ensemble, setting.prompts, own, plain)
    return cases, differing


def _outcomes(units: Sequence[Unit], options: argparse.Namespace) -> Iterator[tuple[Unit, int, list[str]]]:
    """The cases and differences of each unit, when they are known, in order."""
    with tempfile.TemporaryDirectory() as folder:
        tables, quick = Path(folder), options.quick
        if quick:
            for unit in units:
                yield unit, *run_unit(unit, tables, quick)
            return
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(_PROCESSES, context, torch.set_num_threads, (1,)) as pool:
            tasks = [(unit, pool.submit(run_unit, unit, tables, quick)) for unit in units]
            for unit, task in tasks:
                yield unit, *task.result()


def test_modules(*names: str) -> list[Any]:
    """Modules of the tests, which import each other by their bare names."""
    folder = str(ROOT / "tests")
    if folder not in sys.path:
        sys.path.append(folder)
    return [importlib.import_module(name) for name in names]


if __name__ == "__main__":
    sys.exit(main())
