"""ZeroEval's files have no score: the answer is found in JSON that models wrote, and graded."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from advisor.logs import zeroeval
from advisor.logs.pool import read as read_pool
from advisor.logs.record import LogOptions, LogRecord
from advisor.logs.sources import LogSource
from ensemble.errors import InputError
from tests.logs import read_one

POOLS = Path(__file__).resolve().parents[1].parent / "shared" / "pools"
ITEM = {
    "session_id": 3,
    "chat_history": ["..."],
    "model_input": "n/a",
    "output": ['```json\n{\n "reasoning": "1 + 1 is \\(2\\)",\n "answer": "2"\n}\n```'],
    "generator": "org/small",
    "dataset": "math-l5",
    "id": 3,
    "problem": "1 + 1?",
    "answer": "2",
}


records = partial(read_one, "zeroeval")


def write(folder: Path, *items: object, name: str = "small-1.5B.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(items), encoding="utf-8")
    return path


def test_an_element_is_a_record(tmp_path: Path) -> None:
    path = write(tmp_path, ITEM)
    assert records(path)[0] == [
        LogRecord(
            model="small-1.5B",
            task="math-l5",
            id="3",
            place=f"{path} (element 1)",
            question="1 + 1?",
            reference="2",
            response=str(ITEM["output"][0]),  # type: ignore[index]
            extracted="2",
            score=1.0,
            metric="accuracy",
        )
    ]


@pytest.mark.parametrize(
    ("answer", "extracted", "score"),
    [
        ('"45"', "45", 1.0),
        ("45", "45", 1.0),
        ('"$45.00"', "45", 1.0),
        ('"45 cups of flour"', "45", 1.0),
        ('"\\(\\frac{7}{2}\\)"', "7", 0.0),
        ('"90/2"', "45", 1.0),
        ('"35/6"', "5.833333333333333", 0.0),
        ('"1/0"', "1", 0.0),
        ('"10,455"', "10455", 0.0),
        ('"-45, 45"', "-45", 0.0),
        ('"infinitely many"', None, 0.0),
        ("null", None, 0.0),
        ('"___"', None, 0.0),
        ('"' + "9" * 400 + '"', None, 0.0),
    ],
)
def test_numbers_are_read_as_zeroeval_reads_them(answer: str, extracted: str | None, score: float) -> None:
    response = f'```json\n{{"reasoning": "\\sqrt{{2}} and \\"so\\"", "answer": {answer}\n}}\n```'
    assert zeroeval.grade(response, "45") == (extracted, score)


def test_a_reference_in_another_base_is_its_digits() -> None:
    assert zeroeval.grade('{"answer": "-221_3"}', "-221_3") == ("-221", 1.0)


def test_the_last_answer_counts() -> None:
    assert zeroeval.grade('{"answer": "1"}\nNo:\n{"answer": "2"}', "2") == ("2", 1.0)


@pytest.mark.parametrize("response", ["", "The answer is 2.", '{"reasoning": "cut off at the tok'])
def test_a_response_without_an_answer_is_wrong(response: str) -> None:
    assert zeroeval.grade(response, "2") == (None, 0.0)


@pytest.mark.parametrize(
    ("answer", "reference", "extracted", "score"),
    [
        ('"[(4, 1), (2, 3)]"', "[(4, 1), (2, 3)]", "[(4, 1), (2, 3)]", 1.0),
        ("[1, 2]", "[1, 2]", "[1, 2]", 1.0),
        ('"hbtof"', "'hbtof'", "hbtof", 1.0),
        ('" hbtof"', "'hbtof'", " hbtof", 0.0),
        ('"{"a": 1}"', '{"a": 1}', '{"a": 1}', 1.0),
        ("\"{'a': 1}\"", '{"a": 1}', "{'a': 1}", 0.0),
    ],
)
def test_texts_are_equal_but_for_quotation_marks(answer: str, reference: str, extracted: str, score: float) -> None:
    assert zeroeval.grade(f'{{"reasoning": "", "answer": {answer}}}', reference) == (extracted, score)


@pytest.mark.parametrize(("answer", "score"), [("B", 1.0), ("B) two", 1.0), ("(B)", 1.0), ("A", 0.0), ("Both", 0.0)])
@pytest.mark.parametrize("reference", ["B", "1"])
def test_options_are_graded_by_their_letter(answer: str, score: float, reference: str) -> None:
    assert zeroeval.grade(json.dumps({"answer": answer}), reference, ("one", "two"))[1] == score


def test_the_question_of_gsm_has_another_name(tmp_path: Path) -> None:
    item = {name: value for name, value in ITEM.items() if name != "problem"} | {"question": "2 - 1?", "dataset": "gsm"}
    (record,) = records(write(tmp_path, item))[0]
    assert (record.task, record.question) == ("gsm", "2 - 1?")


def test_several_responses_are_draws(tmp_path: Path) -> None:
    found, _ = records(write(tmp_path, {**ITEM, "output": ['{"answer": "1"}', '{"answer": "2"}']}))
    assert [(record.draw, record.score) for record in found] == [(0, 0.0), (1, 1.0)]


def test_elements_that_lack_fields_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path, ITEM, {**ITEM, "output": "2"}, None, {**ITEM, "answer": True})
    found, notes = records(path)
    assert len(found) == 1
    assert notes == [
        f"{path}: 3 records are left out: it has no `id`, `answer` or `output`; the first is {path} (element 2)"
    ]


def test_a_file_without_responses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no record of this log can be used: it has no `id`"):
        records(write(tmp_path, {**ITEM, "output": []}))


@pytest.mark.parametrize("model", ["Mistral-Large-2", "Qwen2-72B-Instruct", "gemma-2-27b-it"])
def test_real_files_give_the_published_accuracy_and_the_answers_of_the_pool(model: str) -> None:
    folder = POOLS / "logs" / "zeroeval"
    if not folder.exists():
        pytest.skip("../shared/pools/logs is not here")
    found, notes = records(folder / "math-l5" / f"{model}.json")
    assert notes == []
    rows = json.loads((folder / "math-l5.summary.json").read_text(encoding="utf-8"))
    published = {row["Model"]: row["Acc"] for row in rows}
    assert f"{100 * sum(record.score or 0 for record in found) / len(found):.2f}" == published[model]
    pool = {
        record.id: (record.question, record.reference, record.extracted, record.score, record.length)
        for record in read_pool(LogSource("pool", POOLS / "math-l5.jsonl.xz"), LogOptions(), [])
        if record.model == model
    }
    mine = {
        record.id: (record.question, record.reference, record.extracted, record.score, len(record.response or ""))
        for record in found
    }
    assert mine == pool


def test_texts_of_the_pool_are_graded_as_the_pool_grades_them() -> None:
    path = POOLS / "crux.jsonl.xz"
    if not path.exists():
        pytest.skip("../shared/pools is not here")
    different = [
        record
        for record in read_pool(LogSource("pool", path), LogOptions(), [])
        if isinstance(record.reference, str)
        and record.extracted is not None
        and zeroeval.grade(json.dumps({"answer": record.extracted}), record.reference, literal=True)[1] != record.score
    ]
    assert different == []
