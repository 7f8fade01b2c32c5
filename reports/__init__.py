"""One HTML file from a run folder's ``result.json`` and ``samples.jsonl``, and from nothing else."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_report"]


def write_report(run_dir: Path) -> Path:
    """Write ``report.html`` into a run folder, again where it is already there.

    Args:
        run_dir: The run folder, with its ``result.json``. Without ``samples.jsonl`` the report has no examples, and
            says so.

    Returns:
        The path of the report.

    Raises:
        ensemble.errors.InputError: A file is missing, is not what its name says, or has an unknown schema version.
    """
    from reports.page import (
        write_page,
    )  # here, not above: drawing loads matplotlib, which ``import reports`` need not wait for

    return write_page(run_dir)
