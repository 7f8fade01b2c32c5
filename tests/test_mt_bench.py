"""MT-Bench: its questions as its file has them, and a run from the file to the advice with a judge on this machine."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pools import Place, Ran
from tiny import byte_tokenizer, save_member, tiny_model

from advisor.judge.prompts import Shown, judge_task
from advisor.tasks import load_task
from advisor.tasks.task import Example, Task

pytest_plugins = ["pools"]

DATA = Path(__file__).parents[2] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="needs the benchmark files in ../shared/data")

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def load(name: str = "mt_bench", split: str = "train", **options: int) -> Task:
    return load_task(name, split=split, data_dir=DATA, **options)


def records(name: str = "question") -> list[dict[str, Any]]:
    lines = (DATA / "mt_bench" / f"{name}.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


def judged(task: Task, conversation: tuple[Example, ...], *responses: tuple[str, ...]) -> str:
    """The judge's prompt for the last turn of a conversation."""
    assert task.rubric is not None
    shown: Shown | None = None
    for example, texts in zip(conversation, responses, strict=True):
        shown = Shown(example, texts, shown)
    assert shown is not None
    return judge_task(task, task.rubric, [shown]).examples[0].prompt


def test_turns_are_those_of_the_file() -> None:
    found = [(example.id, example.prompt, example.group, example.cluster) for example in load().examples]
    assert found == [
        (f"{record['question_id']}:{number}", text, record["category"], str(record["question_id"]))
        for record in records()
        for number, text in enumerate(record["turns"], start=1)
    ]
    assert len(found) == 160


def test_references_are_those_of_the_file_and_blank_ones_are_none() -> None:
    wanted = {
        f"{record['question_id']}:{number}": text.strip()
        for record in records()
        for number, text in enumerate(record.get("reference", ()), start=1)
        if text.strip()
    }
    found = {example.id: example.accepted for example in load().examples if example.accepted}
    assert found == {key: (text,) for key, text in wanted.items()}
    assert len({key.partition(":")[0] for key in found}) == 39


def test_dev_and_held_out_share_no_conversation_and_both_have_all_categories() -> None:
    dev, held_out = load(split="dev").examples, load(split="held_out").examples
    assert (len(dev), len(held_out)) == (2 * 32, 2 * 48)
    assert not {example.cluster for example in dev} & {example.cluster for example in held_out}
    assert len({example.group for example in dev}) == len({example.group for example in held_out}) == 8
    for examples in (dev, held_out):
        assert all(second.earlier == first.id for first, second in list(pairwise(examples))[::2])


@pytest.mark.parametrize("form", ["single", "likelihood"])
def test_a_judge_reads_the_whole_conversation_and_the_references(form: str) -> None:
    task = load(f"mt_bench:{form}")
    turns = next(pair for pair in zip(task.examples[::2], task.examples[1::2], strict=True) if pair[0].id == "111:1")
    first, second = judged(task, turns[:1], ("ONE",)), judged(task, turns, ("ONE",), ("TWO",))
    parts = [turns[0].prompt, "Area is 3", "ONE", turns[1].prompt, "5pi", "TWO"]
    places = [second.index(part) for part in parts]
    assert places == sorted(places)
    assert [part in first for part in parts] == [True] * 3 + [False] * 3
    assert "take it as right" in second


def test_a_judge_that_compares_reads_both_conversations() -> None:
    task = load("mt_bench:pairwise")
    turns = task.examples[:2]
    prompt = judged(task, turns, ("A ONE", "B ONE"), ("A TWO", "B TWO"))
    order = ["A ONE", turns[1].prompt, "A TWO", "B ONE", "B TWO"]
    assert [prompt.index(part) for part in order] == sorted(prompt.index(part) for part in order)
    assert prompt.count(turns[0].prompt) == 2
    assert "take it as right" not in prompt
    assert "Reference" not in prompt


def test_equal_last_answers_are_a_tie_only_in_equal_conversations() -> None:
    first, second = load(limit=1).examples
    same, other = (Shown(second, ("so", "so"), Shown(first, texts)) for texts in (("a", "a"), ("a", "b")))
    assert (same.is_same, other.is_same, Shown(second, ("so", "no"), same).is_same) == (True, False, False)


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models that answer, one of them with a chat template, and one that judges."""
    folder = tmp_path_factory.mktemp("cast")
    for seed, name in enumerate(("chat", "plain", "judge"), start=2):
        tokenizer = byte_tokenizer((" the", "User", "Assistant"))
        tokenizer.chat_template = TEMPLATE if name == "chat" else None
        rate = 0.2 if name == "judge" else 0  # it has nothing to say, which takes the whole of its limit
        model = tiny_model(tokenizer, seed=seed, hidden=8, layers=1, eos_rate=rate, positions=16384)
        save_member(folder / name, model, tokenizer)
    return folder


def select(place: Place, cast: Path, task: str) -> Ran:
    place.pool(str(cast / "chat"), str(cast / "plain"))
    wide = ("--max-gap", "100", "--max-length-ratio", "1e9", "--limit", "2", "--max-new-tokens", "8")
    judge = ("--judge", str(cast / "judge"))
    return place.advisor(
        "select", "--pool", "models.txt", "--task", task, "--data", DATA, *wide, *judge, "--out", "run"
    )


@pytest.mark.parametrize(
    "task",
    [
        "mt_bench:likelihood",
        pytest.param("mt_bench", marks=pytest.mark.second_lane),
        pytest.param("mt_bench:pairwise", marks=pytest.mark.second_lane),
    ],
)
def test_a_run_with_a_local_judge(place: Place, cast: Path, task: str) -> None:
    ran = select(place, cast, task)
    assert ran.status == 0, ran.err
    assert [(each["n"], each["errors"]) for each in place.json()["candidates"]] == [(4, 0)] * 2
    lines = place.samples()
    assert Counter(line["id"][-2:] for line in lines) == {":1": 4, ":2": 4}
    if task == "mt_bench:likelihood":  # each turn has a grade, which differs with its response
        scores = [each["score"] for line in lines for each in line["responses"].values()]
        assert len(scores) == 16 and all(0 < score < 1 for score in scores) and len(set(scores)) > 8
