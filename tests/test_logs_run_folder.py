"""Run folders of this project as logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.logs import run_folder
from advisor.logs.join import join_logs
from advisor.logs.sources import LogOptions, LogRecord
from ensemble.errors import InputError
from tests.logs import read, write_lines

GOOD = {"text": "It is 2", "extracted": "2", "score": 1.0, "length": 7, "finish_reason": "eos", "error": None}
LINE = {
    "id": "sums/0",
    "prompt": "1 + 1?",
    "reference": "2",
    "split": "held_out",
    "responses": {"small": {**GOOD, "text": "3", "extracted": "3", "score": 0.0, "length": 1}, "large": GOOD},
    "ensemble": {**GOOD, "trace": None},
}
RESULT = {
    "schema_version": 2,
    "task": {"name": "sums", "metric": "number"},
    "selected": ["large", "small"],
    "ensemble": {"method": "unite", "members": [{"model": "large"}, {"model": "small"}]},
}


def write_run(folder: Path, result: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    write_lines(folder / "samples.jsonl", lines)


def changed(**fields: Any) -> dict[str, Any]:
    return {**LINE, "responses": {"small": {**GOOD, **fields}}, "ensemble": None}


def test_a_line_is_one_record_for_each_model_and_the_ensemble(tmp_path: Path) -> None:
    write_run(tmp_path, RESULT, [LINE])
    found, notes = read("run_folder", tmp_path)
    assert notes == []
    assert [(record.model, record.extracted, record.score) for record in found] == [
        ("small", "3", 0.0),
        ("large", "2", 1.0),
        ("unite(large, small)", "2", 1.0),
    ]
    assert found[1] == LogRecord(
        model="large",
        task="sums",
        id="sums/0",
        place=f"{tmp_path / 'samples.jsonl'}:1",
        question="1 + 1?",
        reference="2",
        response="It is 2",
        extracted="2",
        score=1.0,
        metric="number",
    )


def test_without_a_result_the_task_has_no_name(tmp_path: Path) -> None:
    write_run(tmp_path / "my-run", RESULT, [LINE])
    (tmp_path / "my-run" / "result.json").unlink()
    found, _ = read("run_folder", tmp_path / "my-run")
    assert [(record.task, record.metric) for record in found] == [(None, None)] * 3
    assert found[-1].model == "ensemble"


def test_an_option_that_a_model_chose_is_not_a_response(tmp_path: Path) -> None:
    # Its length would count in the length rule.
    write_run(tmp_path, {**RESULT, "task": {"name": "sums", "metric": "choice"}}, [changed(length=None)])
    [record], _ = read("run_folder", tmp_path)
    assert (record.response, record.length, record.extracted) == (None, None, "2")


def test_what_a_line_says_of_a_response_is_kept(tmp_path: Path) -> None:
    write_run(tmp_path, RESULT, [{**changed(text=None, length=99, finish_reason="length"), "reference": ["2", "two"]}])
    (record,) = read("run_folder", tmp_path)[0]
    assert (record.response, record.length, record.cut, record.reference) == (None, 99, True, ("2", "two"))


def test_an_error_is_one_line_of_visible_characters(tmp_path: Path) -> None:
    write_run(tmp_path, RESULT, [changed(finish_reason="error", error="no\n\x1b[31m answer")])
    assert read("run_folder", tmp_path)[0][0].error == "no␊␛[31m answer"


def test_scores_are_read_as_those_of_other_logs_and_lines_of_another_form_counted(tmp_path: Path) -> None:
    write_run(tmp_path, RESULT, [LINE, changed(score=None), changed(score=7), {**LINE, "responses": []}])
    found, notes = read("run_folder", tmp_path)
    path = tmp_path / "samples.jsonl"
    assert [record.score for record in found] == [0.0, 1.0, 1.0, None]
    assert notes == [
        f"{path}: 2 records are left out: it has another form than a line of samples.jsonl; the first is {path}:3",
    ]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("{", "result.json: not JSON"),
        ('{"schema_version": 2, "task": []}', "task"),
        ('{"schema_version": 2}', "selected is missing"),
        ('{"schema_version": 2, "selected": [], "ensemble": {"method": "unite", "members": ["a"]}}', "members"),
        ("[" * 100_000, "not usable JSON"),
    ],
)
def test_a_broken_result_gives_one_line(tmp_path: Path, result: str, message: str) -> None:
    write_run(tmp_path, RESULT, [LINE])
    (tmp_path / "result.json").write_text(result, encoding="utf-8")
    with pytest.raises(InputError, match=message) as error:
        read("run_folder", tmp_path)
    assert "\n" not in str(error.value)


def test_a_huge_result_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, RESULT, [LINE])
    monkeypatch.setattr(run_folder, "LARGEST_ITEM", 50)
    with pytest.raises(InputError, match=r"result\.json: it is larger than"):
        read("run_folder", tmp_path)


def test_the_names_of_an_ensemble_cannot_control_the_terminal(tmp_path: Path) -> None:
    hostile = {**RESULT, "ensemble": {"method": "\x1b[2J", "members": [{"model": "a"}]}}
    write_run(tmp_path, hostile, [LINE])
    assert read("run_folder", tmp_path)[0][-1].model == "␛[2J(a)"


def test_the_name_of_a_large_ensemble_is_shortened(tmp_path: Path) -> None:
    members = [{"model": f"organisation/model-{n}" * 5} for n in range(20)]
    write_run(tmp_path, {**RESULT, "ensemble": {"method": "unite", "members": members}}, [LINE])
    assert len(read("run_folder", tmp_path)[0][-1].model) == 500


def test_the_clusters_of_a_run_need_no_name(tmp_path: Path) -> None:
    """Turns of a conversation are not independent, and the run knows which ones belong together."""
    lines = [{**LINE, "id": str(n), "prompt": f"q{n}", "cluster": f"c{n // 2}"} for n in range(4)]
    write_run(tmp_path, RESULT, [*lines, {**LINE, "id": "5", "prompt": "alone"}])
    joined = join_logs([str(tmp_path)], LogOptions(), models=["large"])
    assert joined.clusters is not None
    assert joined.clusters[:4] == ("c0", "c0", "c1", "c1") and len({*joined.clusters}) == 3
    write_run(tmp_path, RESULT, [LINE])
    assert join_logs([str(tmp_path)], LogOptions(), models=["large"]).clusters is None
