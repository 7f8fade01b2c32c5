"""Files of strangers: each log is claimed by its format alone, and a changed file gives records or one line."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.logs.record import LogOptions
from advisor.logs.sources import LogFile, get_format
from benchmarks._fuzz_changes import mutated_json, mutated_lines
from ensemble.errors import InputError

POOLS = Path(__file__).resolve().parents[1].parent / "shared" / "pools"
FORMATS = ("run_folder", "pool")
ANSWER = {"text": "It is 2", "extracted": "2", "score": 1.0, "length": 7, "finish_reason": "eos", "error": None}
LINE = {
    "id": "a",
    "prompt": "1 + 1?",
    "reference": ["2"],
    "split": "dev",
    "responses": {"m": ANSWER},
    "ensemble": ANSWER,
}
RESULT = {"task": {"name": "t", "metric": "number"}, "ensemble": {"method": "unite", "members": [{"model": "m"}]}}
POOL = {"id": 7, "question": "1 + 1?", "group": "g", "reference": "2", "models": {"m": ["3", 0, 12], "n": [None, 1, 9]}}


def lines(*values: object) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


SEEDS: dict[str, tuple[str, bytes, Callable[[bytes, random.Random], bytes]]] = {
    "run_folder": ("samples.jsonl", lines(LINE, LINE), mutated_lines),
    "result": ("result.json", json.dumps(RESULT).encode(), mutated_json),
    "pool": ("p.jsonl", lines(POOL, POOL), mutated_lines),
}


def claims(files: list[LogFile]) -> dict[str, set[Path]]:
    return {name: {source.path for source in get_format(name).recognise(files, [])} for name in FORMATS}


def test_real_logs_are_claimed_by_their_format_alone() -> None:
    if not POOLS.exists():
        pytest.skip("../shared/pools is not here")
    files = [LogFile(path, given=False) for path in sorted(POOLS.rglob("*")) if path.is_file()]
    assert claims(files) == {
        "run_folder": set(),
        # The others have a line for each model and question, and columns with names of their own.
        "pool": {
            path
            for path in POOLS.glob("*.jsonl.xz")
            if not path.match("*.table.jsonl.xz") and not path.match("wmt24-*")
        },
    }


@pytest.mark.parametrize("kind", FORMATS)
def test_seeds_are_claimed_by_their_format_alone(tmp_path: Path, kind: str) -> None:
    name, seed, _ = SEEDS[kind]
    (tmp_path / name).write_bytes(seed)
    found = claims([LogFile(tmp_path / name, given=True)])
    assert found == {other: {tmp_path / name} if other == kind else set() for other in FORMATS}


@settings(max_examples=200, deadline=None)
@given(kind=st.sampled_from(sorted(SEEDS)), chance=st.randoms(use_true_random=False))
def test_a_changed_log_gives_records_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, kind: str, chance: random.Random
) -> None:
    folder = tmp_path_factory.getbasetemp() / "changed-logs"
    folder.mkdir(exist_ok=True)
    for name, seed, _ in SEEDS.values():
        (folder / name).write_bytes(seed)
    name, seed, mutate = SEEDS[kind]
    (folder / name).write_bytes(mutate(seed, chance))
    module = get_format("run_folder" if kind == "result" else kind)
    changed = "samples.jsonl" if kind == "result" else name
    for source in module.recognise([LogFile(folder / changed, given=True)], []):
        notes: list[str] = []
        try:
            records = list(module.read(source, LogOptions(), notes))
        except InputError as error:
            assert "\n" not in str(error)
            continue
        for record in records:
            assert record.model.isprintable()
            assert record.score is None or 0 <= record.score <= 1
            for text in (record.id, record.task, record.question, record.response, record.extracted, record.group):
                assert text is None or text.encode() is not None  # no halves of surrogate pairs
