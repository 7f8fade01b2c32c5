"""Tables as logs: CSV, TSV, JSON, JSON Lines, Parquet and Excel."""

from __future__ import annotations

import datetime
import gzip
import json
import zipfile
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import Place

from advisor.logs import table
from advisor.logs.sources import LogFile, LogOptions, LogRecord, LogSource, records_of
from advisor.tasks.tables import libraries, rows
from benchmarks._fuzz_changes import mutated_bytes, mutated_json, mutated_lines
from ensemble.errors import InputError
from tests.excel import replace_in, write_book
from tests.logs import write_lines, write_table

pytest_plugins = ["pools"]

KINDS = ("csv", "json", "jsonl", "parquet", "xlsx")
ROWS: list[dict[str, Any]] = [
    {"id": 7, "question": "1 + 1?", "answer": "2", "model": "small", "response": "It's 3", "score": 0.0},
    {"id": 7, "question": "1 + 1?", "answer": "2", "model": "large", "response": "2", "score": 1.0},
]
WIDE: list[dict[str, Any]] = [
    {"id": "a", "question": "1 + 1?", "answer": "2", "llama-1b": 0, "llama-8b": 1, "note": "x"},
    {"id": "b", "question": "2 + 2?", "answer": "4", "llama-1b": 1, "llama-8b": 1, "note": "y"},
]


def write_excel(path: Path, items: Sequence[dict[str, Any]], *more: str) -> Path:
    rows = [list(items[0]), *(list(item.values()) for item in items)]
    return write_book(path, {"Sheet": rows, **{name: [["other"]] for name in more}})


def write(path: Path, items: Sequence[dict[str, Any]]) -> Path:
    if path.suffix in (".csv", ".tsv"):
        return write_table(path, items, "," if path.suffix == ".csv" else "\t")
    if path.suffix == ".xlsx":
        return write_excel(path, items)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(items)), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(items), encoding="utf-8")
    else:
        write_lines(path, items)
    return path


def records(path: Path, *models: str, cluster: str | None = None, **columns: str) -> tuple[list[LogRecord], list[str]]:
    notes: list[str] = []
    options = LogOptions(columns=columns, model_columns=models, cluster=cluster)
    return list(records_of(LogSource("table", path), options, notes)), notes


@pytest.mark.parametrize("extension", [*KINDS, "tsv"])
def test_a_row_is_a_record_in_every_kind_of_file(tmp_path: Path, extension: str) -> None:
    path = write(tmp_path / f"sums.{extension}", ROWS)
    assert table.recognise([LogFile(path, given=False)], []) == [LogSource("table", path)]
    found, notes = records(path)
    assert [(one.model, one.id, one.question, one.reference, one.response, one.score, one.metric) for one in found] == [
        ("small", "7", "1 + 1?", "2", "It's 3", 0.0, "score"),
        ("large", "7", "1 + 1?", "2", "2", 1.0, "score"),
    ]
    assert len(notes) == 1
    assert "reference=answer" in notes[0]


@pytest.mark.parametrize("extension", ["csv", "parquet", "xlsx"])
def test_a_table_with_unusual_names_is_taken_only_if_the_user_names_it(tmp_path: Path, extension: str) -> None:
    path = write(tmp_path / f"sums.{extension}", [{"a": "x", "b": "y"}])
    assert table.recognise([LogFile(path, given=False)], []) == []
    assert table.recognise([LogFile(path, given=True)], []) == [LogSource("table", path)]


@pytest.mark.parametrize("content", ["# A title\nText.", "", "\x00\x01,\x02", '{\n "a": 1\n}', "[1, 2]"])
def test_other_files_of_a_folder_are_no_tables(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.txt"
    path.write_text(content, encoding="utf-8")
    assert table.recognise([LogFile(path, given=False)], []) == []


@pytest.mark.parametrize(
    ("item", "given", "wanted", "guessed"),
    [
        # What is given replaces a guess, and is not guessed for another role.
        (
            {"id": 1, "question": "no", "text": "1 + 1?", "target": "2", "em": True, "who": "small"},
            {"question": "text", "score": "em", "model": "who"},
            {"question": "1 + 1?", "score": 1.0, "metric": "em", "model": "small"},
            "reference=target",
        ),
        (
            {"id": 1, "target": "t", "answer": "2", "response": "2"},
            {"group": "target"},
            {"group": "t", "reference": "2"},
            "reference=answer",
        ),
        (
            {**ROWS[0], "extracted": "3", "length": 6, "group": "sums", "tokens": 4.0, "prompt_tokens": 9, "draw": 2}
            | {"seconds": 1.5, "dollars": 0.25, "task": "arithmetic"},
            {},
            {"model": "small", "task": "arithmetic", "id": "7", "question": "1 + 1?", "reference": "2", "score": 0.0}
            | {"response": "It's 3", "extracted": "3", "metric": "score", "length": 6, "group": "sums", "tokens": 4}
            | {"prompt_tokens": 9, "seconds": 1.5, "dollars": 0.25, "draw": 2},
            "reference=answer",
        ),
        # Columns that are named like their roles need no note.
        ({"id": 1, "model": "small", "score": 1}, {}, {"id": "1", "model": "small", "score": 1.0}, None),
        (
            {"Question ID": 1, "Model-Name": "small", "Is Correct": "Yes", "Category": "sums"},
            {},
            {"id": "1", "model": "small", "score": 1.0, "group": "sums"},
            "id=Question ID, model=Model-Name, score=Is Correct, group=Category",
        ),
    ],
)
def test_the_roles_of_columns_are_given_or_guessed_by_their_names(
    tmp_path: Path, item: dict[str, Any], given: dict[str, str], wanted: dict[str, object], guessed: str | None
) -> None:
    (record,), notes = records(write(tmp_path / "a.csv", [item]), **given)
    assert {name: getattr(record, name) for name in wanted} == wanted
    assert [note.partition("by their names: ")[2].partition(";")[0] for note in notes] == ([guessed] if guessed else [])


def test_without_a_model_the_file_is_the_model(tmp_path: Path) -> None:
    path = tmp_path / "llama-3.1-8b.csv.gz"
    path.write_bytes(gzip.compress(b"id,score,passage\n1,1,p1\n"))
    (record,) = records(path, cluster="passage")[0]
    # Files of several models are one evaluation, so its name is not that of a file.
    assert (record.model, record.task, record.cluster) == ("llama-3.1-8b", None, "p1")


def test_without_an_id_the_question_identifies(tmp_path: Path) -> None:
    items = [{name: value for name, value in item.items() if name != "id"} for item in ROWS]
    small, large = records(write(tmp_path / "a.csv", items))[0]
    assert small.id == large.id
    other = records(write(tmp_path / "b.csv", [{**items[0], "question": "1 + 2?"}]))[0][0]
    assert other.id != small.id


def test_the_price_of_strategies_comes_from_the_dollars_of_a_table(place: Place) -> None:
    lines = [
        {"id": str(n), "model": model, "score": int(n % 4 > 0) if model == "dear" else n % 2, "cost_usd": dollars}
        for n in range(80)
        for model, dollars in (("dear", 0.5), ("cheap", 0.001))
    ]
    write(place.folder / "paid.jsonl", lines)
    for more, wanted in (((), "dear"), (("--budget", "10"), "cheap")):
        ran = place.advisor("select", "--logs", "paid.jsonl", "--out", "run", "--force", "--json", *more)
        assert ran.status == 0, ran.err
        recommendation = json.loads(ran.out)["advice"]["recommendation"]
        assert recommendation["members"] == [wanted]
    assert recommendation["price_per_1000"] == pytest.approx(1)


@pytest.mark.parametrize("cost", [0.004, -1, "free", True, None, {}])
def test_what_a_provider_charged_is_the_price_and_a_wrong_charge_costs_no_response(
    tmp_path: Path, cost: object
) -> None:
    said = {"choices": [{"message": {"content": "2"}}], "usage": {"cost": cost}}
    (record,) = records(write(tmp_path / "raw.jsonl", [{**ROWS[0], "response": said}]))[0]
    assert (record.response, record.dollars) == ("2", cost if cost == 0.004 else None)


def test_a_table_with_neither_scores_nor_responses_is_not_sent_to_metric(place: Place) -> None:
    items = [{"id": n, "reference": "2", "model": name, "extracted": "2"} for n in range(3) for name in ("a", "b")]
    write(place.folder / "a.jsonl", items)
    line = place.refused("select", "--logs", "a.jsonl")
    assert line.startswith("advisor: a: the log has neither scores nor responses; give a log with one of them")


def test_values_have_the_same_text_in_all_kinds_of_files(tmp_path: Path) -> None:
    day = datetime.datetime(2024, 5, 1, 12, 0, 0)
    items = [{"id": 7.0, "question": True, "answer": day, "response": 42, "group": b"bytes", "score": Decimal("0.5")}]
    (record,) = records(write(tmp_path / "a.parquet", items))[0]
    assert (record.id, record.question, record.reference) == ("7", "true", "2024-05-01T12:00:00")
    assert (record.response, record.group, record.score) == ("42", "bytes", 0.5)


def test_wide_columns_with_texts_are_responses(tmp_path: Path) -> None:
    found, notes = records(write(tmp_path / "a.csv", [WIDE[0], {**WIDE[1], "llama-8b": "four"}]), "llama-*")
    assert [(record.model, record.score, record.response) for record in found][2:] == [
        ("llama-1b", None, "1"),
        ("llama-8b", None, "four"),
    ]
    assert notes[-1].endswith("have responses, by their values")


def test_wide_responses_need_a_reference(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [{"id": n, "llama": f"It is {n}"} for n in range(20)])
    with pytest.raises(InputError, match="give --column reference=NAME"):
        records(path, "llama")


def test_wide_tables_without_ids_count_their_rows(tmp_path: Path) -> None:
    found, _ = records(write(tmp_path / "a.csv", [{"a": 1, "b": 0}, {"a": 0, "b": 0}]), "a", "b")
    assert [record.id for record in found] == ["0", "0", "1", "1"]


@pytest.mark.parametrize(
    ("columns", "models", "message"),
    [
        ({"colour": "id"}, (), "--column colour=id: colour is not one of id, question, reference"),
        (
            {"question": "text"},
            (),
            r"--column question=text: .* has no such column; it has id, question, answer, model",
        ),
        ({"question": "id", "id": "id"}, (), "--column question=id: the column has the role id already"),
        ({}, ("gpt-*",), r"--column models=gpt-\*: .* has no such column; it has id"),
        ({"model": "model"}, ("score",), "--column model=model: the columns of the models have these values"),
    ],
)
def test_wrong_options_get_one_line(
    tmp_path: Path, columns: dict[str, str], models: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        records(write(tmp_path / "a.csv", ROWS), *models, **columns)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            {"x": 1, "y": 2},
            "the question and the response or its score; it has x, y; give --column question=NAME --col",
        ),
        ({"id": 1, "y": 2}, "the response or its score; it has id, y; give --column response=NAME --column score=NAME"),
        ({"id": 1, "output": 2}, "the score or the reference; it has id, output; give --column score=NAME"),
        ({"\x1b[2J": 1, "y": 2}, "it has ␛.2J, y"),
        ({f"c{n}": n for n in range(30)}, "c18, c19 and 10 more"),
    ],
)
def test_missing_columns_get_one_line_with_the_columns(tmp_path: Path, item: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        records(write(tmp_path / "a.csv", [item]))


@pytest.mark.parametrize(
    ("name", "content", "note"),
    [
        ("a.csv", "id,score\n1,1\n2\n\n3,1,1\n", "2 records are left out: the row has more or fewer cells than the"),
        (
            "a.json",
            '[{"id": 1, "score": 1}, 5, null]',
            "2 elements are left out, which are not JSON objects",
        ),
    ],
)
def test_rows_of_another_form_are_counted(tmp_path: Path, name: str, content: str, note: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    found, notes = records(path)
    assert [record.id for record in found] == ["1"]
    assert notes[-1].startswith(f"{path}: {note}")


def test_a_part_of_an_excel_file_that_expands_too_far_is_not_unpacked(tmp_path: Path) -> None:
    path = write_excel(tmp_path / "a.xlsx", ROWS)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/theme.xml", bytes(2**24 + 1))
    with pytest.raises(InputError, match=r"its part xl/theme\.xml expands to more than 16 MB; save the table as CSV"):
        records(path)


def test_cells_may_be_longer_than_the_default_of_the_csv_module(tmp_path: Path) -> None:
    response = "x" * 500_000
    assert records(write_table(tmp_path / "a.csv", [{**ROWS[0], "response": response}]))[0][0].response == response


def test_a_cell_without_an_end_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.tasks.tables.streams.LARGEST_ITEM", 2**18)
    path = tmp_path / "a.csv"
    path.write_text('id,score\n1,"' + "x\n" * 2**18, encoding="utf-8")
    with pytest.raises(InputError, match="one element is larger than"):
        records(path)


def test_the_number_of_columns_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(",".join(map(str, range(2001))), encoding="utf-8")
    with pytest.raises(InputError, match="2,001 columns"):
        records(path)


def test_the_number_of_rows_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_ROWS", 1)
    with pytest.raises(InputError, match=r"it has over 1 rows"):
        records(write(tmp_path / "a.csv", ROWS))


def test_a_table_is_read_as_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,score\n" + "1,1\n" * 100_000 + '"', encoding="utf-8")
    first = next(records_of(LogSource("table", path), LogOptions(), []))
    assert first.id == "1"


def test_large_row_groups_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "LARGEST_ROW_GROUP", 100)
    with pytest.raises(InputError, match="row group 0 has over"):
        libraries.columns("parquet", str(write(tmp_path / "a.parquet", ROWS)))


def test_a_text_that_a_parquet_file_repeats_is_kept_once(tmp_path: Path) -> None:
    text = "x" * 1_000_000
    path = tmp_path / "a.parquet"
    # 2 GB as texts, 1 MB in the file.
    columns = {"id": pa.array(range(2000)), "score": pa.array([1] * 2000)}
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array([text]))
    pq.write_table(pa.table({**columns, "response": repeated}), path)
    found, _ = records(path)
    assert len({id(record.response) for record in found}) <= 2
    assert found[-1].response == text


def test_a_formula_has_the_value_that_the_file_keeps(tmp_path: Path) -> None:
    path = write_excel(tmp_path / "a.xlsx", [ROWS[0], {**ROWS[1], "score": "=1-F2"}])
    replace_in(path, "xl/worksheets/sheet1.xml", b"<f>1-F2</f><v></v>", b"<f>1-F2</f><v>1</v>")
    assert [record.score for record in records(path)[0]] == [0.0, 1.0]


def test_a_formula_in_another_column_does_not_matter(tmp_path: Path) -> None:
    path = write_excel(tmp_path / "a.xlsx", [{**ROWS[0], "other": "=1-F2"}])
    assert len(records(path)[0]) == 1


def test_an_excel_file_that_expands_too_far_is_not_opened(tmp_path: Path) -> None:
    path = write_excel(tmp_path / "a.xlsx", ROWS)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("xl/bomb.xml", "w") as member:
        for _ in range(129):
            member.write(bytes(2**20))
    assert path.stat().st_size < 2**20
    with pytest.raises(InputError, match="it expands to more than 128 MB; save the table as CSV or Parquet"):
        records(path)


@pytest.mark.parametrize("number", [b"999999999999", b"1048576"])
def test_a_cell_far_from_the_others_gets_one_line_or_costs_little(tmp_path: Path, number: bytes) -> None:
    path = write_excel(tmp_path / "a.xlsx", ROWS)
    replace_in(path, "xl/worksheets/sheet1.xml", b'<c r="F3"', b'<c r="XFD' + number + b'"')
    replace_in(path, "xl/worksheets/sheet1.xml", b'<row r="3"', b'<row r="' + number + b'"')
    with pytest.raises(InputError, match=r"a\.xlsx: ") as error:
        records(path)
    assert "\n" not in str(error.value)


def test_a_size_that_a_sheet_claims_does_not_matter(tmp_path: Path) -> None:
    path = write_excel(tmp_path / "a.xlsx", ROWS)
    replace_in(path, "xl/worksheets/sheet1.xml", b'ref="A1:F3"', b'ref="A1:XFD1048576"')
    assert len(records(path)[0]) == 2


def test_ids_that_repeat_without_a_column_for_the_model_are_refused(tmp_path: Path) -> None:
    rows = [{"id": number, "llm": name, "score": 1} for name in ("one", "two") for number in (1, 2)]
    path = write(tmp_path / "a.jsonl", rows)
    with pytest.raises(InputError, match=r"a.jsonl:3: the id '1' occurs a second time.*--column model=NAME"):
        records(path)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("seeds")
    return {kind: write(folder / f"a.{kind}", ROWS).read_bytes() for kind in KINDS}


@settings(max_examples=80, deadline=None)
@given(kind=st.sampled_from(KINDS), chance=st.randoms(use_true_random=False))
def test_a_changed_file_gives_records_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, seeds: dict[str, bytes], kind: str, chance: Any
) -> None:
    mutate = {"json": mutated_json, "jsonl": mutated_lines}.get(kind, mutated_bytes)
    path = tmp_path_factory.getbasetemp() / f"changed.{kind}"
    path.write_bytes(mutate(seeds[kind], chance))
    for source in table.recognise([LogFile(path, given=True)], []):
        try:
            found = list(records_of(source, LogOptions(), []))
        except InputError as error:
            assert "\n" not in str(error)
        else:
            assert found
