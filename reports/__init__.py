"""One HTML file from a run folder's ``result.json``, ``samples.jsonl`` and ``evaluation.json``, and nothing else."""

from __future__ import annotations

from pathlib import Path

from ensemble.errors import InputError

__all__ = ["write_report"]


def write_report(run_dir: Path) -> Path:
    """Write ``report.html`` into a run folder, again where it is already there.

    Args:
        run_dir: The run folder, with its ``result.json``. Without ``samples.jsonl`` the report has no examples, and
            says so; without ``evaluation.json`` it does not hold methods against each other.

    Returns:
        The path of the report.

    Raises:
        ensemble.errors.InputError: A file is missing, is not what its name says, or has an unknown schema version.
    """
    from reports.evaluation import read_evaluation
    from reports.examples import read_samples
    from reports.model import read_result

    if not run_dir.is_dir():
        raise InputError(f"{run_dir}: not a folder; name the run folder that `advisor select` wrote")
    if not (run_dir / "result.json").is_file():
        raise InputError(f"{run_dir}: has no result.json; name the run folder that `advisor select` wrote")
    result = read_result(run_dir / "result.json")
    samples = read_samples(run_dir / "samples.jsonl", result)
    evaluation = read_evaluation(run_dir / "evaluation.json")

    # Only here, since drawing loads matplotlib, for which no refusal need wait.
    from reports.page import write_page

    return write_page(run_dir / "report.html", result, samples, evaluation)
