"""Settings of the test run itself, and the rule that sends a test into the second lane."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

# A test process holds millions of objects of its libraries. To visit all of them for garbage as often as Python does by
# default takes a fifth of its time.
gc.set_threshold(50_000, 20, 50)

SECOND_LANE: dict[str, str] = {
    "test_cluster_ensemble.py": "starts a Ray cluster",
    "test_cluster_profiling.py": "starts a Ray cluster",
    "test_report_browser.py": "drives a browser",
    "test_report_decision_browser.py": "drives a browser",
    "test_tasks_vs_lmeval.py": "compares with lm-eval",
    "test_benchmarks.py": "runs benchmarks",
    "test_docs.py::test_examples_of_a_page_run": "runs the examples of a page",
    "test_docs.py::test_examples_of_the_quick_start_run": "runs the examples of a page",
    "test_docs.py::test_the_first_pages_have_the_gains_of_the_demo": "runs the demo",
    "test_docs.py::test_the_page_of_files_has_every_key_that_a_run_wrote": "runs the examples of a page",
    "test_group_cascade.py": "simulates many runs",
    "test_memory_estimate.py::test_the_estimate_is_within_a_factor_of_1_5_of_what_a_small_model_takes": "measures",
    "test_notebooks.py::test_a_notebook_runs_and_comes_to_what_it_shows": "runs a notebook",
    "test_pools.py::test_the_benchmark_measures_every_strategy": "runs a benchmark",
}
"""What `make test` leaves to `make test-slow`, with the reason: files, and functions in a file.

Tests with the markers `browser` and `slow` are in the second lane too, and parameters with the marker `second_lane`. A
test belongs there if it takes long, and the first lane finds nearly all that it finds: `python -m benchmarks.mutations`
measures it.
"""


def second_lane_reason(item: pytest.Item) -> str | None:
    """Why a test is in the second lane; None for the first."""
    file = Path(item.path).name
    function = f"{file}::{getattr(item, 'originalname', None) or item.name}"
    for marker, reason in (("browser", "drives a browser"), ("slow", "takes over ten seconds")):
        if item.get_closest_marker(marker) is not None:
            return reason
    return SECOND_LANE.get(file) or SECOND_LANE.get(function)


@pytest.hookimpl(tryfirst=True)  # before -m leaves tests out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the second lane."""
    for item in items:
        reason = second_lane_reason(item)
        if reason is not None:
            item.add_marker(pytest.mark.second_lane(reason=reason))
