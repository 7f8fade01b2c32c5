"""The built-in tasks on the real files, with the known defects of those files as cases."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from advisor.tasks import list_tasks, load_task

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs the benchmark files in ../shared/data")


def questions(name: str, split: str, **options: int) -> list[str]:
    return [example.question for example in load_task(name, split=split, data_dir=DATA, **options).examples]


def records(path: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (DATA / path).read_text(encoding="utf-8").split("\n") if line]


@needs_data
def test_gsm8k_dev_is_300_of_train_and_held_out_is_all_of_test() -> None:
    train = {f"Question: {record['question']}\nAnswer:" for record in records("gsm8k/train.jsonl")}
    dev, held_out = questions("gsm8k", "dev"), questions("gsm8k", "held_out")
    assert len(dev) == 300
    assert train.issuperset(dev)
    assert held_out == questions("gsm8k", "test")
    assert len(held_out) == 1319
    assert not set(dev) & set(held_out)


@needs_data
def test_every_gold_answer_of_gsm8k_is_an_integer_and_the_same_in_the_cleaned_copy() -> None:
    cleaned = records("gsm8k/test_cleaned.jsonl")
    task = load_task("gsm8k", split="test", data_dir=DATA)
    assert all(Decimal(example.accepted[0].replace(",", "")) % 1 == 0 for example in task.examples)
    scores = [
        task.score(example, record["answer"]).value for example, record in zip(task.examples, cleaned, strict=True)
    ]
    assert sum(scores) == 1319


@needs_data
def test_gsm8k_has_four_shots_without_calculator_annotations() -> None:
    task = load_task("gsm8k", split="test", data_dir=DATA, limit=3)
    assert task.shots == task.prefix.count("\nThe answer is ") == task.prefix.count("Question: ") == 4
    assert "<<" not in task.prefix
    assert "####" not in task.prefix
    assert all(example.prompt == task.prefix + example.question for example in task.examples)


@needs_data
def test_gsm8ks_own_solutions_score_one() -> None:
    task = load_task("gsm8k", split="train", data_dir=DATA, limit=200)
    gold = {record["question"]: record["answer"] for record in records("gsm8k/train.jsonl")}
    for example in task.examples:
        response = gold[example.question.removeprefix("Question: ").removesuffix("\nAnswer:")]
        assert task.score(example, response).value == 1


@needs_data
def test_a_call_as_the_interface_shows_it() -> None:
    task = load_task("gsm8k", split="test", data_dir=str(DATA), shots=5, limit=20, seed=0)
    assert len(task.examples) == 20
    assert (task.shots, task.split, task.name) == (5, "test", "gsm8k")
    assert str(task.signature).startswith("task:gsm8k|metric:number|split:test|n:20|shots:5|seed:0|prompt:")


def test_word_problems_reads_the_demos_data_and_takes_the_stated_answer(tmp_path: Path) -> None:
    built_in = next(task.file for task in list_tasks() if task.name == "word_problems")
    for folder in ("tasks", "demo/data"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "tasks" / "word_problems.yaml").write_bytes(built_in.read_bytes())
    for number, split in enumerate(("dev", "held_out", "test")):
        record = {"id": f"{split}-a", "question": f"{number} + 1?", "terse": "", "steps": "", "answer": number + 1}
        (tmp_path / "demo" / "data" / f"{split}.jsonl").write_text(json.dumps(record), encoding="utf-8")
        task = load_task(tmp_path / "tasks" / "word_problems.yaml", split=split)
        assert [(example.id, example.prompt) for example in task.examples] == [
            (f"{split}-a", f"Question: {number} + 1?\nAnswer:")
        ]
        assert (task.stop, task.max_new_tokens, task.shots) == (("\n",), 64, 0)
        assert task.score(task.examples[0], f"9 things. The answer is {number + 1}, not 8.").value == 1
        assert task.score(task.examples[0], f"{number + 1}").extracted is None
