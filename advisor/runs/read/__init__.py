"""The files of a run folder, read and checked: ``result.json``, ``samples.jsonl`` and ``evaluation.json``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ensemble.errors import InputError
from advisor.runs.read.evaluation import read_evaluation
from advisor.runs.read.result import Result, read_result
from advisor.runs.read.samples import read_samples


def read_run(folder: Path) -> Result:
    """Read a run folder. ``samples.jsonl`` and ``evaluation.json`` are optional.

    Raises:
        InputError: The folder has no ``result.json``, or a file is broken or has an unknown schema version.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: not a folder; name the run folder that `advisor select` wrote")
    if not (folder / "result.json").is_file():
        raise InputError(f"{folder}: has no result.json; name the run folder that `advisor select` wrote")
    result = read_result(folder / "result.json")
    names = [candidate.name for candidate in result.candidates]
    best_single = result.best_single.name if result.best_single else None
    samples = read_samples(folder / "samples.jsonl", names, best_single)
    return replace(result, samples=samples, evaluation=read_evaluation(folder / "evaluation.json"))
