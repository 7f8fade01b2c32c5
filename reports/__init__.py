"""One HTML file from a run folder's ``result.json``, ``samples.jsonl`` and ``evaluation.json``.

The modules in the order of their imports: ``charts``, ``table``, ``sections``, ``page``. ``formats`` writes
Markdown, LaTeX, CSV and the evidence for a model card, and ``terminal`` what the terminal shows.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_report"]


def write_report(run_dir: Path) -> Path:
    """Write ``report.html`` into a run folder; without ``samples.jsonl`` or ``evaluation.json`` it has less."""
    from advisor.run.folder import Run
    from reports.report_data import report_data

    data = report_data(Run.open(run_dir))

    # Imported after reading, because an error in the files should not wait until matplotlib is loaded.
    from reports.page import write_page

    return write_page(run_dir / "report.html", data)
