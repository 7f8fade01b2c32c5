"""Pools: the answers of many models to each question, without texts."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from advisor.logs.sources import LogOptions, LogRecord, LogSource, find_sources, records_of
from tests.logs import read, write_lines

POOLS = Path(__file__).resolve().parents[1].parent / "shared" / "pools"
LINE = {
    "id": 7,
    "question": "1 + 1?",
    "group": "sums",
    "reference": "2",
    "models": {"small": ["3", 0, 12], "large": [None, 1, 9]},
}


def write(folder: Path, *lines: object) -> Path:
    return write_lines(folder / "sums.jsonl", lines)


def real(name: str) -> Path:
    path = POOLS / name
    if not path.exists():
        pytest.skip(f"../shared/pools/{name} is not here")
    return path


def test_a_line_is_one_record_for_each_model(tmp_path: Path) -> None:
    path = write(tmp_path, LINE)
    small, large = read("pool", path)[0]
    assert small == LogRecord(
        model="small",
        id="7",
        place=f"{path}:1",
        question="1 + 1?",
        reference="2",
        extracted="3",
        score=0.0,
        length=12,
        group="sums",
    )
    assert (large.model, large.extracted, large.score, large.length) == ("large", None, 1.0, 9)


def test_a_first_line_longer_than_the_head_is_recognised(tmp_path: Path) -> None:
    path = write(tmp_path, {**LINE, "models": {f"model-{n}": ["x" * 100, 0, 12] for n in range(1000)}})
    assert [source.format for source in find_sources([str(path)], [])] == ["pool"]


def test_cells_of_another_form_are_counted(tmp_path: Path) -> None:
    bad = {"a": ["2", float("nan"), 3], "b": ["2", 7, 3], "c": "2", "d": ["2", 1]}  # the scores are checked together
    path = write(tmp_path, LINE, {**LINE, "models": bad}, {**LINE, "models": None})
    found, notes = read("pool", path)
    assert [(record.model, record.score) for record in found][1:] == [("large", 1.0), ("a", None), ("b", None)]
    assert notes == [
        f"{path}: 2 records are left out: a model's answer is not a list of text, score and length; the first is "
        f"{path}:2",
        f"{path}: 1 record is left out: it has no id, or no models; the first is {path}:3",
    ]


# The counts and accuracies are those that the file of each pool was made with.
@pytest.mark.parametrize(("name", "models", "questions"), [("math-l5", 41, 721), ("crux", 51, 800)])
def test_real_pools_have_all_models_on_all_questions(name: str, models: int, questions: int) -> None:
    found, notes = read("pool", real(f"{name}.jsonl.xz"))
    counts: dict[str, int] = defaultdict(int)
    for record in found:
        counts[record.model] += 1
    assert (len(counts), set(counts.values()), notes) == (models, {questions}, [])


def test_a_large_pool_is_read_as_a_stream() -> None:
    path = real("mmlu-pro.jsonl.xz")
    first = next(records_of(LogSource("pool", path), LogOptions(), []))
    assert (first.model, first.id) == ("Llama-2-13b-hf", "70")
