"""Where records come from: files of three kinds, and a data folder; `test_hub_data.py` has the hub."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advisor.tasks import data_files, load_task
from tests.taskfiles import load, refusal


def files(name: Any) -> dict[str, Any]:
    return {"dev": name, "held_out": "not read.jsonl"}


RECORDS = [{"question": "one", "answer": "1"}, {"question": "two", "answer": "2"}]
LINES = "\n".join(json.dumps(record) for record in RECORDS)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("d.jsonl", LINES),
        ("d.jsonl", LINES + "\n"),
        ("d.jsonl", "\ufeff" + LINES.replace("\n", "\r\n\r\n")),
        ("d.jsonl", json.dumps(RECORDS)),
        ("d.json", LINES),
        ("d.json", json.dumps(RECORDS)),
        ("d.json", json.dumps({"canary": "do not train", "examples": RECORDS})),
    ],
)
def test_json_in_all_its_shapes_gives_the_same_records(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_bytes(content.encode())
    task = load(tmp_path, files(name))
    assert [(example.id, example.prompt, example.reference) for example in task.examples] == [
        ("dev-0", "one", "1"),
        ("dev-1", "two", "2"),
    ]


def test_only_newlines_end_lines(tmp_path: Path) -> None:
    odd = "a\u2028b\u0085c\x0bd\x1ce"
    (tmp_path / "d.jsonl").write_text(
        json.dumps({"question": odd, "answer": "1"}, ensure_ascii=False), encoding="utf-8"
    )
    (tmp_path / "d.txt").write_bytes(f"{odd}\nsecond\r\n".encode())
    assert [example.prompt for example in load(tmp_path, files("d.jsonl")).examples] == [odd]
    assert [
        example.prompt for example in load(tmp_path, files("d.txt"), prompt="{{text}}", reference="x").examples
    ] == [odd, "second"]


def test_text_files_in_parallel_are_one_field_each(tmp_path: Path) -> None:
    (tmp_path / "eng.txt").write_text("a cat\na dog\n", encoding="utf-8")
    (tmp_path / "ron.devtest").write_text("o pisică\nun câine\n", encoding="utf-8")
    data = {"question": "eng.txt", "answer": "ron.devtest"}
    task = load(tmp_path, {"dev": data, "held_out": "not read.jsonl"})
    assert [(example.prompt, example.reference) for example in task.examples] == [
        ("a cat", "o pisică"),
        ("a dog", "un câine"),
    ]
    (tmp_path / "ron.devtest").write_text("a\n", encoding="utf-8")
    assert "ron.devtest has 1 lines" in refusal(tmp_path, {"dev": data, "held_out": "not read.jsonl"})


def test_several_files_are_one_split_and_their_names_are_in_the_ids(tmp_path: Path) -> None:
    for name in ("law", "art"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"question": name, "answer": "1"}), encoding="utf-8")
    task = load(tmp_path, files("*.jsonl"), group="{{_part}}")
    assert [(example.id, example.group) for example in task.examples] == [("dev-art-0", "art"), ("dev-law-0", "law")]


def test_a_variant_fills_paths_and_prompts(tmp_path: Path) -> None:
    for name in ("law", "art"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"question": name, "answer": "1"}), encoding="utf-8")
    data = files("{{variant}}.jsonl")
    task = load(tmp_path, data, variant="law", prompt="{{variant}} {{question}}")
    assert (task.name, task.examples[0].prompt) == ("sums", "law law")
    other = load_task(f"{tmp_path / 'sums.yaml'}:art")
    assert (other.name, other.examples[0].prompt) == ("sums:art", "art art")
    assert other.fingerprint != task.fingerprint


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.jsonl", b'{"question": "a"}\n{"question": \n', "d.jsonl:2: not valid JSON"),
        ("d.jsonl", b'{"question": "a"}\n\n[1]\n', "d.jsonl:3: a record must be a JSON object"),
        ("d.jsonl", b'{"question": "\\ud800", "answer": "1"}', "d.jsonl:1: not usable JSON: half a surrogate pair"),
        ("d.jsonl", b'{"question": "\xff"}', "d.jsonl:1: not valid JSON: 'utf-8' codec can't decode byte 0xff"),
        ("d.jsonl", b'{"question": " ", "answer": "1"}', "d.jsonl:1: the prompt is blank"),
        ("d.jsonl", b"", "the split 'dev' has no records"),
        ("d.json", b'[{"question": "a"},\n', "d.json: not JSON after element 1 (Expecting value"),
        ("d.json", b'{\n"a": 1}', "d.json holds no list of records"),
        ("d.csv", b"question,answer\n", "the split 'dev' has no records"),
    ],
)
def test_a_broken_data_file_is_refused_with_its_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert message in refusal(tmp_path, files(name))


def test_a_missing_data_file_is_named(tmp_path: Path) -> None:
    assert "d.jsonl does not exist; correct the path in" in refusal(tmp_path, files("d.jsonl"))
    assert "*.jsonl matches no file" in refusal(tmp_path, files("*.jsonl"))


HUB = {
    "hub": "nobody/nothing",
    "dev": "train",
    "held_out": "test",
    "local": {"train": "s/train.jsonl", "test": "s/test.jsonl"},
}


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A folder that --data can read."""
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "train.jsonl").write_text(LINES, encoding="utf-8")
    (tmp_path / "s" / "test.jsonl").write_text('{"question": "three", "answer": "3"}\n', encoding="utf-8")
    return tmp_path


def test_a_data_folder_replaces_the_hub(exported: Path) -> None:
    task = load(exported, HUB, options={"data_dir": exported, "split": "held_out"})
    assert [(example.id, example.prompt) for example in task.examples] == [("test-0", "three")]
    assert [
        example.prompt for example in load(exported, HUB, options={"data_dir": exported, "split": "train"}).examples
    ] == ["one", "two"]


def test_local_data_may_be_divided_otherwise_than_the_hubs(exported: Path) -> None:
    data = {**HUB, "local": {"dev": "s/test.jsonl", "held_out": "s/train.jsonl"}}
    assert [example.prompt for example in load(exported, data, options={"data_dir": exported}).examples] == ["three"]


OWN = {"dev": "s/train.jsonl", "held_out": "s/test.jsonl"}


@pytest.mark.parametrize(
    ("data", "data_dir", "message"),
    [
        (OWN, "nowhere", "nowhere is not a folder; give --data the folder that holds s/train.jsonl"),
        (OWN, "s", "this folder has none of the files of"),
        (HUB, "nowhere", "nowhere is not a folder; give --data the folder that holds s/train.jsonl"),
        (HUB, "s", "s/s/train.jsonl does not exist; give --data the folder"),
        ({**HUB, "local": {}}, ".", "data.local is missing"),
        ({**HUB, "local": {"train": "../x.jsonl", "test": "s"}}, ".", "data.local.train must be a path within"),
        ({"dev": "test", "held_out": "test", "local": HUB["local"]}, None, "not on the hub; give --data the folder"),
    ],
)
def test_a_data_folder_that_does_not_fit_is_refused(
    exported: Path, data: dict[str, Any], data_dir: str | None, message: str
) -> None:
    options = {"data_dir": exported / data_dir} if data_dir else {}
    assert message in refusal(exported, data, options=options)


def test_the_files_of_a_task_are_looked_for_in_the_data_folder_first(exported: Path) -> None:
    new = exported / "new"
    (new / "s").mkdir(parents=True)
    (new / "s" / "test.jsonl").write_text('{"question": "four", "answer": "4"}\n', encoding="utf-8")
    task = load(exported, OWN, options={"data_dir": new, "split": "held_out"})
    assert [example.prompt for example in task.examples] == ["four"]
    assert any("dev: the data is beside" in note for note in task.notes)
    dev = load(exported, OWN, options={"data_dir": new})
    assert [example.prompt for example in dev.examples] == ["one", "two"]


def test_conditions_divide_a_file_among_splits(tmp_path: Path) -> None:
    lines = "".join(f'{{"question": "{n}", "answer": "{n}"}}\n' for n in range(10))
    (tmp_path / "all.jsonl").write_text(lines, encoding="utf-8")
    where = {"dev": "{{question | int < 4}}", "held_out": "{{question | int >= 4}}"}
    data = {"dev": "all.jsonl", "held_out": "all.jsonl", "where": where}
    dev, held_out = (load(tmp_path, data, options={"split": split}) for split in ("dev", "held_out"))
    assert [example.reference for example in dev.examples] == ["0", "1", "2", "3"]
    assert [example.reference for example in held_out.examples] == ["4", "5", "6", "7", "8", "9"]
    assert dev.notes == held_out.notes == ()


def test_a_condition_that_is_neither_true_nor_false_is_refused_with_its_record(tmp_path: Path) -> None:
    (tmp_path / "all.jsonl").write_text('{"question": "1", "answer": "1"}\n', encoding="utf-8")
    message = refusal(tmp_path, {"dev": "all.jsonl", "held_out": "all.jsonl", "where": {"dev": "question < 4"}})
    assert "all.jsonl:1: its condition under where gives 'question < 4'; make it true or false" in message


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/etc/hostname", "data.dev must be a path within"),
        ("../other/d.jsonl", "data.dev must be a path within"),
        ("a/../../d.jsonl", "data.dev must be a path within"),
        ("a**b", "data.dev may have * in at most two names of the path, and no **"),
        ("*/*/*.jsonl", "data.dev may have * in at most two names of the path, and no **"),
        ("a" * 5000, "data.dev is longer than 1,000 characters"),
        ("a" * 900, "cannot be read: File name too long"),
        ("a\0b.jsonl", "data.dev must be a path within"),
        ({"question": "/etc/hostname"}, "data.dev.question must be a path within"),
        ("{{variant}}/d.jsonl", "data.dev must be a path within"),
    ],
)
def test_a_path_that_leads_out_of_the_tasks_folder_is_refused(tmp_path: Path, path: Any, message: str) -> None:
    assert message in refusal(tmp_path, files(path), variant="..")


@pytest.mark.parametrize("path", ["link.jsonl", "folder/d.jsonl", "*.jsonl"])
def test_a_link_that_leads_out_of_the_tasks_folder_is_refused(tmp_path: Path, path: str) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "d.jsonl").write_text(LINES, encoding="utf-8")
    (inside / "link.jsonl").symlink_to(outside / "d.jsonl")
    (inside / "folder").symlink_to(outside)
    assert "is a link that leads out of" in refusal(inside, files(path))


def test_a_link_within_the_tasks_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text(LINES, encoding="utf-8")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "d.jsonl")
    assert len(load(tmp_path, files("link.jsonl")).examples) == 2


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_a_folder_in_place_of_a_data_file_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "d.jsonl")
    assert "d.jsonl cannot be read: it is not a regular file" in refusal(tmp_path, files("d.jsonl"))


def test_a_data_file_is_limited_in_size(tmp_path: Path) -> None:
    with (tmp_path / "d.jsonl").open("wb") as file:
        file.truncate(data_files.LARGEST + 1)  # takes no room on the disk
    assert "d.jsonl is larger than 256 MB" in refusal(tmp_path, files("d.jsonl"))
    for n in range(3):
        with (tmp_path / f"{n}.txt").open("wb") as file:
            file.truncate(data_files.LARGEST // 3 + 1)
    assert "2.txt" in refusal(tmp_path, files("*.txt"))


def test_a_file_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"d\xff.jsonl")).write_text(LINES, encoding="utf-8")
    assert "is not UTF-8; rename it" in refusal(tmp_path, files("d*.jsonl"))


@pytest.mark.parametrize(
    ("hub", "message"),
    [
        *((each, "data.hub is the id of a data set, ORG/NAME; write files under") for each in ("/etc", "../s", "./s")),
        ("json", "data.hub: json is not a data set of the hub"),
        ("s", "data.hub: s is a folder here; run the command in another folder"),
    ],
)
def test_only_a_data_set_of_the_hub_is_read_as_one(
    exported: Path, monkeypatch: pytest.MonkeyPatch, hub: str, message: str
) -> None:
    pytest.importorskip("datasets")
    monkeypatch.chdir(exported)
    assert message in refusal(exported, {**HUB, "hub": hub})
