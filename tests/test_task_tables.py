"""Tables as data of tasks: CSV, TSV, Parquet, Excel, compressed files, and data sets that were saved to disk."""

from __future__ import annotations

import gzip
import json
import lzma
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from advisor.tasks import data_files
from advisor.tasks.tables.rows import checked_rows, columns_of
from ensemble.errors import InputError
from tests.excel import write_book
from tests.taskfiles import load, refusal

ROWS = [{"id": "007", "question": "one, or\ntwo?", "answer": 1}, {"id": "008", "question": 'say "é"', "answer": 2}]


def csv_text(mark: str = ",") -> str:
    return (
        f'id{mark}question{mark}answer\n007{mark}"one, or\ntwo?"{mark}1\n\n{mark}{mark}\n008{mark}"say ""é"""{mark}2\n'
    )


def write(path: Path) -> None:
    """The rows in the form that the file's name has."""
    lines = "\n".join(map(json.dumps, ROWS)).encode()
    contents = {
        "d.csv": csv_text().encode(),
        "semicolons.csv": ("\ufeff" + csv_text(";")).encode(),
        "d.tsv": csv_text("\t").encode(),
        "d.csv.gz": gzip.compress(csv_text().encode()),
        "d.jsonl.gz": gzip.compress(lines),
        "d.jsonl.xz": lzma.compress(lines),
        "d.json.xz": lzma.compress(json.dumps(ROWS).encode()),
    }
    if path.name in contents:
        path.write_bytes(contents[path.name])
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        write_book(path, {"Sheet": [list(ROWS[0]), *(list(row.values()) for row in ROWS)]})


@pytest.mark.parametrize(
    "name",
    ["d.csv", "semicolons.csv", "d.tsv", "d.csv.gz", "d.jsonl.gz", "d.jsonl.xz", "d.json.xz", "d.parquet", "d.xlsx"],
)
def test_every_form_of_a_table_gives_the_same_questions(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)
    data = {"dev": name, "held_out": "not read.csv"}
    assert [(example.id, example.prompt, example.reference) for example in load(tmp_path, data).examples] == [
        ("007", "one, or\ntwo?", "1"),
        ("008", 'say "é"', "2"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.csv", b"question,answer\na,1\nb\n", "d.csv:3: the row has more or fewer cells than the header"),
        ("d.csv", b"question,answer\na,1\nb,\n", "d.csv:3: the reference is empty"),
        ("d.csv", b'question,answer\na,1\nb,"2\nc,3\n', "d.csv:3: not CSV (unexpected end of data)"),
        ("d.csv", b"question,answer\na,1\nb\x81,2\n", "d.csv: neither UTF-8 nor cp1252 text; save the table as UTF-8"),
        ("d.csv", b"question,answer,answer\na,1,2\n", "d.csv: the column answer occurs twice; rename one"),
        ("d.csv", b"id,question,answer\n1,a,1\n1,b,2\n", "d.csv:2 has the same id '1'; change one"),
        ("d.csv", b"frage,answer\na,1\n", "names the field 'question', but"),
        ("d.xlsx", b"PK\x03\x04", "d.xlsx: it is not a table"),
        ("d.parquet", b"PAR1", "d.parquet: the file is damaged"),
        ("d.jsonl.gz", b"\x1f\x8b\x08\x00", "d.jsonl.gz: the compressed data is damaged"),
        ("d.xls", b"", "d.xls is not a .csv, .tsv, .jsonl, .json, .parquet, .xlsx or .txt file; convert it"),
    ],
)
def test_a_broken_table_is_refused_with_its_row(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert message in refusal(tmp_path, name)


def test_what_a_file_expands_to_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "LARGEST", 2**20)
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(b'{"question": "a"}\n' * 2**16))
    assert "d.jsonl.gz: its records have more than 1 MB" in refusal(tmp_path, "d.jsonl.gz")
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(b"question,answer\n" + b"a,1\n" * 2**16))
    assert "d.csv.gz: its records have more than 1 MB" in refusal(tmp_path, "d.csv.gz")


def test_a_column_with_spaces_has_underscores_in_templates(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text(",Question?,Expected Answer\n0,a,1\n1,b,2\n", encoding="utf-8")
    keys = {"prompt": "{{Question}}", "reference": "{{Expected_Answer}}"}
    assert [example.accepted for example in load(tmp_path, "d.csv", **keys).examples] == [("2",)]
    message = refusal(tmp_path, "d.csv", prompt="{{Question}}", reference="{{Expected Answer}}")
    assert "the field of the column 'Expected Answer' is {{Expected_Answer}}" in message


def test_numbers_that_a_library_made_floats_are_whole_again(tmp_path: Path) -> None:
    rows = [{"id": 1.0, "question": "a", "answer": 2.0, "x": 0.5}, {"id": None, "question": "b", "answer": 3.0, "x": 1}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet")
    task = load(tmp_path, {"dev": "d.parquet", "held_out": "none.csv"}, prompt="{{question}} {{x}}")
    assert [(example.id, example.prompt, example.reference) for example in task.examples] == [
        ("1", "a 0.5", "2"),
        ("dev-1", "b 1.0", "3"),
    ]


def test_an_excel_formula_without_its_value_is_refused(tmp_path: Path) -> None:
    rows = [["question", "answer"], ["a", 1], ["b", 2]]
    write_book(tmp_path / "d.xlsx", {"Sheet": [*rows[:2], ["b", "=1+1"]]})
    assert "cell B3 has a formula without its value" in refusal(tmp_path, "d.xlsx")


def test_cells_of_excel_have_the_types_that_the_sheet_shows(tmp_path: Path) -> None:
    moment = datetime(2024, 1, 2, 12, 30)
    cells = ["a", 7, 7.0, 0.5, True, moment.date(), moment, None, " x "]
    path = write_book(tmp_path / "d.xlsx", {"Sheet": [list("abcdefghi"), cells, [None] * 9, ["b", *[None] * 8]]})
    first, last = checked_rows(path, columns_of(path), [])
    shown = ["a", 7, 7, 0.5, True, "2024-01-02", "2024-01-02T12:30:00", None, " x "]
    assert (list(first[0].values()), first[1]) == (shown, f"{path} (row 2)")
    assert last == (dict(zip("abcdefghi", ["b", *[None] * 8], strict=True)), f"{path} (row 4)")


# --- datasets.save_to_disk ---


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    datasets = pytest.importorskip("datasets")
    train = datasets.Dataset.from_list([{"question": "a", "answer": ["1", "one"]}, {"question": "b", "answer": ["2"]}])
    test = datasets.Dataset.from_list([{"question": "c", "answer": ["3"]}])
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(
        tmp_path / "exported", num_shards={"train": 2, "test": 1}
    )
    return tmp_path


def test_a_saved_data_set_is_read(saved: Path) -> None:
    task = load(saved, {"dev": "exported/train", "held_out": "exported/test"})
    assert [(example.id, example.prompt, example.reference) for example in task.examples] == [
        ("dev-0", "a", ("1", "one")),
        ("dev-1", "b", "2"),
    ]


def test_a_saved_data_set_without_the_split_is_refused(saved: Path) -> None:
    message = refusal(saved, {"dev": "exported", "held_out": "exported"})
    assert "is not one split of a data set" in message


def test_a_saved_data_set_names_no_file_elsewhere(saved: Path) -> None:
    state = saved / "exported" / "train" / "state.json"
    state.write_text('{"_data_files": [{"filename": "../test/data-00000-of-00001.arrow"}]}', encoding="utf-8")
    message = refusal(saved, {"dev": "exported/train", "held_out": "exported/test"})
    assert "`_data_files` is not a list of file names" in message


def overwritten(saved: Path, data: bytes) -> Path:
    """A split whose only Arrow file has this content."""
    folder = saved / "exported" / "test"
    (folder / "data-00000-of-00001.arrow").write_bytes(data)
    return folder


def rows(folder: Path) -> list[dict[str, Any]]:
    return [values for values, _ in checked_rows(folder, columns_of(folder), [])]


def arrow(table: pa.Table, **options: Any) -> bytes:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return bytes(stream.getvalue().to_pybytes())


@pytest.mark.parametrize(
    "data", [arrow(pa.table({"question": ["x"], "answer": [["1"]]}))[:200], b"", b"\xff\xff\xff\xff" * 99]
)
def test_a_damaged_saved_data_set_is_refused_in_one_line(saved: Path, data: bytes) -> None:
    with pytest.raises(InputError, match="exported/test: the file is damaged"):
        rows(overwritten(saved, data))


def test_what_a_saved_data_set_expands_to_is_limited(saved: Path) -> None:
    # 64 GB of texts in 16 MB.
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 2**12, pa.int32()), pa.array(["x" * 2**24]))
    answers = pa.nulls(2**12, pa.list_(pa.string()))
    folder = overwritten(saved, arrow(pa.table({"question": repeated, "answer": answers})))
    with pytest.raises(InputError, match="exported/test: "):
        rows(folder)


def test_offsets_that_lead_out_of_a_buffer_are_refused(saved: Path) -> None:
    data = arrow(pa.table({"question": ["x", "yy"], "answer": pa.nulls(2, pa.list_(pa.string()))}))
    broken = data.replace(
        b"\x00\x00\x00\x00\x01\x00\x00\x00\x03\x00\x00\x00", b"\x00\x00\x00\x00\x01\x00\x00\x00\xff\xff\xff\x0f"
    )
    assert broken != data
    with pytest.raises(InputError, match="the file is damaged"):
        rows(overwritten(saved, broken))


def test_a_saved_data_set_runs_no_code_and_opens_nothing_that_its_rows_name(saved: Path) -> None:
    folder = saved / "exported" / "test"
    (folder / "test.py").write_text("raise SystemExit", encoding="utf-8")
    info = json.loads((folder / "dataset_info.json").read_text(encoding="utf-8"))
    info["features"]["question"] = {"_type": "Image"}
    (folder / "dataset_info.json").write_text(json.dumps(info), encoding="utf-8")
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    path = pa.array([{"bytes": None, "path": "/etc/hostname"}], kind)
    overwritten(saved, arrow(pa.table({"question": path, "answer": pa.nulls(1, pa.list_(pa.string()))})))
    assert [values["question"] for values in rows(folder)] == [{"bytes": None, "path": "/etc/hostname"}]
