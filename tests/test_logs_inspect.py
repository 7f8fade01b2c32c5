"""Logs of Inspect, written by inspect_ai itself, and files that it would not write."""

from __future__ import annotations

import json
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest

from advisor.logs import inspect as reader
from advisor.logs.sources import LogOptions
from advisor.tasks.tables import streams
from ensemble.errors import InputError
from tests.logs import REAL, needs_logs, read, recognise, scores

EVAL = {"task": "sums", "model": "org/small", "task_id": "t", "created": "2025-01-02T03:04:05+00:00"}
HEADER = {"version": 2, "status": "success", "eval": {**EVAL, "dataset": {}, "config": {}}}


def sample(number: object = 1, **changes: Any) -> dict[str, Any]:
    """A sample as the files have it."""
    return {
        "id": number,
        "epoch": 1,
        "input": f"{number} + 1?",
        "target": "2",
        "output": {"model": "m", "choices": [_said("It is 2.")], "usage": {"output_tokens": 4}},
        "scores": {"match": {"value": "C", "answer": "2"}},
        "model_usage": {"org/small": {"output_tokens": 5}, "judge": {"output_tokens": 99}},
        "total_time": 1.5,
        "metadata": {"passage": "p1"},
    } | changes


def _said(text: str, stop: str = "stop") -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text}, "stop_reason": stop}


def write(folder: Path, *samples: object, header: object = HEADER) -> Path:
    path = folder / "log.json"
    content = {**header, "samples": list(samples)} if isinstance(header, dict) else header
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def zipped(folder: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    """A .eval log."""
    path = folder / "log.eval"
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in {"header.json": json.dumps(HEADER).encode(), **members}.items():
            archive.writestr(name, data)
    return path


def written(folder: Path, kind: str, *samples: dict[str, Any], status: str = "success") -> Path:
    """A log that inspect_ai writes; .eval is compressed with zstd."""
    from inspect_ai.log import EvalLog, write_eval_log

    log = EvalLog.model_validate({**HEADER, "status": status, "samples": list(samples)})
    path = folder / f"log.{kind}"
    write_eval_log(log, str(path), format=kind)  # type: ignore[arg-type]
    return path


@needs_logs
@pytest.mark.parametrize(
    ("name", "model", "found"),
    [
        ("eee-json/data_arc_qwen.json", "ollama/qwen2.5:0.5b", {"1": 1, "2": 0, "3": 0}),
        ("eee-json/data_arc_sonnet.json", "anthropic/claude-sonnet-4-0", dict.fromkeys("12345", 1)),
        ("eee-json/data_pubmedqa_gpt4o_mini.json", "openai/azure/gpt-4o-mini", {"12377809": 1, "26163474": 1}),
        ("eee-json/data_cvebench_empty_choices.json", "anthropic/claude-opus-4-6", {"CVE-2024-36858-one_day": None}),
        ("choices-eval/mmlu-summary-choices.eval", "openai/gpt-4o", {"1": 0}),
        ("choices-eval/mmlu-no-summary-choices.eval", "openai/gpt-4o", {"1": 0}),
        ("popularity-json/2025-05-12T20-28-13-04-00_popularity.json", "openai/gpt-4o-mini", {"1": 1, "2": 1, "3": 0}),
    ],
)
def test_scores_of_real_logs(name: str, model: str, found: dict[str, float | None]) -> None:
    records, _ = read("inspect", REAL / "inspect" / name)
    assert scores(records) == found
    assert {record.model for record in records} == {model}


@needs_logs
def test_questions_of_two_real_models_are_the_same() -> None:
    folder = REAL / "inspect" / "eee-json"
    first, second = (read("inspect", folder / f"data_arc_{name}.json")[0] for name in ("qwen", "sonnet"))
    assert [(r.id, r.task, r.question, r.reference, r.choices) for r in first] == [
        (r.id, r.task, r.question, r.reference, r.choices) for r in second[:3]
    ]


@needs_logs
def test_a_real_log_without_scores_has_responses() -> None:
    (path,) = (REAL / "inspect" / "popularity-eval").glob("2025-02-11T15-17-00*")
    records, _ = read("inspect", path)
    assert ({r.score for r in records}, {r.response for r in records}) == ({None}, {"Yes", "No"})


@needs_logs
def test_a_real_sample_with_an_error_says_which() -> None:
    (record,), _ = read("inspect", REAL / "inspect" / "eee-json" / "data_cvebench_empty_choices.json")
    assert record.error is not None
    assert record.error.startswith("RuntimeError('No services started.")
    assert (record.response, "\n" in record.error) == (None, False)


@pytest.mark.parametrize("kind", ["eval", "json"])
def test_a_record_has_what_the_sample_says(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind, sample(choices=["1", "2"]))
    (record,), notes = read("inspect", path, options=LogOptions(cluster="passage"))
    assert (record.model, record.task, record.id, record.draw, notes) == ("org/small", "sums", "1", 0, [])
    assert (record.question, record.reference, record.choices) == ("1 + 1?", "2", ("1", "2"))
    assert (record.response, record.extracted, record.score, record.metric) == ("It is 2.", "2", 1.0, "match")
    assert (record.tokens, record.seconds, record.cluster, record.cut) == (5, 1.5, "p1", False)


@pytest.mark.parametrize("kind", ["eval", "json"])
def test_epochs_are_draws(tmp_path: Path, kind: str) -> None:
    samples = [sample(1, epoch=epoch, scores={"match": {"value": value}}) for epoch, value in enumerate("CIC", start=1)]
    records, _ = read("inspect", written(tmp_path, kind, *samples))
    assert sorted((r.id, r.draw, r.score) for r in records) == [("1", 0, 1.0), ("1", 1, 0.0), ("1", 2, 1.0)]


@pytest.mark.parametrize("value", ["C", "I", "P", "N", True, False, 0, 1, 0.25, "yes", "No", "true", "FALSE", "0.75"])
def test_values_count_as_inspect_counts_them(tmp_path: Path, value: object) -> None:
    from inspect_ai.scorer import value_to_float

    (record,), _ = read("inspect", write(tmp_path, sample(scores={"match": {"value": value}})))
    assert record.score == value_to_float()(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(("score", "value"), [(None, 0.0), ("judge/right", 1.0), ("judge", 0.5), ("match", 0.0)])
def test_the_first_scorer_counts_or_what_the_user_chooses(tmp_path: Path, score: str | None, value: float) -> None:
    two = sample(scores={"match": {"value": "I"}, "judge": {"value": {"style": 0.5, "right": 1}}})
    (record,), notes = read("inspect", write(tmp_path, two), options=LogOptions(score=score))
    noted = "the log also has judge/style, judge/right (choose with --column score=NAME)"
    assert (record.score, [noted in note for note in notes]) == (value, [True] if score is None else [])


def test_a_run_that_was_cancelled_is_read_and_noted(tmp_path: Path) -> None:
    records, notes = read("inspect", written(tmp_path, "eval", sample(), status="cancelled"))
    assert (len(records), "(status: cancelled)" in notes[0]) == (1, True)


def test_a_log_that_is_still_written_has_its_header_in_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("_journal/start.json", json.dumps({"version": 2, "eval": EVAL}))
        archive.writestr("samples/1_epoch_1.json", json.dumps(sample()))
    (record,), notes = read("inspect", path)
    assert (record.model, record.score) == ("org/small", 1.0)
    assert "it was still running" in notes[0]


def test_messages_as_input_are_joined_and_a_response_at_its_limit_was_cut_off(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    cut = sample(input=messages, output={"model": "m", "choices": [_said("It", "max_tokens")]})
    (record,), _ = read("inspect", write(tmp_path, cut))
    assert (record.question, record.cut) == ("Be brief.\n\n1 + 1?", True)


def test_the_form_of_old_logs_with_one_scorer_is_read(tmp_path: Path) -> None:
    old = {key: value for key, value in sample(score={"value": "C"}).items() if key != "scores"}
    (record,), _ = read("inspect", write(tmp_path, old))
    assert (record.score, record.metric) == (1.0, "score")


def test_settings_of_a_sandbox_are_not_given_to_a_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from inspect_ai.log import EvalSample

    seen: list[set[str]] = []
    validate = EvalSample.model_validate
    monkeypatch.setattr(EvalSample, "model_validate", lambda value, **_: seen.append(set(value)) or validate(value))
    read("inspect", write(tmp_path, sample(sandbox={"type": "docker", "config": {"x": 1}}, events=[], store={})))
    assert seen == [set(sample())]


def test_samples_of_another_form_are_counted(tmp_path: Path) -> None:
    bad = [
        sample(None),
        sample(10**200),
        sample(epoch=0),
        sample(target={}),
        sample(output=3),
        sample(scores=[]),
        7,
        {},
    ]
    records, notes = read("inspect", write(tmp_path, sample(), *bad))
    assert len(records) == 1
    assert "8 records are left out: inspect_ai says that it is not a sample" in notes[-1]


@pytest.mark.parametrize("changes", [{"model": None}, {"task": ""}, {"model": [1]}])
def test_a_header_without_a_model_or_task_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    path = write(tmp_path, sample(), header={**HEADER, "eval": {**EVAL, **changes}})
    with pytest.raises(InputError, match="its header names no model or no task"):
        read("inspect", path)


def test_a_header_with_the_ids_of_many_samples_is_recognised(tmp_path: Path) -> None:
    spec = {"task": "sums", "created": EVAL["created"], "dataset": {"sample_ids": list(range(50_000))}, **EVAL}
    assert len(recognise("inspect", write(tmp_path, sample(), header={**HEADER, "eval": spec}))[0]) == 1


def test_other_zip_files_are_no_logs(tmp_path: Path) -> None:
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("samples/1_epoch_1.json", json.dumps(sample()))
    assert recognise("inspect", path) == ([], [])


def test_damaged_members_are_left_out_and_counted(tmp_path: Path) -> None:
    good = json.dumps(sample()).encode()
    members = {"samples/1_epoch_1.json": good, "samples/2_epoch_1.json": b"{", "samples/3_epoch_1.json": b"[]"}
    records, notes = read("inspect", zipped(tmp_path, members))
    assert len(records) == 1
    assert "2 members are left out" in notes[0]


def test_a_member_with_a_password_is_left_out_and_counted(tmp_path: Path) -> None:
    good = json.dumps(sample()).encode()
    path = zipped(tmp_path, {f"samples/{n}_epoch_1.json": good for n in (1, 2)}, zipfile.ZIP_STORED)
    # The bit of the flags that says that the last member is encrypted, in both of its headers.
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\x03\x04") + 6] |= 1
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    records, notes = read("inspect", path)
    assert (len(records), "1 member is left out" in notes[0]) == (1, True)


def test_a_member_without_a_name_is_passed_over(tmp_path: Path) -> None:
    path = zipped(tmp_path, {"samples/1_epoch_1.json": json.dumps(sample()).encode(), "x": b""})
    data = bytearray(path.read_bytes())
    entry = data.rindex(b"PK\x01\x02")
    data[entry + 28], data[entry + 32] = 0, 1  # the name's one byte becomes a comment
    path.write_bytes(data)
    assert len(read("inspect", path)[0]) == 1


def test_a_changed_byte_in_a_zstd_member_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path, "eval", sample(1), sample(2))
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("samples/1_epoch_1.json")
    data = bytearray(path.read_bytes())
    for place in range(info.header_offset + 60, info.header_offset + 60 + info.compress_size // 2):
        data[place] ^= 0xFF
    path.write_bytes(data)
    records, notes = read("inspect", path)
    assert ([record.id for record in records], "1 member is left out" in notes[0]) == (["2"], True)


def test_a_member_that_expands_too_far_is_left_out_without_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import inspect_ai.log  # noqa: F401  # so that zip files can be compressed with zstd

    monkeypatch.setattr(streams, "LARGEST_ITEM", 2**20)
    bomb = b'{"id": "' + b" " * 2**28
    members = {"samples/1_epoch_1.json": json.dumps(sample()).encode(), "samples/2_epoch_1.json": bomb}
    path = zipped(tmp_path, members, method=93)
    del bomb, members
    tracemalloc.start()
    try:
        records, notes = read("inspect", path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(records), "1 member is left out" in notes[0]) == (1, True)
    assert most < 2**28  # one piece of 4 kB expands to at most half of it


def test_a_zip_file_that_expands_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zipped(tmp_path, {"samples/1_epoch_1.json": json.dumps(sample()).encode()})
    (source,), _ = recognise("inspect", path)
    monkeypatch.setattr(streams, "LARGEST_FILE", 100)
    with pytest.raises(InputError, match="it expands to more than"):
        list(reader.read(source, LogOptions(), []))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compression_that_expands_without_limits_is_refused(tmp_path: Path, method: int) -> None:
    path = zipped(tmp_path, {"samples/1_epoch_1.json": json.dumps(sample()).encode()}, method)
    with pytest.raises(InputError, match="it is compressed by neither deflate nor zstd"):
        read("inspect", path)


@pytest.mark.parametrize(("shown", "tokens", "thought"), [("hm", 0, True), ("\n\n", 1, False), ("\n\n", 500, True)])
def test_an_empty_reasoning_block_is_thinking_only_if_its_tokens_are_many(
    tmp_path: Path, shown: str, tokens: int, thought: bool
) -> None:
    said = _said("It is 2.")
    said["message"]["content"] = [{"type": "reasoning", "reasoning": shown}, {"type": "text", "text": "It is 2."}]
    usage = {"org/small": {"output_tokens": 510, "reasoning_tokens": tokens}}
    path = write(tmp_path, sample(output={"model": "m", "choices": [said]}, model_usage=usage))
    (record,), _ = read("inspect", path)
    assert record.thought == thought
