"""Who is in which split: samples that grow, shots that are never asked, and dev and held-out that never meet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.tasks import Task, load_task
from ensemble.errors import InputError
from tests import taskfiles
from tests.logs import write_lines


def task_file(folder: Path, contents: dict[str, list[Any]], **keys: Any) -> Path:
    for name, questions in contents.items():
        records = [each if isinstance(each, dict) else {"question": f"q{each}", "answer": each} for each in questions]
        write_lines(folder / f"{name}.jsonl", records)
    data = {"dev": "dev.jsonl", "held_out": "held_out.jsonl"}
    return taskfiles.write(folder, **{"data": data, "metric": "number", **keys})


def asked(task: Task) -> set[str]:
    return {example.question for example in task.examples}


ONE_SOURCE = {"dev": "dev.jsonl", "held_out": "dev.jsonl"}


@pytest.mark.parametrize("shots", [0, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_dev_held_out_and_shots_of_one_source_never_meet(tmp_path: Path, shots: int, seed: int) -> None:
    path = task_file(tmp_path, {"dev": list(range(40))}, data=ONE_SOURCE, dev_size=10)
    dev, held_out = (load_task(path, split=split, shots=shots, seed=seed) for split in ("dev", "held_out"))
    assert len(dev.examples) == 10
    assert [int(each.question[1:]) for each in dev.examples] == sorted(int(each.question[1:]) for each in dev.examples)
    assert len(held_out.examples) == 30 - shots
    assert not asked(dev) & asked(held_out)
    for task in (dev, held_out):
        assert not any(
            line in asked(task) for line in (shot.split(" ")[0] for shot in task.examples[0].prefix.split("\n\n"))
        )
    assert dev.examples[0].prefix == held_out.examples[0].prefix


def test_a_limit_on_dev_does_not_let_dev_questions_into_held_out(tmp_path: Path) -> None:
    path = task_file(tmp_path, {"dev": list(range(40))}, data=ONE_SOURCE, dev_size=10)
    assert asked(load_task(path, split="held_out", limit=5)).isdisjoint(asked(load_task(path)))


def test_the_dev_sample_does_not_change_with_the_number_of_shots(tmp_path: Path) -> None:
    path = task_file(tmp_path, {"dev": list(range(40)), "held_out": [100]}, dev_size=10)
    assert asked(load_task(path, shots=0)) == asked(load_task(path, shots=20))


def test_dev_questions_are_taken_out_of_an_overlapping_held_out_file_and_it_is_said(tmp_path: Path) -> None:
    path = task_file(tmp_path, {"dev": [1, 2, 3], "held_out": [1, 2, 3, 4, 5]})
    task = load_task(path, split="held_out")
    assert asked(task) == {"q4", "q5"}
    assert task.notes == ("held_out: 3 of 5 questions left out, because they are in dev or are shots",)


def test_shots_from_a_file_of_their_own_are_taken_out_of_every_split(tmp_path: Path) -> None:
    data = {"dev": "dev.jsonl", "held_out": "held_out.jsonl", "shots": "demos.jsonl"}
    path = task_file(tmp_path, {"dev": [1, 2], "held_out": [3, 4], "demos": [2, 3]}, data=data, shots=2)
    assert asked(load_task(path)) == {"q1"}
    assert asked(load_task(path, split="held_out")) == {"q4"}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_shots_that_are_all_there_are_keep_their_order(tmp_path: Path, seed: int) -> None:
    data = {"dev": "dev.jsonl", "held_out": "held_out.jsonl", "shots": "demos.jsonl"}
    path = task_file(tmp_path, {"dev": [1], "held_out": [2], "demos": [9, 7, 8]}, data=data, shots=3)
    assert [shot.split(" ")[0] for shot in load_task(path, seed=seed).examples[0].prefix.split("\n\n")[:-1]] == [
        "q9",
        "q7",
        "q8",
    ]


def test_a_new_record_moves_no_other_and_demonstrations_differ(tmp_path: Path) -> None:
    before, after = (
        load_task(task_file(tmp_path, {"dev": [*range(20), *more, *range(5)], "held_out": [100]}), shots=19, limit=99)
        for more in ((), (50,))
    )
    for task in (before, after):
        shown = [shot.split(" ")[0] for shot in task.examples[0].prefix.split("\n\n")[:-1]]
        assert len(set(shown)) == len(shown) == 19
    without = load_task(task_file(tmp_path, {"dev": [*range(20)], "held_out": [100]}), limit=99).examples
    with_one = load_task(task_file(tmp_path, {"dev": [*range(20), 50], "held_out": [100]}), limit=99).examples
    assert [each.question for each in with_one if each.question != "q50"] == [each.question for each in without]


def test_limits_grow_and_seeds_decide(tmp_path: Path) -> None:
    path = task_file(tmp_path, {"dev": list(range(40)), "held_out": [100]})
    fifty, five = load_task(path, limit=30), load_task(path, limit=5)
    assert fifty.examples[:5] == five.examples
    assert load_task(path, limit=5) == five
    assert load_task(path, limit=5, seed=1).examples != five.examples


def test_a_limit_above_what_there_is_takes_all_and_says_so(tmp_path: Path) -> None:
    path = task_file(tmp_path, {"dev": [1, 2, 3], "held_out": [100]})
    task = load_task(path, limit=5)
    assert len(task.examples) == 3
    assert task.notes == ("dev: the limit is 5, and there are only 3 questions",)


def test_a_split_of_the_data_is_taken_whole(tmp_path: Path) -> None:
    data = {"dev": "dev.jsonl", "held_out": "held_out.jsonl", "test": "test.jsonl"}
    path = task_file(tmp_path, {"dev": [1], "held_out": [2], "test": [1, 2, 3]}, data=data)
    assert asked(load_task(path, split="test")) == {"q1", "q2", "q3"}


@pytest.mark.parametrize("held_out", [[], [1, 2]])
def test_a_split_without_questions_is_refused(tmp_path: Path, held_out: list[int]) -> None:
    path = task_file(tmp_path, {"dev": [1, 2], "held_out": held_out})
    with pytest.raises(InputError, match=r"sums\.yaml: the split 'held_out' has no"):
        load_task(path, split="held_out")


def test_ids_are_the_records_own_or_split_and_index(tmp_path: Path) -> None:
    records = [
        {"id": "a", "question": "x", "answer": "1"},
        {"question": "y", "answer": "2"},
        {"id": 7, "question": "z", "answer": "3"},
    ]
    path = task_file(tmp_path, {"dev": records, "held_out": [100]})
    assert [example.id for example in load_task(path).examples] == ["a", "dev-1", "7"]


def test_a_record_that_repeats_an_earlier_one_with_its_id_is_left_out(tmp_path: Path) -> None:
    records = [{"id": n, "question": n, "answer": n} for n in (1, 2, 2)]
    task = load_task(task_file(tmp_path, {"dev": records, "held_out": [100]}))
    assert [example.id for example in task.examples] == ["1", "2"]
    assert "dev: 1 of 3 records left out, because each repeats an earlier one with the same id" in task.notes[0]


@pytest.mark.parametrize(("keys", "notes"), [({}, 1), ({"cluster": "question"}, 0)])
def test_repeated_questions_without_a_cluster_are_said(tmp_path: Path, keys: dict[str, Any], notes: int) -> None:
    task = load_task(task_file(tmp_path, {"dev": [1, 2, 2], "held_out": [100]}, **keys))
    assert len(task.examples) == 3
    assert sum("dev: 1 of 3 questions repeat an earlier one" in note for note in task.notes) == notes


def test_an_id_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = task_file(tmp_path, {"dev": [{"id": [1], "question": 1, "answer": 1}], "held_out": [100]})
    with pytest.raises(InputError, match=r"dev\.jsonl:1: the id must be text"):
        load_task(path)


@pytest.mark.parametrize("dev_size", [None, 25])
def test_one_file_for_dev_and_held_out_is_halved_at_most(tmp_path: Path, dev_size: int | None) -> None:
    keys = {} if dev_size is None else {"dev_size": dev_size}
    path = task_file(tmp_path, {"dev": list(range(41))}, data=ONE_SOURCE, **keys)
    task = load_task(path)
    assert len(task.examples) == 20
    assert task.notes == ("dev: 20 of the 41 questions that it shares with held_out; the rest is held out",)
    assert len(load_task(path, split="held_out").examples) == 21


def passages(sizes: list[int]) -> list[dict[str, Any]]:
    """Records in passages of these sizes."""
    owners = [number for number, size in enumerate(sizes) for _ in range(size)]
    return [{"question": f"q{n}", "answer": n, "passage_id": f"p{owner}"} for n, owner in enumerate(owners)]


def clusters_in(path: Path, split: str, seed: int = 0) -> set[str | None]:
    return {example.cluster for example in load_task(path, split=split, seed=seed).examples}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("dev_size", [None, 7])
def test_the_questions_of_a_cluster_are_on_one_side_of_one_file(
    tmp_path: Path, seed: int, dev_size: int | None
) -> None:
    keys = {} if dev_size is None else {"dev_size": dev_size}
    path = task_file(tmp_path, {"dev": passages([4] * 10)}, data=ONE_SOURCE, cluster="passage_id", **keys)
    dev, held_out = (clusters_in(path, split, seed) for split in ("dev", "held_out"))
    assert dev
    assert not dev & held_out
    assert len(dev | held_out) == 10


def test_the_note_on_a_shared_file_has_the_questions_of_whole_clusters(tmp_path: Path) -> None:
    path = task_file(tmp_path, {"dev": passages([4, 4, 4])}, data=ONE_SOURCE, cluster="passage_id")
    task = load_task(path)
    # One cluster is drawn even if all are larger than asked for: then it is the smallest.
    large = task_file(tmp_path, {"dev": passages([6, 3, 6])}, data=ONE_SOURCE, cluster="passage_id", dev_size=2)
    assert len(load_task(large).examples) == 3
    assert len(task.examples) == 4
    assert task.notes == ("dev: 4 of the 12 questions that it shares with held_out; the rest is held out",)


def test_a_shared_file_of_one_cluster_is_refused(tmp_path: Path) -> None:
    path = task_file(tmp_path, {"dev": passages([8])}, data=ONE_SOURCE, cluster="passage_id")
    with pytest.raises(InputError, match=r"sums\.yaml: all questions .* are in one cluster, 'p0'"):
        load_task(path)


def test_clusters_in_two_files_are_both_kept_and_it_is_said(tmp_path: Path) -> None:
    # They may be numbered from 0 in each file, so equal names need not be the same passage.
    records = passages([3, 3, 3])
    path = task_file(tmp_path, {"dev": records[:4], "held_out": records[4:]}, cluster="passage_id")
    task = load_task(path, split="held_out")
    assert len(task.examples) == 5
    assert task.notes == ("held_out: 2 of 5 questions are in a cluster that dev has, too; they are kept",)
