"""Data sets of a hub on this machine: the asked commit or a refusal, whatever the hub answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hubserver import commit_of, data_sets
from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from servers import Answer, Raw, as_json

from advisor.profile.loaded_models import silence_libraries
from advisor.tasks import load_task
from ensemble.errors import InputError
from ensemble.models.model_files import file_of
from ensemble.models.spec import Checkpoint

datasets = pytest.importorskip("datasets")
pytest_plugins = ["hubs"]
pytestmark = pytest.mark.usefixtures("no_pauses")

TASK = """
name: sums
data: {hub: org/sums, revision: REVISION, dev: train, held_out: test}
prompt: "{{question}}"
reference: "{{answer}}"
metric: number
"""
OPTIONS = {"text": ["w", "x", "y"], "label": ["A", "B", "C"]}
BUILTIN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gsm8k": ("openai/gsm8k", "main", {"question": "1 + 1?", "answer": "So.\n#### 2"}),
    "arc_challenge": ("allenai/ai2_arc", "ARC-Challenge", {"question": "?", "choices": OPTIONS, "answerKey": "B"}),
    "piqa": ("ybisk/piqa", "plain_text", {"goal": "?", "sol1": "x", "sol2": "y", "label": 1}),
    "bbh": ("SaylorTwift/bbh", "snarks navigate", {"input": "?", "target": "(B)"}),
    "mmlu": ("cais/mmlu", "all", {"question": "?", "subject": "law", "choices": ["w", "x", "y", "z"], "answer": 3}),
}


@pytest.fixture
def shelf(hub: Callable[[str], None], raw: Raw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The data sets of the hub, with nothing downloaded yet."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "data")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    url = raw.url.removesuffix("/v1")
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", url)
    hub(url)
    raw.answer = data_sets(tmp_path / "shelf")
    datasets.disable_progress_bars()
    yield tmp_path / "shelf"
    datasets.enable_progress_bars()


def put(folder: Path, names: str, record: dict[str, Any], number: int = 8) -> None:
    """Write configurations, each with the three usual splits."""
    card = "---\nconfigs:\n"
    for name in names.split():
        card += f"- config_name: {name}\n  data_files:\n"
        for split in ("train", "validation", "test", "dev"):
            card += f"  - {{split: {split}, path: {name}/{split}-*}}\n"
            (folder / name).mkdir(parents=True, exist_ok=True)
            text = next(iter(record))
            rows = [{**record, text: f"{split} {n}: {record[text]}"} for n in range(number)]
            pq.write_table(pa.Table.from_pylist(rows), folder / name / f"{split}-00000-of-00001.parquet")
    (folder / "README.md").write_text(f"{card}---\n", encoding="utf-8")


def sums(shelf: Path, revision: str) -> Any:
    """The task, at a revision."""
    path = shelf.parent / "sums.yaml"
    path.write_text(TASK.replace("REVISION", revision), encoding="utf-8")
    return load_task(str(path), split="dev")


def versions(shelf: Path) -> None:
    for revision, answer in (("old", "1"), ("main", "2")):
        put(shelf / "org/sums" / revision, "default", {"question": revision, "answer": answer})


@pytest.mark.parametrize("name", BUILTIN)
def test_a_built_in_task_is_the_same_from_an_empty_cache_a_full_one_and_without_the_hub(
    shelf: Path, hub: Callable[[str], None], raw: Raw, name: str
) -> None:
    where, configs, record = BUILTIN[name]
    put(shelf / where / ("refs~convert~parquet" if name == "piqa" else "main"), configs, record)
    first = load_task(name, split="dev", limit=4)
    asked = len(raw.asked)
    again = load_task(name, split="dev", limit=4)
    assert len(raw.asked) - asked <= 8 * len(configs.split())
    hub("http://127.0.0.1:9")
    away = load_task(name, split="dev", limit=4)
    assert first.examples == again.examples == away.examples
    commit = commit_of("refs/convert/parquet" if name == "piqa" else "main")
    assert first.origin == again.origin == away.origin == f"{where}@{commit}"


def test_a_revision_is_the_asked_one_or_it_is_refused_where_the_hub_is_away(
    shelf: Path, hub: Callable[[str], None]
) -> None:
    versions(shelf)
    for revision, answer in (("old", "1"), ("main", "2"), (commit_of("old"), "1"), ("main", "2")):
        assert {example.accepted[0] for example in sums(shelf, revision).examples} == {answer}
    hub("http://127.0.0.1:9")
    for revision in ("main", commit_of("main")):
        assert {example.accepted[0] for example in sums(shelf, revision).examples} == {"2"}
    for revision in ("old", commit_of("old"), "a3" * 20, "unknown"):
        with pytest.raises(InputError, match=r"the hub does not give org/sums at .* now, and only its commit"):
            sums(shelf, revision)


@pytest.mark.parametrize(
    "fault",
    [as_json({}, 429, **{"Retry-After": "0"}), as_json({}, 503), as_json({}, 429, RateLimit='"api";r=0;t=0')],
    ids=["429", "503", "rate"],
)
def test_a_fault_of_the_hub_that_passes_ends_nothing(shelf: Path, raw: Raw, fault: Answer) -> None:
    versions(shelf)
    sums(shelf, "old")
    well, left = raw.answer, [fault] * 3
    raw.answer = lambda path, body: left.pop() if left and "/api/" in path else well(path, body)
    assert {example.accepted[0] for example in sums(shelf, "main").examples} == {"2"}
    assert not left
    assert datasets.config.HF_HUB_OFFLINE is False


def test_only_a_file_that_the_hub_does_not_have_is_no_file(shelf: Path, raw: Raw) -> None:
    checkpoint, failing = Checkpoint("org/a"), as_json({}, 403)
    raw.answer = lambda _path, _body: as_json({}, 404, **{"X-Error-Code": "EntryNotFound", "X-Repo-Commit": "1" * 40})
    assert file_of(checkpoint, "model.safetensors.index.json") is None
    raw.answer = lambda _path, _body: failing
    with pytest.raises(InputError, match="cannot be read from the hub: it answers with 403"):
        file_of(checkpoint, "config.json")


def test_a_token_that_the_hub_refuses_is_named(shelf: Path, raw: Raw) -> None:
    versions(shelf)
    sums(shelf, "main")
    message = {"X-Error-Message": "Invalid credentials in Authorization header"}
    raw.answer = lambda _path, _body: as_json({"error": "Invalid username or password."}, 401, **message)
    with pytest.raises(InputError, match="the hub does not accept this token"):
        sums(shelf, "main")


def test_downloads_show_bars_unless_the_run_is_quiet() -> None:
    for quiet in (True, False):
        silence_libraries(quiet=quiet)
        assert are_progress_bars_disabled() == quiet


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "You must be authenticated to access it"), (403, "Visit the dataset page")],
)
def test_a_gated_data_set_is_told_the_way(shelf: Path, raw: Raw, status: int, message: str) -> None:
    versions(shelf)
    raw.answer = lambda _path, _body: as_json({"error": "gated"}, status, **{"X-Error-Code": "GatedRepo"})
    with pytest.raises(InputError, match=f"{message}.*; accept its terms on its page, and log in"):
        sums(shelf, "main")


def test_an_unknown_revision_of_a_data_set_is_told_the_way(shelf: Path) -> None:
    versions(shelf)
    with pytest.raises(InputError, match="org/sums: the hub has no revision never of it"):
        sums(shelf, "never")


def test_labels_that_are_kept_back_are_refused(shelf: Path) -> None:
    where, configs, record = BUILTIN["piqa"]
    put(shelf / where / "refs~convert~parquet", configs, {**record, "label": -1})
    with pytest.raises(InputError, match="the reference is empty"):
        load_task("piqa", split="test")
