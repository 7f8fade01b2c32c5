"""Every built-in task on its real files, from the command to the advice, with two tiny models of long context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pools import Place
from tiny import byte_tokenizer, save_member, tiny_model

from advisor import sandbox
from advisor.tasks import list_tasks
from ensemble.errors import UniteError

pytest_plugins = ["pools"]
DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models that hold any task's longest question, a byte a token; one of them has words too.

    These seeds begin no response with a line's end, where several tasks stop: who writes nothing joins no set.
    """
    folder = tmp_path_factory.mktemp("pair")
    tokenizers = {"bytes": byte_tokenizer(), "words": byte_tokenizer((" the", "Question", "Answer"))}
    return [
        save_member(
            folder / name, tiny_model(tokenizer, seed=seed, hidden=8, layers=1, eos_rate=0, positions=16384), tokenizer
        )
        for seed, (name, tokenizer) in enumerate(tokenizers.items(), start=2)
    ]


def can_run_programs() -> bool:
    """Whether this system has what running a model's programs takes."""
    try:
        sandbox.gaps()
    except UniteError:
        return False
    return True


def load_keys(name: str) -> dict[str, Any]:
    """The task file of a built-in task."""
    file = next(task.file for task in list_tasks() if task.name == name)
    keys: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return keys


@pytest.mark.parametrize("task", [task.name for task in list_tasks()])
def test_a_built_in_task_runs_from_its_files_to_the_advice(
    task: str, place: Place, pair: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if task != "word_problems" and not DATA.is_dir():
        pytest.skip("needs the benchmark files in ../shared/data")
    if task == "mbpp" and not can_run_programs():
        pytest.skip("this system cannot confine programs")
    monkeypatch.setenv("ADVISOR_WEAK_SANDBOX", "1")
    pool = place.pool(*map(str, pair))
    data = () if task == "word_problems" else ("--data", DATA)
    # A set of both, whatever random models score: the limits are wide.
    wide = ("--max-gap", "100", "--max-length-ratio", "1e9")
    few = ("--limit", "2", "--shots", "0", "--max-new-tokens", "4")
    judge = ("--judge", pair[0]) if load_keys(task)["metric"] == "judge" else ()
    turns = 2 if "follow_ups" in load_keys(task) else 1
    ran = place.advisor(
        *("select", "--pool", pool, "--task", task, *data, *few, *wide, *judge, "--out", "run"),
        "--allow-code-execution",
    )
    assert ran.status == 0, ran.err
    result = place.json()
    assert [(one["n"], one["errors"]) for one in result["candidates"]] == [(2 * turns, 0)] * 2
    assert len(result["selected"]) == 2
    assert (result["ensemble"]["n"], result["ensemble"]["errors"]) == (2 * turns, 0)
    assert result["advice"]["verdict"] in ("better", "worse", "unclear")
