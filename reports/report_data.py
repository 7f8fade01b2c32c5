"""What the sections draw from: a run's result, what the page shows of its questions, and its evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.runs.run import Run
from advisor.runs.schema.evaluation import Evaluation
from advisor.runs.schema.result import Result
from reports.shown_samples import ShownSamples, shown_samples


@dataclass(frozen=True, slots=True)
class ReportData:
    """A run as the page has room for it.

    Attributes:
        result: ``result.json``.
        samples: None without ``samples.jsonl``.
        evaluation: None without ``evaluation.json``.
    """

    result: Result
    samples: ShownSamples | None
    evaluation: Evaluation | None


def report_data(run: Run) -> ReportData:
    """Read all files of a run.

    Raises:
        InputError: A file is broken, or an older version wrote it.
    """
    return ReportData(run.result, shown_samples(run), run.evaluation)


def joint_name(result: Result) -> str:
    """What writes the joint response that examples show: a recommended fusion, or else the set; empty if neither."""
    recommended = result.recommended
    if recommended is not None and recommended.key.WRITES and not recommended.is_decoded:
        return recommended.title
    return f"{result.ensemble.name} ensemble" if result.ensemble else ""
