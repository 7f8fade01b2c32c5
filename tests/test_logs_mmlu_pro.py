"""MMLU-Pro's files: the answer is found again in the response, because `pred` may be a random letter."""

from __future__ import annotations

import json
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from advisor.logs import mmlu_pro
from advisor.logs.pool import read as read_pool
from advisor.logs.record import LogOptions, LogRecord
from advisor.logs.sources import LogFile, LogSource
from ensemble.errors import InputError
from tests.logs import read_one

POOLS = Path(__file__).resolve().parents[1].parent / "shared" / "pools"
LETTERS = "ABCDEFGHIJ"
ITEM = {
    "question_id": 70,
    "question": "1 + 1?",
    "options": ["1", "2", "3"],
    "answer": "B",
    "answer_index": 1,
    "category": "math",
    "pred": "B",
    "model_outputs": "The answer is (B).",
}


records = partial(read_one, "mmlu_pro")


def write(folder: Path, *items: object, name: str = "model_outputs_my-model_5shots.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(items), encoding="utf-8")
    return path


def test_an_element_is_a_record(tmp_path: Path) -> None:
    path = write(tmp_path, ITEM)
    assert records(path)[0] == [
        LogRecord(
            model="my-model",
            task="mmlu-pro",
            id="70",
            place=f"{path} (element 1)",
            question="1 + 1?",
            reference="B",
            choices=("1", "2", "3"),
            response="The answer is (B).",
            extracted="B",
            score=1.0,
            metric="accuracy",
            group="math",
        )
    ]


@pytest.mark.parametrize("field", ["generated_text", "model_outputs", "response"])
def test_the_response_may_have_several_names(tmp_path: Path, field: str) -> None:
    item: dict[str, Any] = {**ITEM, field: "The answer is C"}
    if field != "model_outputs":
        item.pop("model_outputs")
    assert records(write(tmp_path, item))[0][0].extracted == "C"


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        ("So the answer is (D), not the answer is E.", "D"),
        ("the answer is D", "D"),
        ("Answer: A\nNo. Answer: (C)", "C"),
        ("The closest option is (I) 12% per year.", "I"),
        ("We choose B. Then C holds, and so does A!", "A"),
        ("The answer is (311.9%).", None),
        ("Margaret Thatcher", None),
        ("", None),
        ("Option K", None),
    ],
)
def test_the_letter_is_found_in_the_response(response: str, letter: str | None) -> None:
    assert mmlu_pro.extract(response, LETTERS) == letter


def test_more_options_have_more_letters(tmp_path: Path) -> None:
    item = {**ITEM, "options": list("abcdefghijkl"), "answer": "L", "model_outputs": "The answer is (L)."}
    assert records(write(tmp_path, item))[0][0].score == 1.0


def test_a_random_letter_counts_as_no_answer(tmp_path: Path) -> None:
    found, notes = records(write(tmp_path, {**ITEM, "model_outputs": "Two."}, {**ITEM, "pred": None}))
    assert [(record.extracted, record.score) for record in found] == [(None, 0.0), ("B", 1.0)]
    assert len(notes) == 1
    assert "1 of 2 responses" in notes[0]


def test_no_answer_without_a_letter_in_the_log_needs_no_note(tmp_path: Path) -> None:
    assert records(write(tmp_path, {**ITEM, "model_outputs": "Two.", "pred": None}))[1] == []


def test_long_responses_take_linear_time() -> None:
    # A quadratic pattern would take hours on these.
    assert mmlu_pro.extract("A " * 500_000, LETTERS) == "A"
    assert mmlu_pro.extract("answer:" + " " * 1_000_000, LETTERS) is None


def test_elements_that_lack_fields_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path, ITEM, {**ITEM, "options": "B"}, [1], {**ITEM, "model_outputs": None})
    found, notes = records(path)
    assert len(found) == 1
    assert notes == [
        f"{path}: 3 records are left out: it has no `question_id`, `answer`, `options` or response; "
        f"the first is {path} (element 2)"
    ]


def test_a_file_without_responses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no record of this log can be used: it has no `question_id`"):
        records(write(tmp_path, {**ITEM, "model_outputs": None}))


def test_a_zip_file_of_something_else_is_not_claimed(tmp_path: Path) -> None:
    path = tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.json", '[{"question_id": 1}]')
    assert mmlu_pro.recognise([LogFile(path, given=True)], []) == []


def test_a_damaged_zip_file_is_not_claimed(tmp_path: Path) -> None:
    path = tmp_path / "model_outputs_a_5shots.zip"
    path.write_bytes(b"PK\x03\x04 and nothing of it")
    assert mmlu_pro.recognise([LogFile(path, given=True)], []) == []


# In jamba's file `pred` is null where nothing was found; in mathstral's it is a letter there.
@pytest.mark.parametrize(("model", "none", "noted"), [("jamba-1.5-large", 56, 0), ("mathstral-7B", 243, 1)])
def test_real_files_give_the_letters_of_the_pool(model: str, none: int, noted: int) -> None:
    path = POOLS / "logs" / "mmlu-pro" / f"model_outputs_{model}_5shots.zip"
    if not path.exists():
        pytest.skip("../shared/pools/logs is not here")
    found, notes = records(path)
    assert (len(found), sum(record.extracted is None for record in found), len(notes)) == (12_032, none, noted)
    pool = {
        record.id: (record.extracted, record.score, record.length)
        for record in read_pool(LogSource("pool", POOLS / "mmlu-pro.jsonl.xz"), LogOptions(), [])
        if record.model == model
    }
    mine = {record.id: (record.extracted, record.score, len(record.response or "")) for record in found}
    assert {number: mine[number] for number in pool} == pool
