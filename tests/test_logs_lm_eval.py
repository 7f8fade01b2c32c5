"""Logs of lm-eval: filters, groups, log-likelihoods, and results that name the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.logs.sources import LogOptions
from ensemble.errors import InputError
from tests.logs import REAL, needs_logs, read, recognise, scores

TIME = "2025-01-02T03-04-05.678"
RESULTS = {
    "results": {"sums": {"exact_match,strict": 0.5}},
    "groups": {},
    "group_subtasks": {"sums": []},
    "configs": {"sums": {}},
    "versions": {"sums": 1},
    "higher_is_better": {"sums": {"exact_match": True, "loss": False}},
    "n-samples": {"sums": {"original": 9, "effective": 2}},
    "config": {"model": "hf", "model_args": "pretrained=org/small,dtype=auto"},
    "model_name": "org/small",
}


def line(number: object = 0, **changes: Any) -> dict[str, Any]:
    """A line of a task that generates text."""
    return {
        "doc_id": number,
        "doc": {"question": f"{number} + 1?", "answer": "2", "passage": "p1"},
        "target": "2",
        "arguments": {"gen_args_0": {"arg_0": "prompt", "arg_1": {"until": []}}},
        "resps": [["It is 2."]],
        "filtered_resps": ["2"],
        "filter": "strict",
        "metrics": ["exact_match"],
        "exact_match": 1.0,
    } | changes


def choice(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A line of a multiple-choice task: the long option is the likeliest per character only."""
    lengths = {"no": "-2.0", "certainly": "-3.0", "maybe": "-9.0"}
    requests = enumerate(lengths)
    return {
        "doc_id": number,
        "doc": {"query": "Is it?", "choices": list(lengths)},
        "target": "1",
        "arguments": {f"gen_args_{n}": {"arg_0": "Is it?", "arg_1": f" {text}"} for n, text in requests},
        "resps": [[[value, "False"]] for value in lengths.values()],
        "filtered_resps": [[value, "False"] for value in lengths.values()],
        "filter": "none",
        "metrics": ["acc", "acc_norm"],
        "acc": 0.0,
        "acc_norm": 1.0,
    } | changes


def write(folder: Path, *lines: object, results: object = RESULTS, task: str = "sums") -> Path:
    """The folder that lm-eval makes for a model."""
    model = folder / "org__small"
    model.mkdir(exist_ok=True)
    texts = (each if isinstance(each, str) else json.dumps(each) for each in lines)
    (model / f"samples_{task}_{TIME}.jsonl").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    if results is not None:
        (model / f"results_{TIME}.json").write_text(json.dumps(results), encoding="utf-8")
    return model


@needs_logs
def test_two_models_of_one_task_are_told_apart_by_the_time_in_the_names() -> None:
    records, notes = read("lm_eval", REAL / "lm-eval" / "pyfade-gsm8k")
    assert {model: scores([r for r in records if r.model == model]) for model in _models(records)} == {
        "gemma3:12b-u1": {"16": 1.0, "17": 0.0, "18": 0.0},
        "gemma3:12b-it-q4_K_M": {"16": 1.0, "17": 0.0, "18": 1.0},
    }
    assert sum("3 of the 100 questions" in note for note in notes) == 2


@needs_logs
def test_questions_of_two_models_are_the_same_though_prompts_differ() -> None:
    records, _ = read("lm_eval", REAL / "lm-eval" / "pyfade-gsm8k")
    first, second = ({r.id: (r.question, r.reference) for r in records if r.model == m} for m in _models(records))
    assert first == second


@needs_logs
def test_a_task_of_a_group_is_the_group() -> None:
    records, _ = read("lm_eval", REAL / "lm-eval" / "pyfade-mmlu_pro_plus")
    assert {record.task for record in records} == {"mmlu_pro_plus"}
    assert {record.group for record in records} == {f"mmlu_pro_plus_{n}" for n in ("chemistry", "health", "psychology")}
    assert len(records) == 18
    assert len({(record.model, record.id) for record in records}) == 18


@needs_logs
def test_extracted_letters_and_scores_of_a_real_log() -> None:
    records, _ = read("lm_eval", REAL / "lm-eval" / "pyfade-mmlu_pro_plus")
    found = [(r.extracted, r.reference, r.score) for r in records if "health" in r.id and r.model.endswith("u2")]
    assert found == [("B", "G", 0.0), (None, "K", 0.0), ("D", "D", 1.0)]


def test_a_record_has_what_the_line_says(tmp_path: Path) -> None:
    (record,), notes = read("lm_eval", write(tmp_path, line()), options=LogOptions(cluster="passage"))
    assert (record.model, record.task, record.id, record.group, record.draw) == ("org/small", "sums", "0", None, 0)
    assert (record.question, record.reference, record.cluster) == ("0 + 1?", "2", "p1")
    assert (record.response, record.extracted) == ("It is 2.", "2")
    assert (record.score, record.metric) == (1.0, "exact_match,strict")
    assert [note.partition(": ")[2] for note in notes] == ["it has 1 of the 2 questions that the results count"]


def test_of_several_filters_the_first_counts_and_a_note_names_the_others(tmp_path: Path) -> None:
    flexible = [line(n, filter="flexible", exact_match=0.0) for n in (0, 1)]
    records, notes = read("lm_eval", write(tmp_path, line(0), line(1), *flexible))
    assert scores(records) == {"0": 1.0, "1": 1.0}
    assert len(records) == 2
    assert any("the log also has exact_match,flexible" in note for note in notes)


@pytest.mark.parametrize("score", ["exact_match,flexible", "f1"])
def test_the_user_chooses_a_metric_and_a_filter(tmp_path: Path, score: str) -> None:
    flexible = [line(n, filter="flexible", metrics=["f1", "exact_match"], f1=0.25, exact_match=0.25) for n in (0, 1)]
    records, _ = read("lm_eval", write(tmp_path, line(0), line(1), *flexible), options=LogOptions(score=score))
    assert scores(records) == {"0": 0.25, "1": 0.25}


def test_a_score_that_the_log_lacks_is_refused_with_the_names_that_it_has(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--column score=bleu: .* has no such score; it has exact_match,strict"):
        read("lm_eval", write(tmp_path, line()), options=LogOptions(score="bleu"))


def test_a_metric_of_which_less_is_better_is_no_score(tmp_path: Path) -> None:
    folder = write(tmp_path, line(metrics=["loss", "exact_match"], loss=0.3))
    assert read("lm_eval", folder)[0][0].metric == "exact_match,strict"
    with pytest.raises(InputError, match="--column score=loss: less is better"):
        read("lm_eval", folder, options=LogOptions(score="loss"))
    assert read("lm_eval", write(tmp_path, line(metrics=["loss"], loss=0.3)))[0][0].score is None


def test_the_likeliest_option_is_extracted(tmp_path: Path) -> None:
    (record,), _ = read("lm_eval", write(tmp_path, choice()))
    assert (record.extracted, record.score, record.metric) == ("no", 0.0, "acc,none")
    assert (record.reference, record.choices) == ("certainly", ("no", "certainly", "maybe"))
    assert record.response is None
    (record,), _ = read("lm_eval", write(tmp_path, choice()), options=LogOptions(score="acc_norm"))
    assert (record.extracted, record.score) == ("certainly", 1.0)


def test_the_option_that_is_likeliest_per_byte_is_extracted_for_acc_bytes(tmp_path: Path) -> None:
    requests = {f"gen_args_{n}": {"arg_0": "?", "arg_1": f" {text}"} for n, text in enumerate(("ééé", "abcd"))}
    bytewise = choice(arguments=requests, resps=[[["-3.0", "False"]], [["-3.0", "False"]]], acc_bytes=1.0)
    bytewise["metrics"] = ["acc_norm", "acc_bytes"]
    folder = write(tmp_path, bytewise)
    found = [
        read("lm_eval", folder, options=LogOptions(score=name))[0][0].extracted for name in ("acc_norm", "acc_bytes")
    ]
    assert found == ["abcd", "ééé"]


def test_a_target_of_digits_is_the_number_of_an_option_though_options_are_digits(tmp_path: Path) -> None:
    requests = {f"gen_args_{n}": {"arg_0": "?", "arg_1": f" {text}"} for n, text in enumerate("210")}
    (record,), _ = read("lm_eval", write(tmp_path, choice(arguments=requests, target="2")))
    assert record.reference == "0"


def test_options_that_differ_before_the_gap_are_the_contexts(tmp_path: Path) -> None:
    requests = {f"gen_args_{n}": {"arg_0": f"The {text}", "arg_1": " is big."} for n, text in enumerate("ABC")}
    (record,), _ = read("lm_eval", write(tmp_path, choice(arguments=requests)))
    assert (record.extracted, record.reference) == ("The A", "The B")


def test_lines_of_older_versions_without_filters_and_lists_of_metrics_are_read(tmp_path: Path) -> None:
    old = choice(arguments=[["Is it?", " no"], ["Is it?", " yes"], ["Is it?", " maybe"]])
    old |= {"resps": [[[-2.0, False]], [[-1.0, True]], [[-9.0, False]]]}
    old = {key: value for key, value in old.items() if key not in ("filter", "metrics")}
    (record,), _ = read("lm_eval", write(tmp_path, old))
    assert (record.extracted, record.reference, record.metric) == ("yes", "yes", "acc,none")


def test_ids_of_sub_tasks_differ_though_each_counts_from_0(tmp_path: Path) -> None:
    results = RESULTS | {
        "groups": {"sums": {"exact_match,strict": 0.5}},
        "group_subtasks": {"sums": ["sums_middle"], "sums_middle": ["sums_a", "sums_b"], "all": ["sums"]},
        "configs": {"sums_a": {}, "sums_b": {}},
    }
    results["groups"]["sums_middle"] = {}
    write(tmp_path, line(), results=results, task="sums_a")
    records, _ = read("lm_eval", write(tmp_path, line(), results=results, task="sums_b"))
    # The group "all" has no score: it only lists tasks.
    assert [(r.task, r.group, r.id) for r in records] == [
        ("sums", "sums_a", "sums_a/0"),
        ("sums", "sums_b", "sums_b/0"),
    ]


def test_groups_in_a_circle_end(tmp_path: Path) -> None:
    circle = {"groups": {"a": {}, "sums": {}}, "group_subtasks": {"a": ["sums"], "sums": ["a"]}}
    (record,), _ = read("lm_eval", write(tmp_path, line(), results=RESULTS | circle))
    assert record.task == "a"


def test_several_responses_with_a_score_each_are_draws(tmp_path: Path) -> None:
    drawn = line(resps=[["It is 2.", "It is 3."]], filtered_resps=[["2", "3"]], exact_match=[1.0, 0.0])
    records, _ = read("lm_eval", write(tmp_path, drawn))
    assert [(r.draw, r.response, r.extracted, r.score) for r in records] == [
        (0, "It is 2.", "2", 1.0),
        (1, "It is 3.", "3", 0.0),
    ]


def test_several_responses_with_one_score_count_once_and_are_noted(tmp_path: Path) -> None:
    (record,), notes = read("lm_eval", write(tmp_path, line(resps=[["It is 2.", "It is 3."]])))
    assert (record.response, record.score) == ("It is 2.", 1.0)
    assert any(
        note.endswith("one score for several responses counts for the first of them; questions: 1") for note in notes
    )


def test_without_results_the_model_has_the_folders_name_and_a_note_says_so(tmp_path: Path) -> None:
    (record,), notes = read("lm_eval", write(tmp_path, line(), results=None))
    assert record.model == "org__small"
    assert "it has the folder's name, org__small" in notes[0]


@pytest.mark.parametrize("given", ["pretrained=org/small,dtype=auto", {"pretrained": "org/small"}, "model=org/small"])
def test_results_without_a_models_name_have_it_in_the_arguments(tmp_path: Path, given: object) -> None:
    results = {**RESULTS, "model_name": None, "config": {"model": "hf", "model_args": given}}
    (record,), _ = read("lm_eval", write(tmp_path, line(), results=results))
    assert record.model == "org/small"


def test_damaged_results_are_noted_and_not_used(tmp_path: Path) -> None:
    folder = write(tmp_path, line())
    (folder / f"results_{TIME}.json").write_text("{", encoding="utf-8")
    (record,), notes = read("lm_eval", folder)
    assert record.model == "org__small"
    assert any("not JSON" in note and note.endswith("it was not used") for note in notes)


def test_results_without_samples_are_noted(tmp_path: Path) -> None:
    (tmp_path / f"results_{TIME}.json").write_text(json.dumps(RESULTS), encoding="utf-8")
    found, notes = recognise("lm_eval", tmp_path)
    assert found == []
    assert notes == [f"{tmp_path}/results_{TIME}.json: a summary without responses; run lm-eval with --log_samples"]


def test_a_renamed_file_is_recognised_and_its_task_is_its_name(tmp_path: Path) -> None:
    path = write(tmp_path, line()).joinpath(f"samples_sums_{TIME}.jsonl").rename(tmp_path / "mine.txt")
    (record,), _ = read("lm_eval", path)
    assert (record.task, record.model) == ("mine.txt", tmp_path.name)


def test_a_doc_without_a_question_is_the_question_and_a_list_of_answers_accepts_all(tmp_path: Path) -> None:
    odd = line(doc={"b": 1, "a": "x"}, target="['two', '2\\d']")
    (record,), _ = read("lm_eval", write(tmp_path, odd))
    assert (record.question, record.reference) == ('{"a": "x", "b": 1}', ("two", "2\\d"))


def test_lines_that_lack_what_is_needed_are_counted(tmp_path: Path) -> None:
    records, notes = read("lm_eval", write(tmp_path, line(), line(None), line(1, metrics=[]), line(0), '{"doc_id'))
    assert [record.id for record in records] == ["0"]
    assert [note.partition(": ")[2].partition("; the first")[0] for note in notes] == [
        "1 line is left out, because it is not a JSON object",
        "it has 1 of the 2 questions that the results count",
        "2 records are left out: it has no doc_id, no doc or no metric",
        "1 record is left out: its question has a line with the same filter before it",
    ]


def test_a_file_without_usable_lines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no record of this log can be used: it has no doc_id"):
        read("lm_eval", write(tmp_path, line(None)))


def _models(records: list[Any]) -> list[str]:
    return list(dict.fromkeys(record.model for record in records))
