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
    "test_decoder.py::test_ids_text_and_end_are_those_of_the_reference[qwen2* llama-3-batched]": "large vocabularies",
    "test_decoder.py::test_ids_text_and_end_are_those_of_the_reference[qwen2* llama-3-one by one]": "large vocabularies",
    "test_decoder.py::test_ids_text_and_end_are_those_of_the_reference[llama-3 qwen2 gpt-2-batched]": "the same",
    "test_decoder.py::test_ids_text_and_end_are_those_of_the_reference[llama-3 qwen2 gpt-2-one by one]": "the same",
    "test_docs.py::test_examples_of_a_page_run": "runs the examples of a page",
    "test_docs.py::test_examples_of_the_quick_start_run": "runs the examples of a page",
    "test_docs.py::test_the_first_pages_have_the_gains_of_the_demo": "runs the demo",
    "test_docs.py::test_the_page_of_files_has_every_key_that_a_run_wrote": "runs the examples of a page",
    "test_group_cascade.py": "simulates many runs",
    "test_label.py::test_the_labels_of_the_table_give_the_comparison_of_all_labels_to_the_last_digit[mmlu-pro]": "large",
    "test_memory_estimate.py::test_the_estimate_is_within_a_factor_of_1_5_of_what_a_small_model_takes": "measures",
    "test_notebooks.py::test_a_notebook_runs_and_comes_to_what_it_shows": "runs a notebook",
    "test_mt_bench.py::test_a_run_with_a_local_judge[mt_bench]": "the first lane judges pairs",
    "test_pools.py::test_the_benchmark_measures_every_strategy": "runs a benchmark",
    "test_pools.py::test_votes_on_real_answers_are_those_of_a_plain_count[mmlu-pro]": "the first lane has smaller pools",
    "test_report_hostile.py::test_no_single_number_is_more_than_the_sections_can_show": "many reports",
    "test_tasks_end_to_end.py::test_a_built_in_task_runs_from_its_files_to_the_advice[vicuna_bench]": "as mt_bench",
}
"""What `make test` leaves to `make test-slow`, with the reason: files, functions in a file, and their parameters.

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
    return SECOND_LANE.get(file) or SECOND_LANE.get(function) or SECOND_LANE.get(f"{file}::{item.name}")


@pytest.hookimpl(tryfirst=True)  # before -m leaves tests out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the second lane."""
    for item in items:
        reason = second_lane_reason(item)
        if reason is not None:
            item.add_marker(pytest.mark.second_lane(reason=reason))
