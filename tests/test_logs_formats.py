"""Which format claims which log, and what the readers do with logs that are changed or of another form."""

from __future__ import annotations

import json
import random
import re
import zipfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.logs.sources import LogOptions, find_sources, records_of
from benchmarks._fuzz_changes import mutated_bytes, mutated_json, mutated_lines
from ensemble.errors import InputError
from tests import (
    test_logs_every_eval_ever,
    test_logs_helm,
    test_logs_inspect,
    test_logs_lm_eval,
    test_logs_pool,
    test_logs_run_folder,
)
from tests.logs import REAL, needs_logs, read, recognise

FORMATS = ("lm_eval", "inspect", "helm", "every_eval_ever", "run_folder", "pool")
WITHOUT_RESPONSES = ("data_with_llm_scoring.json", "98ea850e-7019", "676f4465-ce78")
FOLDERS = {"lm-eval": "lm_eval", "inspect": "inspect", "helm": "helm", "every-eval-ever": "every_eval_ever"}


def real_logs() -> list[Path]:
    """Files that are logs by themselves, without those that are read with another."""
    companions = ("results_*", "run_spec*", "per_instance_stats*", "scenario.json", "stats.json", "f3a1c0de*40.json")
    files = [path for path in REAL.rglob("*") if path.is_file() and path.suffix in (".json", ".jsonl", ".eval", ".zip")]
    return sorted(path for path in files if not any(path.match(name) for name in companions))


@pytest.mark.parametrize("path", real_logs(), ids=lambda path: path.name)
def test_a_real_log_is_claimed_by_its_format_only_also_under_another_name(path: Path, tmp_path: Path) -> None:
    expected = [FOLDERS.get(path.relative_to(REAL).parts[0])]
    if path.name.startswith(WITHOUT_RESPONSES):
        expected = []
    copy = tmp_path / "copy.dat"
    copy.write_bytes(path.read_bytes())
    assert [name for name in FORMATS if recognise(name, path)[0]] == [name for name in expected if name]
    assert [bool(recognise(name, copy)[0]) for name in FORMATS] == [bool(recognise(name, path)[0]) for name in FORMATS]


@needs_logs
def test_real_folders_are_read_together() -> None:
    sources = [source for folder in FOLDERS for source in find_sources([str(REAL / folder)], [])]
    counts = {name: sum(source.format == name for source in sources) for name in FORMATS}
    assert counts == {"lm_eval": 9, "inspect": 9, "helm": 3, "every_eval_ever": 1, "run_folder": 0, "pool": 0}


def test_real_pools_are_claimed_by_their_format_alone() -> None:
    if not test_logs_pool.POOLS.exists():
        pytest.skip("../shared/pools is not here")
    # The others have a line for each model and question, and columns with names of their own.
    others = ("*.table.jsonl.xz", "wmt24-*")
    for path in sorted(test_logs_pool.POOLS.glob("*.jsonl.xz")):
        claimed = [] if any(path.match(name) for name in others) else ["pool"]
        assert [name for name in FORMATS if recognise(name, path)[0]] == claimed


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\n", b"{", b"[" * 100_000, b"\x00" * 99, b"PK\x03\x04", b"\xff\xfe{", b'{"eval": 1}', b"[{}]",
        b"a,b\n1,2\n", b'{"id": 1, "models": {"small": "3"}}', b'{"id": 1, "responses": {}}',
    ],
    ids=range(12),
)  # fmt: skip
def test_other_files_are_not_claimed(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(data)
    assert [recognise(name, path)[0] for name in FORMATS] == [[]] * len(FORMATS)


@cache
def seeds() -> dict[str, dict[str, bytes]]:
    """For each format, small files of it by name."""

    def lines(*values: object) -> bytes:
        return "".join(f"{json.dumps(value)}\n" for value in values).encode()

    helm, lm_eval = test_logs_helm, test_logs_lm_eval
    state = {"adapter_spec": helm.ADAPTER, "request_states": [helm.state(), helm.state("id2")]}
    return {
        "lm_eval": {
            f"samples_sums_{lm_eval.TIME}.jsonl": lines(lm_eval.line(), lm_eval.choice(1), lm_eval.choice(2)),
            f"results_{lm_eval.TIME}.json": json.dumps(lm_eval.RESULTS).encode(),
        },
        "inspect": {
            "log.json": json.dumps({**test_logs_inspect.HEADER, "samples": [test_logs_inspect.sample()] * 2}).encode()
        },
        "helm": {
            "scenario_state.json": json.dumps(state).encode(),
            "run_spec.json": json.dumps(helm.SPEC).encode(),
            "per_instance_stats.json": json.dumps([helm.stats(), helm.stats("id2", f1_score=0.5)]).encode(),
        },
        "every_eval_ever": {"abc_samples.jsonl": lines(test_logs_every_eval_ever.line())},
        "run_folder": {
            "samples.jsonl": lines(test_logs_run_folder.LINE, test_logs_run_folder.LINE),
            "result.json": json.dumps(test_logs_run_folder.RESULT).encode(),
        },
        "pool": {"p.jsonl": lines(test_logs_pool.LINE, test_logs_pool.LINE)},
    }


@pytest.mark.parametrize("name", [*FORMATS, "table"])
def test_a_model_whose_name_controls_the_terminal_is_refused(name: str, tmp_path: Path) -> None:
    files = seeds().get(name) or {"a.csv": b"id,model,score\n1,small,1\n"}
    for file, data in files.items():
        named = "a\x1b[2J" if file.endswith(".csv") else "a\\u001b[2J"
        (tmp_path / file).write_bytes(re.sub(rb"org/small|\bsmall\b", named.replace("\\", "\\\\").encode(), data))
    with pytest.raises(InputError, match=r"the model's name 'a\\x1b\[2J'"):
        read(name, tmp_path)


@pytest.mark.parametrize("name", ["lm_eval", "every_eval_ever"])
def test_a_first_line_longer_than_the_head_is_recognised(name: str, tmp_path: Path) -> None:
    for file, data in seeds()[name].items():
        (tmp_path / file).write_bytes(re.sub(rb"\b[01] \+ 1\?", b"?" * 100_000, data))
    assert len(recognise(name, tmp_path)[0]) == 1


def read_all(name: str, folder: Path, options: LogOptions) -> None:
    """Read what a format claims, and check what later steps need."""
    notes: list[str] = []
    try:
        sources, notes = recognise(name, folder)
        for source in sources:
            for record in records_of(source, options, notes):
                assert record.score is None or 0 <= record.score <= 1
                assert record.model.isprintable()
                texts = (record.question, record.response, record.extracted, record.error, record.group, record.metric)
                for text in (record.task, record.id, *record.choices, *texts):
                    (text or "").encode()  # half a surrogate pair cannot be written to a file
    except InputError as error:
        assert "\n" not in str(error)
    assert not any("\n" in note for note in notes)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=33, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_changed_logs_give_records_or_one_line(name: str, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    files = dict(seeds()[name])
    changed = chance.choice(list(files))
    mutate = mutated_lines if changed.endswith(".jsonl") else mutated_json
    files[changed] = mutate(files[changed], chance)
    for file, data in files.items():
        (tmp_path / file).write_bytes(data)
    score = chance.choice((None, None, "exact_match"))
    read_all(name, tmp_path, LogOptions(score=score, cluster=chance.choice((None, "passage"))))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, 93])
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_changed_zip_files_give_records_or_one_line(method: int, seed: int, tmp_path: Path) -> None:
    import inspect_ai.log  # noqa: F401  # so that zip files can be compressed with zstd

    sample = json.dumps(test_logs_inspect.sample()).encode()
    path = test_logs_inspect.zipped(tmp_path, {f"samples/{n}_epoch_1.json": sample for n in (1, 2)}, method)
    path.write_bytes(mutated_bytes(path.read_bytes(), random.Random(seed)))
    read_all("inspect", tmp_path, LogOptions())
