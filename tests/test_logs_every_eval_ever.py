"""Instances in the schema of Every Eval Ever, with aggregates that say what the scores are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.logs.sources import LogOptions
from tests.logs import REAL, needs_logs, read, recognise, scores, write_lines

METRIC = {"metric_id": "acc", "metric_name": "accuracy", "lower_is_better": False, "min_score": 0.0, "max_score": 1.0}


def line(number: object = "q1", **changes: Any) -> dict[str, Any]:
    return {
        "schema_version": "0.3.0",
        "evaluation_id": "e",
        "model_id": "org/small",
        "evaluation_name": "sums",
        "evaluation_result_id": "sums.acc",
        "sample_id": number,
        "interaction_type": "single_turn",
        "input": {"raw": "1 + 1?", "reference": ["2", "two"], "choices": ["2", "3"]},
        "output": {"raw": ["It is 2."]},
        "answer_attribution": [{"extracted_value": "1", "is_terminal": False}, {"extracted_value": "2"}],
        "evaluation": {"score": 0.5, "is_correct": True},
        "token_usage": {"output_tokens": 5},
        "performance": {"latency_ms": 250},
        "metadata": {"subject": "arithmetic", "passage": "p1"},
    } | changes


def write(folder: Path, *lines: object, metric: object = METRIC) -> Path:
    """The instances, with their aggregate beside them."""
    path = write_lines(folder / "abc_samples.jsonl", lines)
    results = [{"evaluation_result_id": "sums.acc", "evaluation_name": "sums", "metric_config": metric}]
    aggregate = {"schema_version": "0.3.0", "evaluation_id": "e", "evaluation_results": results}
    (folder / "abc.json").write_text(json.dumps(aggregate), encoding="utf-8")
    return path


@needs_logs
def test_the_instance_of_the_real_collection() -> None:
    (record,), _ = read("every_eval_ever", REAL / "every-eval-ever" / "demo-org")
    assert (record.model, record.task, record.id) == ("demo-org/demo-model", "demo-source.demo_bench", "demo_0001")
    assert (record.extracted, record.reference, record.score, record.metric) == ("4", "4", 1.0, "accuracy")
    assert (record.group, record.tokens) == ("arithmetic", 5)


@needs_logs
def test_real_aggregates_without_instances_are_noted() -> None:
    sources, notes = recognise("every_eval_ever", *(REAL / "every-eval-ever").glob("*.json"))
    assert (sources, len(notes)) == ([], 2)
    assert all("a summary without responses" in note for note in notes)


def test_a_record_has_what_the_instance_says(tmp_path: Path) -> None:
    (record,), notes = read("every_eval_ever", write(tmp_path, line()), options=LogOptions(cluster="passage"))
    assert (record.model, record.task, record.id, record.group) == ("org/small", "sums", "q1", "arithmetic")
    assert (record.question, record.reference, record.choices) == ("1 + 1?", ("2", "two"), ("2", "3"))
    assert (record.response, record.extracted, record.score, record.metric) == ("It is 2.", "2", 0.5, "accuracy")
    assert (record.tokens, record.seconds, record.cluster, notes) == (5, 0.25, "p1", [])


@pytest.mark.parametrize(
    "metric", [{"max_score": 100}, {"max_score": 10.0}, {"min_score": -1}, {"lower_is_better": True}]
)
def test_a_score_of_another_scale_is_replaced_by_whether_it_is_correct(
    tmp_path: Path, metric: dict[str, object]
) -> None:
    (record,), _ = read("every_eval_ever", write(tmp_path, line(), metric={**METRIC, **metric}))
    assert record.score == 1.0


def test_an_instance_without_a_usable_score_has_none(tmp_path: Path) -> None:
    bad = [line(f"q{n}", evaluation={"score": value}) for n, value in enumerate([7, "high", None, float("nan")])]
    assert {record.score for record in read("every_eval_ever", write(tmp_path, *bad))[0]} == {None}


@pytest.mark.parametrize(
    ("score", "value"), [(None, 0.5), ("sums.f1", 0.1), ("accuracy", 0.5), ("acc", 0.5), ("sums.acc", 0.5)]
)
def test_the_first_score_counts_or_what_the_user_names(tmp_path: Path, score: str | None, value: float) -> None:
    path = write(tmp_path, line(), line(evaluation_result_id="sums.f1", evaluation={"score": 0.1}))
    records, notes = read("every_eval_ever", path, options=LogOptions(score=score))
    assert scores(records) == {"q1": value}
    assert any("the log also has sums.f1" in note for note in notes) is (score is None)


def test_several_models_and_evaluations_in_one_file_are_told_apart(tmp_path: Path) -> None:
    path = write(tmp_path, line(), line(model_id="org/large"), line(evaluation_name="products"))
    found = [(record.model, record.task) for record in read("every_eval_ever", path)[0]]
    assert found == [("org/small", "sums"), ("org/large", "sums"), ("org/small", "products")]


def test_the_response_in_a_conversation_is_the_last_message_of_the_model(tmp_path: Path) -> None:
    roles = ("user", "assistant", "user", "assistant", "tool")
    messages = [{"role": role, "content": f"text {n}"} for n, role in enumerate(roles)]
    (record,), _ = read("every_eval_ever", write(tmp_path, line(output=None, messages=messages)))
    assert record.response == "text 3"


def test_several_responses_are_noted_and_an_error_without_a_score_is_the_records_error(tmp_path: Path) -> None:
    failed = line("q2", error="time\nout", evaluation={"score": None})
    (record, other), notes = read("every_eval_ever", write(tmp_path, line(output={"raw": ["a", "b"]}), failed))
    assert (record.response, other.error) == ("a", "time out")
    assert notes[0].endswith("one score for several responses counts for the first of them; instances: 1")


def test_without_an_aggregate_scores_count_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path, line())
    (tmp_path / "abc.json").unlink()
    (record,), _ = read("every_eval_ever", path)
    assert (record.score, record.metric) == (0.5, "sums.acc")


def test_lines_that_lack_what_is_needed_are_counted(tmp_path: Path) -> None:
    bad = [line(None), line(model_id=7.5, evaluation=None), line(evaluation_name=""), line(evaluation=[])]
    records, notes = read("every_eval_ever", write(tmp_path, line(), *bad))
    assert len(records) == 1
    assert "4 records are left out: it has no model_id, no evaluation_name, no sample_id or no evaluation" in notes[-1]


@pytest.mark.parametrize(("shown", "tokens", "thought"), [("hm", 0, True), ("\n\n", 1, False), (None, 500, True)])
def test_a_trace_of_white_space_is_no_thinking(tmp_path: Path, shown: str | None, tokens: int, thought: bool) -> None:
    output = {"raw": ["It is 2."], "reasoning_trace": shown}
    path = write(tmp_path, line(output=output, token_usage={"output_tokens": 510, "reasoning_tokens": tokens}))
    (record,), _ = read("every_eval_ever", path)
    assert record.thought == thought
