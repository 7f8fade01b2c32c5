"""The built-in tasks on the real files, with the known defects of those files as cases."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from advisor.tasks import Task, list_tasks, load_task
from ensemble.errors import InputError

DATA = Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs the benchmark files in ../shared/data")


@cache
def loaded(name: str, split: str = "dev") -> Task:
    return load_task(name, split=split, data_dir=DATA)


def questions(name: str, split: str) -> list[str]:
    return [example.question for example in loaded(name, split).examples]


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
def test_gsm8k_has_four_shots_without_calculator_annotations() -> None:
    task = load_task("gsm8k", split="test", data_dir=DATA, limit=3)
    assert (
        task.shots
        == task.examples[0].prefix.count("\nThe answer is ")
        == task.examples[0].prefix.count("Question: ")
        == 4
    )
    assert "<<" not in task.examples[0].prefix
    assert "####" not in task.examples[0].prefix
    assert all(example.prompt == example.prefix + example.question for example in task.examples)


def test_word_problems_reads_the_demos_data_and_takes_the_stated_answer(tmp_path: Path) -> None:
    built_in = next(task.file for task in list_tasks() if task.name == "word_problems")
    (tmp_path / "demo" / "data").mkdir(parents=True)
    (tmp_path / "demo" / "word_problems.yaml").write_bytes(built_in.read_bytes())
    for number, split in enumerate(("dev", "held_out", "test")):
        record = {"id": f"{split}-a", "question": f"{number} + 1?", "terse": "", "steps": "", "answer": number + 1}
        (tmp_path / "demo" / "data" / f"{split}.jsonl").write_text(json.dumps(record), encoding="utf-8")
        task = load_task(tmp_path / "demo" / "word_problems.yaml", split=split)
        assert [(example.id, example.prompt) for example in task.examples] == [
            (f"{split}-a", f"Question: {number} + 1?\nAnswer:")
        ]
        assert (task.stop, task.max_new_tokens, task.shots) == (("\n",), 64, 0)
        assert task.score(task.examples[0], f"9 things. The answer is {number + 1}, not 8.").value == 1
        assert task.score(task.examples[0], f"{number + 1}").extracted is None


PAPERS = ["arc_challenge", "bbh", "flores", "flores_bleu", "gsm8k", "mmlu", "nq_open", "piqa", "triviaqa"]


def test_the_papers_tasks_are_all_there() -> None:
    assert {task.name for task in list_tasks()} == {*PAPERS, "mbpp", "mt_bench", "vicuna_bench", "word_problems"}
    assert all(task.summary and task.name == task.file.stem for task in list_tasks())


@needs_data
@pytest.mark.parametrize("name", [*PAPERS, "mbpp"])
def test_splits_share_nothing_and_accepted_texts_score_one(name: str) -> None:
    dev = loaded(name)
    if name != "flores_bleu":  # it has the data of flores
        held_out = loaded(name, "held_out")
        asked = {example.question for example in dev.examples}
        assert not asked & {example.question for example in held_out.examples}
        assert dev.examples[0].prefix == held_out.examples[0].prefix
        assert not any(example.question in dev.examples[0].prefix for example in dev.examples + held_out.examples)
    for example in dev.examples[:200] if name != "mbpp" else ():
        assert all(dev.score(example, f" {text}").value == 1 for text in example.accepted)


@needs_data
@pytest.mark.parametrize(("split", "asked", "skipped"), [("train", 1096, 23), ("test", 1150, 22)])
def test_arcs_records_without_options_are_left_out_and_it_is_said(split: str, asked: int, skipped: int) -> None:
    task = load_task("arc_challenge", split=split, data_dir=DATA)
    assert len(task.examples) == asked
    assert task.notes[0].startswith(
        f"{split}: {skipped} of {asked + skipped} records left out, because options are empty"
    )


@needs_data
def test_arcs_questions_with_three_options_are_asked_with_three() -> None:
    task = load_task("arc_challenge:letters", split="test", data_dir=DATA)
    few = [example for example in task.examples if len(example.choices) == 3]
    assert len(few) == 3
    assert all("\nC. " in example.prompt and "\nD." not in example.prompt for example in few)


@needs_data
def test_mmlu_has_57_subjects_whose_lines_are_whole() -> None:
    task = load_task("mmlu", split="test", data_dir=DATA)
    groups = Counter(example.group for example in task.examples)
    # Five questions of test are among the shots of their subject.
    assert (len(task.examples), len(groups)) == (14037, 57)
    assert (groups["professional law"], groups["management"]) == (1534, 103)  # management has a U+0085
    assert Counter(e.group for e in loaded("mmlu").examples)["nutrition"] == 33


@needs_data
def test_one_subject_of_mmlu_has_shots_of_its_own() -> None:
    task = load_task("mmlu:anatomy", split="test", data_dir=DATA)
    assert (task.name, len(task.examples)) == ("mmlu:anatomy", 135)
    own = [record["question"] for record in records("mmlu/dev/anatomy.jsonl")]
    first, *shots, rest = task.examples[0].prefix.split("\n\n")
    assert first == "The following are multiple choice questions (with answers) about anatomy."
    assert [shot.split("\n")[0] for shot in shots] == own
    assert rest == ""


@needs_data
def test_piqas_local_copy_is_the_official_validation_split() -> None:
    task = load_task("piqa", split="validation", data_dir=DATA)
    labels = (DATA / "piqa" / "valid-labels.lst").read_text(encoding="utf-8").split()
    assert [example.reference for example in task.examples] == ["AB"[int(label)] for label in labels]
    assert [example.choices for example in task.examples] == [
        (r["sol1"], r["sol2"]) for r in records("piqa/valid.jsonl")
    ]


@needs_data
def test_nq_takes_any_accepted_answer_and_shots_with_a_single_one() -> None:
    task = loaded("nq_open", "held_out")
    assert len(task.examples) == 3610
    assert task.examples[0].accepted == ("14 December 1972 UTC", "December 1972")
    assert "Answer: Prince\n\n" in task.examples[0].prefix


@needs_data
def test_bbhs_27_tasks_are_scored_also_where_the_target_is_no_letter() -> None:
    task = load_task("bbh", split="test", data_dir=DATA, shots=0)
    assert len(task.examples) == 6511
    assert len({example.group for example in task.examples}) == 27
    odd = {"Monsters, Inc", "dearth, wind, & fire", "rita, sue and bob poo", "(A)", "] )", "No"}
    seen = {str(example.reference): example for example in task.examples}
    for reference in odd:
        assert [task.score(seen[reference], other).value for other in sorted(odd)] == [
            other == reference for other in sorted(odd)
        ]
    assert "canary" not in task.examples[0].prompt


@needs_data
def test_flores_pairs_the_lines_of_any_two_languages() -> None:
    task = load_task("flores:ron-eng", split="devtest", data_dir=DATA, shots=0)
    english, romanian = (
        (DATA / "flores101" / "devtest" / f"{language}.devtest").read_text(encoding="utf-8").split("\n")
        for language in ("eng", "ron")
    )
    assert len(task.examples) == 1012
    assert [example.prompt for example in task.examples] == [f"Romanian: {line}\nEnglish:" for line in romanian[:-1]]
    assert [example.reference for example in task.examples] == english[:-1]


@needs_data
@pytest.mark.parametrize(
    ("name", "message"),
    [("mmlu:anatmy", "anatmy.jsonl does not exist"), ("flores:eng", "fails on the variant in the task's name")],
)
def test_a_variant_that_is_not_there_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        load_task(name, data_dir=DATA)


def test_flores_without_local_data_says_so() -> None:
    with pytest.raises(
        InputError, match=r"not on the hub; give --data the folder that holds flores101/devtest/eng\.devtest"
    ):
        load_task("flores")
