"""Runs of HELM: three files that belong together, letters in place of answers, and many statistics."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from advisor.logs.sources import LogOptions
from ensemble.errors import InputError
from tests.logs import REAL, needs_logs, read, recognise, scores

ADAPTER = {"method": "multiple_choice_joint", "instructions": "Choose.", "model": "org/small"}
SPEC = {
    "name": "exam:subject=law,method=multiple_choice_joint,model=org_small",
    "scenario_spec": {"class_name": "helm.Exam", "args": {}},
    "adapter_spec": ADAPTER,
}


def state(number: object = "id1", **changes: Any) -> dict[str, Any]:
    """A request to a model and its response."""
    references = [{"output": {"text": "yes"}, "tags": []}, {"output": {"text": "no"}, "tags": ["correct"]}]
    return {
        "instance": {
            "input": {"text": "Is it?"},
            "references": references,
            "split": "test",
            "id": number,
            "kind": "k1",
        },
        "train_trial_index": 0,
        "output_mapping": {"A": "no", "B": "yes"},
        "result": {"success": True, "completions": [{"text": " A", "tokens": [{"text": " A"}]}], "request_time": 0.5},
    } | changes


def stats(number: object = "id1", trial: int = 0, **values: object) -> dict[str, Any]:
    named = {"num_references": 2, **(values or {"exact_match": 1.0})}
    listed = [{"name": {"name": name, "split": "test"}, "count": 1, "mean": value} for name, value in named.items()]
    return {"instance_id": number, "train_trial_index": trial, "stats": listed}


def write(folder: Path, states: list[Any], values: list[Any] | None, spec: object = SPEC) -> Path:
    run = folder / "exam-subject=law,method=multiple_choice_joint,model=org_small"
    run.mkdir()
    files = {"scenario_state": {"adapter_spec": ADAPTER, "request_states": states}, "run_spec": spec}
    for name, value in {**files, "per_instance_stats": values}.items():
        if value is not None:
            (run / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return run


@needs_logs
@pytest.mark.parametrize(
    ("run", "model", "task", "questions", "right"),
    [
        ("mmlu-*", "openai/gpt2", "mmlu:method=multiple_choice_joint", 10, 1),
        ("common*", "eleutherai/pythia-1b-v0", "commonsense:dataset=hellaswag,method=multiple_choice_joint", 10, 3),
        ("narrative*", "openai/gpt2", "narrative_qa", 5, 0),
    ],
)
def test_real_runs_have_the_accuracies_of_helm(run: str, model: str, task: str, questions: int, right: int) -> None:
    (folder,) = (REAL / "helm").glob(run)
    records, _ = read("helm", folder)
    assert {(record.model, record.task) for record in records} == {(model, task)}
    assert (len(records), sum(record.score or 0 for record in records)) == (questions, right)
    states = json.loads((folder / "scenario_state.json").read_text(encoding="utf-8"))["request_states"]
    for mean in json.loads((folder / "stats.json").read_text(encoding="utf-8")):
        if mean["name"]["name"] == "exact_match" and "perturbation" not in mean["name"]:
            of_split = [state["instance"]["split"] == mean["name"]["split"] for state in states]
            known = [each.score or 0 for each, is_own in zip(records, of_split, strict=True) if is_own]
            assert sum(known) / len(known) == pytest.approx(mean["mean"])


@needs_logs
def test_the_score_of_real_choices_says_whether_the_extracted_option_is_the_reference() -> None:
    (folder,) = (REAL / "helm").glob("mmlu-*")
    for record in read("helm", folder)[0]:
        assert (record.extracted == record.reference) == (record.score == 1)
        assert record.extracted in record.choices


@needs_logs
def test_the_user_chooses_a_statistic() -> None:
    (folder,) = (REAL / "helm").glob("narrative*")
    records, notes = read("helm", folder, options=LogOptions(score="f1_score"))
    assert [round(record.score or 0, 3) for record in records] == [0.0, 0.333, 0.0, 0.0, 0.364]
    assert notes == []


def test_a_record_has_what_the_files_say(tmp_path: Path) -> None:
    run = write(tmp_path, [state()], [stats()])
    (record,), notes = read("helm", run, options=LogOptions(cluster="kind"))
    assert (record.model, record.task, record.group) == ("org/small", "exam:method=multiple_choice_joint", "law")
    assert (record.id, record.question, record.cluster, record.draw) == ("law/id1", "Is it?", "k1", 0)
    assert (record.response, record.extracted, record.reference) == (" A", "no", "no")
    assert (record.choices, record.score, record.metric) == (("yes", "no"), 1.0, "exact_match")
    assert (record.tokens, record.seconds, record.cut, notes) == (1, 0.5, False, [])


@pytest.mark.parametrize(
    ("result", "found"),
    [
        ({"success": True, "completions": [{"text": " E"}]}, (" E", None, None, False)),
        (
            {"success": False, "error": "Too many\nrequests", "completions": []},
            (None, None, "Too many requests", False),
        ),
        ({"completions": [{"text": "A", "finish_reason": {"reason": "length"}}]}, ("A", "no", None, True)),
    ],
)
def test_what_a_request_came_to(tmp_path: Path, result: dict[str, Any], found: tuple[object, ...]) -> None:
    (record,), _ = read("helm", write(tmp_path, [state(result=result)], [stats()]))
    assert (record.response, record.extracted, record.error, record.cut) == found


def test_by_default_exact_match_counts_and_a_note_names_the_others(tmp_path: Path) -> None:
    run = write(tmp_path, [state()], [stats(f1_score=0.5, exact_match=0.0)])
    (record,), notes = read("helm", run)
    assert (record.score, record.metric) == (0.0, "exact_match")
    assert notes == [
        f"{run}/per_instance_stats.json: the score is exact_match; the log also has f1_score "
        "(choose with --column score=NAME)"
    ]


def test_trials_are_draws(tmp_path: Path) -> None:
    states = [state(), state(train_trial_index=1)]
    records, _ = read("helm", write(tmp_path, states, [stats(), stats("id1", 1, exact_match=0.0)]))
    assert [(record.draw, record.score) for record in records] == [(0, 1.0), (1, 0.0)]


def test_changed_copies_of_instances_are_left_out(tmp_path: Path) -> None:
    changed = state()
    changed["instance"] |= {"perturbation": {"name": "typos"}}
    scored = stats(exact_match=0.0) | {"perturbation": {"name": "typos"}}
    records, notes = read("helm", write(tmp_path, [state(), changed], [stats(), scored]))
    assert scores(records) == {"law/id1": 1.0}
    assert "1 record is left out: it is a changed copy of another instance" in notes[0]


def test_requests_for_each_option_are_one_record_without_a_response(tmp_path: Path) -> None:
    states = [state(reference_index=n, request_mode="original") for n in (0, 1)]
    (record,), notes = read("helm", write(tmp_path, states, [stats()]))
    assert (record.response, record.extracted, record.score) == (None, None, 1.0)
    assert "it has a request for each option" in notes[0]


def test_files_are_told_apart_by_their_content(tmp_path: Path) -> None:
    run = write(tmp_path, [state()], [stats()])
    for number, path in enumerate(sorted(run.iterdir())):
        path.rename(run / f"{number}.txt")
    (record,), notes = read("helm", run)
    assert (record.model, record.group, record.score, notes) == ("org/small", "law", 1.0, [])


@pytest.mark.parametrize("name", ["scenario_state", "run_spec", "per_instance_stats"])
def test_one_file_of_a_run_finds_the_others(tmp_path: Path, name: str) -> None:
    run = write(tmp_path, [state()], [stats()])
    (record,), _ = read("helm", run / f"{name}.json")
    assert (record.group, record.score) == ("law", 1.0)


def test_without_a_spec_the_folders_name_has_the_task(tmp_path: Path) -> None:
    (record,), notes = read("helm", write(tmp_path, [state()], [stats()], spec=None))
    assert (record.model, record.group) == ("org/small", "law")
    assert (record.task, len(notes)) == ("exam:method=multiple_choice_joint", 1)


def test_without_statistics_responses_have_no_scores_and_a_note_says_so(tmp_path: Path) -> None:
    (record,), notes = read("helm", write(tmp_path, [state()], None))
    assert (record.score, record.response) == (None, " A")
    assert "no per_instance_stats.json beside it" in notes[0]


def test_a_run_without_responses_is_noted(tmp_path: Path) -> None:
    run = write(tmp_path, [state()], [stats()])
    (run / "scenario_state.json").unlink()
    sources, notes = recognise("helm", run)
    assert (sources, "a run without responses" in notes[0]) == ([], True)


def test_instances_and_statistics_of_another_form_are_counted(tmp_path: Path) -> None:
    states = [state(), state(None), 7, {}, state("id2"), state("id3", output_mapping=3, result=[])]
    values = [stats(), 7, {"stats": 3}, stats("id2", exact_match="high"), stats("id3", exact_match=float("nan"))]
    records, notes = read("helm", write(tmp_path, states, values))
    assert scores(records) == {"law/id1": 1.0, "law/id2": None, "law/id3": None}
    assert [note.partition(": ")[2].partition("; the first")[0] for note in notes] == [
        "3 records are left out: its instance has no id or no text",
    ]


def test_a_run_without_a_model_is_refused(tmp_path: Path) -> None:
    run = write(tmp_path, [state()], [stats()], spec={**SPEC, "adapter_spec": {}})
    with pytest.raises(InputError, match="names the model"):
        read("helm", run)


def test_runs_in_several_folders_are_several_sources(tmp_path: Path) -> None:
    run = write(tmp_path, [state()], [stats()])
    shutil.copytree(run, tmp_path / "other")
    assert len(recognise("helm", tmp_path)[0]) == 2
