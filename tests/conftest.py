"""Settings of the test run itself, and the rule that sends a test into the second lane."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from servers import Raw

    from ensemble import Ensemble

# Some tests import it before it is a plug-in of theirs.
pytest.register_assert_rewrite("pools")
# A test process holds millions of objects of its libraries. To visit all of them for garbage as often as Python does by
# default takes a fifth of its time.
gc.set_threshold(50_000, 20, 50)
# A third of the examples that hypothesis draws by default; make fuzz draws many more.
settings.register_profile("ci", settings.get_profile("ci"), max_examples=33)


@pytest.fixture(autouse=True)
def own_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that run in this process leave it as it is set above, and freeze nothing."""
    nothing = SimpleNamespace(freeze=lambda: None, get_threshold=gc.get_threshold, set_threshold=lambda *_: None)
    monkeypatch.setattr("ensemble.common.garbage.gc", nothing)


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for joint vocabularies, so that each is built once."""
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="session")
def sure(tables: Path) -> Ensemble:
    """It writes `test_ensemble_api.SCRIPT` round and round, without an end."""
    from test_ensemble_api import member, writer

    from ensemble import Ensemble

    return Ensemble([writer(), member("unigram with bytes", 1)], weights=[9, 1], cache_dir=tables)


@pytest.fixture(scope="session")
def pair(tables: Path) -> Ensemble:
    """Two random models, whose texts end sooner or later."""
    from test_ensemble_api import member

    from ensemble import Ensemble

    return Ensemble([member("bytes"), member("unigram with bytes", 1)], cache_dir=tables)


@pytest.fixture(scope="session")
def alone(tables: Path) -> dict[str, Ensemble]:
    """Three models, each alone, by name."""
    from test_ensemble_api import member, writer

    from ensemble import Ensemble

    members = {"sure": writer(), "bytes": member("bytes", 1), "unigram": member("unigram with bytes", 2)}
    return {name: Ensemble([each], method="average", cache_dir=tables) for name, each in members.items()}


@pytest.fixture
def raw() -> Iterator[Raw]:
    """A server that gives the answers a test sets."""
    from servers import raw_server

    with raw_server() as server:
        yield server


@pytest.fixture
def drawings() -> None:
    """For a test that looks at drawings where others have none."""


def leave_drawings_empty(patch: pytest.MonkeyPatch) -> None:
    """Leave the drawings of reports empty: they take nine tenths of a report's time."""
    from reports import page
    from reports.sections import ensemble, judge, models, strategies

    for module in (page, ensemble, judge, models, strategies):
        patch.setattr(module, "both_widths", lambda _: dict.fromkeys(("wide", "narrow"), "<svg></svg>"))


@pytest.fixture
def no_drawings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the drawings of reports empty, unless the test looks at them."""
    if "drawings" not in request.fixturenames:
        leave_drawings_empty(monkeypatch)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's pauses between tries are its own; only what a server asks for is waited for."""
    monkeypatch.setattr("ensemble.servers.client.FIRST_PAUSE_S", 0.01)


@pytest.fixture(scope="session")
def driver() -> Iterator[Any]:
    """A browser, for one test after the other."""
    from report_browser import browser

    with browser() as window:
        yield window


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report that no test changes."""
    from report_fixture import write_run

    from reports import write_report

    return write_report(write_run(tmp_path_factory.mktemp("runs") / "demo"))


@pytest.fixture
def window(driver: Any, report: Path) -> Any:
    """The report, as someone sees it who opens it for the first time."""
    from report_browser import open_report, prefer, resize

    resize(driver, 1440)
    prefer(driver, "light")
    driver.get_log("browser")  # reading empties it of what tests before have left
    open_report(driver, report)
    driver.execute_script("localStorage.clear()")
    open_report(driver, report)
    return driver


SECOND_LANE: dict[str, str] = {
    "test_base.py": "runs all commands in a process",
    "test_benchmarks.py": "runs benchmarks",
    "test_child_processes.py::test_a_command_in_a_downloaded_folder_runs_no_code_of_it": "starts a command",
    "test_cli.py::test_a_command_on_a_terminal_shows_that_it_starts_before_anything_else": "starts a command",
    "test_cli.py::test_a_run_that_is_killed_again_and_again_goes_on_to_the_undisturbed_result": "runs whole runs",
    "test_cli.py::test_a_run_that_is_stopped_says_that_the_same_command_goes_on": "starts a command",
    "test_cluster_profiling.py": "starts a Ray cluster",
    "test_compare.py::test_the_page_has_the_rates_of_the_gate_that_a_simulation_gives": "simulates",
    "test_docs.py::test_examples_of_a_page_run": "runs the examples of a page",
    "test_docs.py::test_examples_of_the_quick_start_run_and_the_readme_has_their_gains": "runs the examples of a page",
    "test_docs.py::test_site_is_built_without_a_warning": "builds the site",
    "test_docs.py::test_site_loads_nothing_from_elsewhere": "builds the site",
    "test_docs.py::test_site_with_links_that_lead_nowhere_is_not_built": "builds the site",
    "test_docs.py::test_the_commands_name_tasks_methods_settings_and_models_that_exist": "reads fifty commands",
    "test_docs.py::test_the_real_example_says_what_the_command_recommends": "runs the job on logs of real models",
    "test_docs.py::test_the_page_of_files_has_every_key_that_a_run_wrote": "runs the examples of a page",
    "test_docs.py::test_the_page_of_commands_has_every_option": "builds the site",
    "test_evaluate.py::test_deepen_adapt_is_given_the_accuracies_that_the_run_found": "evaluates a whole run",
    "test_evaluate.py::test_the_report_has_the_scores_of_the_corpus": "evaluates a whole run",
    "test_fusing.py::test_it_is_checked_and_exported": "fuses a whole run",
    "test_fusing.py::test_rounds_drafts_and_a_prompt_are_asked_as_the_options_say": "fuses a whole run",
    "test_fusion.py::test_fusion_stands_beside_other_methods_in_an_evaluation": "evaluates a whole run",
    "test_golden.py": "runs fourteen runs as they were recorded",
    "test_harness.py::test_the_command_line_runs_tasks_and_a_second_run_asks_no_model": "starts commands",
    "test_init.py::test_the_benchmarks_are_read_as_the_field_reads_them": "reads whole benchmarks",
    "test_judge.py::test_after_a_judges_failure_the_same_command_asks_only_what_is_missing": "judges a whole run",
    "test_judge.py::test_evaluate_judges_the_answers_of_methods_and_no_text_that_is_only_read": "judges a whole run",
    "test_learned_vote.py::test_where_the_plain_vote_is_the_best_learning_costs_at_most_two_points": "simulates",
    "test_memory_estimate.py::test_the_estimate_is_within_a_factor_of_1_5_of_what_a_small_model_takes": "measures",
    "test_notebooks.py::test_a_notebook_runs_and_comes_to_what_it_shows": "runs a notebook",
    "test_pass_at_1.py::test_mbpps_own_solutions_pass_and_those_of_other_tasks_do_not": "runs hundreds of programs",
    "test_pools.py::test_vote_of_the_three_most_accurate_save_15_percent_of_the_calls": "runs a benchmark",
    "test_remote.py": "starts another project's server",
    "test_report.py::test_no_library_that_runs_models_is_loaded": "starts a process",
    "test_report_browser.py": "drives a browser",
    "test_report_hostile.py::test_a_thousand_strategies_with_a_thousand_members_each_make_a_small_page": "is large",
    "test_report_hostile.py::test_no_payload_changes_the_markup": "writes many reports",
    "test_reward_models.py::test_pairrm_cuts_the_question_and_the_responses_apart": "reads long texts",
    "test_sandbox.py::test_a_daemon_does_not_outlive_its_program": "waits",
    "test_serving.py::test_memory_that_is_free_goes_back_to_the_system": "measures",
    "test_serving_crowds.py::test_a_second_signal_ends_it_at_once": "starts a server",
    "test_serving_crowds.py::test_the_command_serves_until_a_signal_and_ends_well": "starts a server",
    "test_serving_grammars.py::test_the_memory_of_grammars_is_bounded": "measures",
    "test_serving_hostile.py::test_a_text_that_takes_longer_than_a_body_may_is_not_ended": "waits",
    "test_tasks_builtin.py::test_splits_share_nothing_and_accepted_texts_score_one": "reads whole benchmarks",
    "test_tasks_builtin.py::test_gsm8k_dev_is_300_of_train_and_held_out_is_all_of_test": "reads all of gsm8k",
    "test_tasks_builtin.py::test_mmlu_has_57_subjects_whose_lines_are_whole": "reads all of mmlu",
    "test_tasks_lmeval.py::test_an_unknown_name_gets_near_ones_and_a_group_gets_its_tasks": "reads all of lm-eval",
    "test_learned_vote.py::test_the_flow_and_the_shortcut_of_a_vote_agree_on_ten_thousand_ballots": "is long",
    "test_warnings.py::test_doubts_are_in_the_files_of_a_run_as_codes_figures_and_sentences": "runs on eight models",
    "test_tasks_vs_lmeval.py": "compares with lm-eval",
}
"""What `make test` leaves to `make test-slow`, with the reason: files, and functions in a file.

Tests with the markers `browser` and `slow` are in the second lane too, and parameters with the marker `second_lane`. A
test belongs there if it takes long, and the first lane finds nearly all that it finds: `python -m benchmarks.mutations`
measures it.
"""


CASES: dict[str, int] = {
    "test_corrected_judge.py::test_intervals_contain_the_truth_as_often_as_they_say": 2,
    "test_gain.py::test_a_correction_lowers_no_p_value": 3,
    "test_decoder.py::test_ids_text_and_end_are_those_of_the_reference": 8,
    "test_decoder_joining.py::test_a_text_is_what_it_is_alone_whoever_joins_and_leaves": 2,
    "test_decoder_models.py::test_a_member_without_a_cache_goes_together_with_one_that_has": 2,
    "test_deterministic.py::test_in_half_precision_texts_are_those_of_single_prompts": 5,
    "test_drafting.py::test_draws_are_those_without_drafts": 5,
    "test_drafting.py::test_texts_are_those_without_drafts": 4,
    "test_ensemble_api.py::test_a_stop_string_ends_the_text_before_it_wherever_tokens_end": 3,
    "test_grammar.py::test_texts_are_those_of_the_reference": 5,
    "test_kinds_of_text.py::test_every_way_to_decode_writes_what_the_reference_writes": 3,
    "test_label.py::test_the_labels_of_the_table_give_the_comparison_of_all_labels_to_the_last_digit": 4,
    "test_report_hostile.py::test_no_list_is_shown_at_any_length": 2,
    "test_report_hostile.py::test_what_is_known_to_be_nasty_does_not_change_the_markup": 7,
    "test_retokenization.py::test_a_growing_text_of_any_kind_has_the_ids_of_the_whole": 6,
    "test_retokenization.py::test_the_work_for_a_token_does_not_grow_with_the_text": 5,
    "test_seq2seq.py::test_beside_others_it_writes_what_the_judge_does": 2,
    "test_seq2seq.py::test_neither_drafts_nor_batches_change_what_is_written": 2,
    "test_server_members.py::test_members_that_think_apart_write_what_they_write_in_one_process": 8,
    "test_server_members.py::test_methods_that_need_the_top_candidates_write_what_they_write_in_one_process": 3,
    "test_server_members.py::test_texts_are_those_of_one_process": 4,
    "test_server_members.py::test_texts_under_a_grammar_are_those_of_one_process": 8,
    "test_serving_crowds.py::test_the_command_serves_until_a_signal_and_ends_well": 2,
    "test_sweetspan.py::test_the_text_is_that_of_the_slow_implementation": 4,
    "test_tasks_end_to_end.py::test_a_built_in_task_runs_from_its_files_to_the_advice": 5,
    "test_think_apart.py::test_a_budget_shorter_than_the_opening_tag_leaves_the_tag_whole": 2,
    "test_think_apart.py::test_a_budget_that_ends_within_the_end_marker_writes_only_the_rest": 2,
    "test_think_apart.py::test_all_ways_to_decode_write_the_same_texts": 2,
    "test_think_apart.py::test_each_method_writes_what_it_writes_behind_the_thinking": 4,
    "test_think_marks.py::test_a_budget_that_ends_within_the_end_writes_only_the_rest": 3,
    "test_think_marks.py::test_a_budget_writes_the_end_in_special_tokens": 2,
    "test_think_marks.py::test_a_member_behind_a_server_thinks_with_its_special_tokens": 2,
    "test_think_marks.py::test_alone_a_model_writes_its_marks_as_the_page_does": 2,
    "test_think_marks.py::test_apart_the_texts_are_those_behind_the_thinking": 5,
    "test_vocabulary.py::test_tables_of_real_tokenizers_are_those_of_the_page": 2,
}
"""Functions with many cases that take long: every n-th case is in the first lane, from the first on.

The others have further vocabularies, sizes or settings; the code is the same. `make test-further` runs them.
"""


LONGEST = (
    *("test_golden.py", "test_docs.py", "test_notebooks.py", "test_cluster_profiling.py", "test_report_browser.py"),
    *("test_benchmarks.py", "test_tasks_vs_lmeval.py", "test_plugins.py", "test_pools.py", "test_fusing.py"),
    *("test_strategies.py", "test_server_members.py", "test_decoder.py", "test_cli.py", "test_serving_crowds.py"),
    *("test_vocabulary.py", "test_retokenization.py", "test_think_marks.py", "test_think_apart.py", "test_rows.py"),
    *("test_think_apart_runs.py", "test_tasks_format.py", "test_serving_runs.py", "test_loaded_models.py"),
    *("test_judge.py", "test_report_hostile.py", "test_production.py", "test_evaluate.py", "test_drafting.py"),
)
"""Files that take long, of both lanes: they are begun first, so that no process waits for one that was begun last."""


def second_lane_reason(item: pytest.Item) -> str | None:
    """Why a test is in the second lane; None for the first."""
    place = _place(item)
    for marker, reason in (("browser", "drives a browser"), ("slow", "takes over ten seconds")):
        if item.get_closest_marker(marker) is not None:
            return reason
    return SECOND_LANE.get(place.partition("::")[0]) or SECOND_LANE.get(place)


def _place(item: pytest.Item) -> str:
    """The file and the function of a test."""
    return f"{Path(item.path).name}::{getattr(item, 'originalname', None) or item.name}"


@pytest.hookimpl(tryfirst=True)  # before -m leaves tests out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the second lane, and put the longest files first."""
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(Path(item.path).name, len(order)))
    cases: Counter[str] = Counter()
    for item in items:
        reason = second_lane_reason(item)
        if (place := _place(item)) in CASES:
            if cases[place] % CASES[place]:
                item.add_marker(pytest.mark.further)
                reason = reason or f"one case in {CASES[place]} is in the first lane"
            cases[place] += 1
        if reason is not None:
            item.add_marker(pytest.mark.second_lane(reason=reason))
