"""Examples: the questions with every response. The script shows all of them, the page without script the best few."""

from __future__ import annotations

from typing import Any

from reports.report_data import TAGS, ReportData, ShownExample, ShownSamples, joint_name
from reports.sections.questions import compared_strategy

SHOWN_WITHOUT_SCRIPT = 12  # for readers without JavaScript
MOST_BYTES_WITHOUT_SCRIPT = 150_000  # of these examples, because they are in the page a second time
BYTES_OF_A_STEP = 300  # about as many as a step of a trace has in the page's markup


def values(report: ReportData) -> dict[str, Any]:
    """Return the template's values. The section is always shown, because it says when examples are missing."""
    result = report.result
    samples = report.samples
    return {
        "samples": samples,
        "telling": _telling(samples) if samples else [],
        "tags": TAGS,
        "joint": joint_name(result),
        "changes": compared_strategy(report) if result.best_single else "",
        "traced": sum(example.trace is not None for example in samples.examples) if samples else 0,
    }


def _telling(samples: ShownSamples) -> list[ShownExample]:
    """Return the most instructive examples: those with a trace first, then in the order of the tags."""
    order = {tag: place for place, tag in enumerate(TAGS)}

    def rank(example: ShownExample) -> tuple[bool, int]:
        return example.trace is None, min((order[tag] for tag in example.tags), default=len(order))

    room, telling = MOST_BYTES_WITHOUT_SCRIPT, []
    for example in sorted(samples.examples, key=rank)[:SHOWN_WITHOUT_SCRIPT]:
        weight = example.weight + (BYTES_OF_A_STEP * len(example.trace.steps) if example.trace else 0)
        # A long example is passed over, not the end: the others may be short.
        if weight <= room:
            telling.append(example)
            room -= weight
    return telling
