"""Data sets of a hub on this machine: the asked commit or a refusal, whatever the hub answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hubserver import commit_of, data_sets
from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from pools import Place
from servers import Answer, Raw, as_json

from advisor.models.loaded_models import silence_libraries
from advisor.tasks import load_task
from ensemble.errors import InputError
from ensemble.models.hub import file_of, told
from ensemble.models.spec import Checkpoint

datasets = pytest.importorskip("datasets")
pytest_plugins = ["pools", "hubs"]
pytestmark = pytest.mark.usefixtures("no_pauses")

TASK = """
name: sums
data: {hub: org/sums, revision: REVISION, dev: train, held_out: test}
prompt: "{{question}}"
reference: "{{answer}}"
metric: number
"""
CARD = "{config}/{split}-00000-of-00001.parquet"
CONVERTED = "plain_text/{split}/0000.parquet"
"""The branch that the hub converts has no card."""
OPTIONS = {"text": ["w", "x", "y"], "label": ["A", "B", "C"]}
MMLU = {"question": "?", "subject": "law", "choices": ["w", "x", "y", "z"], "answer": 3}
MBPP = {"text": "Add.", "task_id": 0, "code": "x = 1", "test_setup_code": "", "test_list": ["assert x"]}
BUILTIN: dict[str, tuple[str, str, str, str, dict[str, Any]]] = {
    "gsm8k": ("openai/gsm8k", CARD, "main socratic", "train test", {"question": "1 + 1?", "answer": "So.\n#### 2"}),
    "arc_challenge": (
        *("allenai/ai2_arc", CARD, "ARC-Challenge ARC-Easy", "train validation test"),
        {"question": "?", "choices": OPTIONS, "answerKey": "B"},
    ),
    "piqa": (
        "ybisk/piqa",
        CONVERTED,
        "default",
        "train validation test",
        {"goal": "?", "sol1": "x", "sol2": "y", "label": 1},
    ),
    "bbh": ("SaylorTwift/bbh", CARD, "snarks navigate", "test", {"input": "?", "target": "(B)"}),
    "mmlu": ("cais/mmlu", CARD, "all anatomy", "test validation dev auxiliary_train", MMLU),
    "triviaqa": (
        *("mandarjoshi/trivia_qa", CARD, "rc rc.wikipedia.nocontext", "train validation test"),
        {"question": "?", "answer": {"value": "x", "aliases": ["x", "y"]}},
    ),
    "nq_open": (
        "google-research-datasets/nq_open",
        CARD,
        "nq_open",
        "train validation",
        {"question": "?", "answer": ["x"]},
    ),
    "mbpp": ("google-research-datasets/mbpp", CARD, "full sanitized", "train test validation prompt", MBPP),
    "mt_bench": (
        *("HuggingFaceH4/mt_bench_prompts", "data/{split}-00000-of-00001-8c21b39c70ed0ac3.parquet", "default", "train"),
        {"category": "math", "prompt_id": 0, "prompt": ["?", "And?"], "reference": ["x", "y"]},
    ),
}
"""The layout of each on the hub: its id, files, configurations, splits, and a record."""
READ: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gsm8k": ((), ("2",)),
    "arc_challenge": (("w", "x", "y"), ("B",)),
    "piqa": (("x", "y"), ("B",)),
    "bbh": ((), ("(B)",)),
    "mmlu": (("w", "x", "y", "z"), ("D",)),
    "triviaqa": ((), ("x", "y")),
    "nq_open": ((), ("x",)),
    "mbpp": ((), ("assert x",)),
    "mt_bench": ((), ("x",)),
}
"""The options and the accepted texts of this record."""
FIRST_IDS = {"train": 601, "test": 11, "validation": 511, "prompt": 2}
"""The numbers of MBPP's tasks."""


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


def put(folder: Path, place: str, configs: str, splits: str, record: dict[str, Any]) -> None:
    """Write the files of a data set, and its card where the files are those of a card."""
    card = "---\nconfigs:\n"
    for config in configs.split():
        card += f"- config_name: {config}\n  data_files:\n"
        for split in splits.split():
            card += f"  - {{split: {split}, path: {config}/{split}-*}}\n"
            path = folder / place.format(config=config, split=split)
            path.parent.mkdir(parents=True, exist_ok=True)
            text, ids = next(iter(record)), [key for key in record if key.endswith("_id")]
            rows = [
                {**record, text: f"{split} {n}: {record[text]}"} | dict.fromkeys(ids, FIRST_IDS.get(split, 0) + n)
                for n in range(6)
            ]
            pq.write_table(pa.Table.from_pylist(rows), path)
    if place == CARD:
        (folder / "README.md").write_text(f"{card}---\n", encoding="utf-8")


def sums(shelf: Path, revision: str, old: str = "", new: str = "") -> Any:
    """The task at a revision, with another text in its file."""
    path = shelf.parent / "sums.yaml"
    path.write_text(TASK.replace("REVISION", revision).replace(old, new), encoding="utf-8")
    return load_task(str(path), split="dev")


def versions(shelf: Path) -> None:
    for revision, answer in (("old", "1"), ("main", "2")):
        put(shelf / "org/sums" / revision, CARD, "default", "train test", {"question": revision, "answer": answer})


@pytest.mark.parametrize("name", BUILTIN)
def test_a_built_in_task_is_the_same_from_an_empty_cache_a_full_one_and_without_the_hub(
    shelf: Path, hub: Callable[[str], None], raw: Raw, name: str
) -> None:
    where, *layout = BUILTIN[name]
    revision = "refs/convert/parquet" if name == "piqa" else "main"
    put(shelf / where / revision.replace("/", "~"), *layout)
    first = load_task(name, split="dev", limit=3)
    downloads = {path.rpartition("/")[2] for path, _, _ in raw.asked if path.endswith(".parquet")}
    # Its train split is twenty times as large as the rest, and no task uses it.
    assert not any("auxiliary" in each for each in downloads)
    assert (first.examples[0].choices, first.examples[0].accepted) == READ[name]
    told.clear()  # as in another process
    raw.asked.clear()
    again = load_task(name, split="dev", limit=3)
    assert len(raw.asked) == 1
    hub("http://127.0.0.1:9")
    away = load_task(name, split="dev", limit=3)
    assert first.examples == again.examples == away.examples
    assert first.origin == again.origin == away.origin == f"{where}@{commit_of(revision)}"


@pytest.mark.parametrize("seconds", [0.0, 0.3], ids=["cut", "slow"])
def test_data_that_breaks_off_is_named_and_nothing_of_it_is_used(
    shelf: Path, raw: Raw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    versions(shelf)
    well = raw.answer

    def half(content: bytes) -> Iterator[bytes]:
        yield content[: len(content) // 2]
        Event().wait(seconds)

    def broken(path: str, body: dict[str, Any]) -> Any:
        status, head, content = well(path, body) or (500, {}, b"")
        if not path.endswith(".parquet") or not isinstance(content, bytes):
            return status, head, content
        return status, {**head, "Content-Length": str(len(content))}, half(content)

    raw.answer = broken
    with pytest.raises(
        InputError, match=r"sums.yaml: org/sums cannot be loaded: .*train-00000-of-00001.parquet.*; try again"
    ):
        sums(shelf, "main")
    assert [*(tmp_path / "own").rglob("*.arrow"), *tmp_path.rglob("*.incomplete")] == []
    raw.answer = well
    assert {example.accepted[0] for example in sums(shelf, "main").examples} == {"2"}


def test_a_revision_is_the_asked_one_or_it_is_refused_where_the_hub_is_away(
    shelf: Path, hub: Callable[[str], None]
) -> None:
    versions(shelf)
    for revision, answer in (("old", "1"), ("main", "2"), (commit_of("old"), "1"), ("main", "2")):
        assert {example.accepted[0] for example in sums(shelf, revision).examples} == {answer}
    hub("http://127.0.0.1:9")
    for revision, answer in (("main", "2"), (commit_of("main"), "2"), ("old", "1"), (commit_of("old"), "1")):
        assert {example.accepted[0] for example in sums(shelf, revision).examples} == {answer}
    for revision in ("a3" * 20, "unknown"):
        with pytest.raises(InputError, match=r"org/sums cannot be loaded: Couldn't reach"):
            sums(shelf, revision)


def test_what_the_library_downloaded_before_is_read_without_the_hub_at_its_commit_alone(
    shelf: Path, hub: Callable[[str], None]
) -> None:
    versions(shelf)
    datasets.load_dataset("org/sums", split="train", revision="old")
    hub("http://127.0.0.1:9")
    for revision in ("old", commit_of("old")):
        assert {example.accepted[0] for example in sums(shelf, revision).examples} == {"1"}
    for revision in ("main", "a3" * 20, "unknown"):
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
    info = as_json({"id": "org/a", "sha": "1" * 40, "siblings": [{"rfilename": "config.json"}]})
    missing, failing = (
        as_json({}, 404, **{"X-Error-Code": "EntryNotFound", "X-Repo-Commit": "1" * 40}),
        as_json({}, 403),
    )
    raw.answer = lambda path, _body: info if "/api/" in path else missing
    assert file_of(Checkpoint("org/a"), "model.safetensors.index.json") is None
    assert file_of(Checkpoint("org/a"), "config.json") is None
    raw.answer = lambda path, _body: info if "/api/" in path else failing
    with pytest.raises(InputError, match=r"config\.json cannot be downloaded from the hub \(it answers with 403"):
        file_of(Checkpoint("org/a"), "config.json")
    raw.answer = lambda _path, _body: failing
    with pytest.raises(InputError, match=r"config\.json cannot be read from the hub: it answers with 403"):
        file_of(Checkpoint("org/b"), "config.json")


def test_a_token_that_the_hub_refuses_is_named(shelf: Path, raw: Raw) -> None:
    versions(shelf)
    sums(shelf, "main")
    told.clear()  # as in another process
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


def test_fields_are_added_to_the_records_of_the_hub(shelf: Path) -> None:
    versions(shelf)
    task = sums(
        shelf, "main", "dev: train", "dev: train, fields: {answer: '{{[answer, 7]}}', question: 'Q {{answer}}'}"
    )
    assert {(example.prompt, example.accepted) for example in task.examples} == {("Q 2", ("2", "7"))}
    assert "|datasets:" in task.signature


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dev: train", "dev: nowhere", 'Unknown split "nowhere"'),
        ("dev: train", "config: strange, dev: train", "'strange' not found"),
        ("org/sums", "a/b/c/d", "a/b/c/d cannot be loaded: "),
        ("dev: train", "fields: {x: '{{reply}}'}, dev: train", "under data.fields.x names the field 'reply'"),
    ],
)
def test_what_a_data_set_does_not_have_is_one_line(shelf: Path, old: str, new: str, message: str) -> None:
    versions(shelf)
    with pytest.raises(InputError) as caught:
        sums(shelf, "main", old, new)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_init_reads_a_data_set_by_its_splits_and_names_its_configurations(shelf: Path, place: Place) -> None:
    put(shelf / "some/sums/main", CARD, "main other", "train test", {"question": "Who?", "answer": "Ada Byron"})
    assert "give --config with one of main, other" in place.refused("init", "some/sums", "--yes")
    line = place.refused("init", "some/sums", "--yes", "--config", "maine")
    assert "some/sums has no configuration maine; give --config with one of main, other" in line
    assert place.advisor("init", "some/sums", "--yes", "--config", "main").status == 0
    keys = yaml.safe_load((place.folder / "sums.yaml").read_text(encoding="utf-8"))
    assert keys["data"] == {"hub": "some/sums", "config": "main", "dev": "train", "held_out": "test"}


def test_init_takes_the_converted_branch_of_a_data_set_that_is_a_script(shelf: Path, place: Place) -> None:
    where, *layout = BUILTIN["piqa"]
    put(shelf / where / "refs~convert~parquet", *layout)
    (shelf / where / "main").mkdir()
    (shelf / where / "main" / "piqa.py").touch()
    assert place.advisor("init", where, "--yes").status == 0
    keys = yaml.safe_load((place.folder / "piqa.yaml").read_text(encoding="utf-8"))
    assert (keys["data"]["hub"], keys["data"]["revision"]) == (where, "refs/convert/parquet")


def test_labels_that_are_kept_back_are_refused(shelf: Path) -> None:
    where, *layout, record = BUILTIN["piqa"]
    put(shelf / where / "refs~convert~parquet", *layout, {**record, "label": -1})
    with pytest.raises(InputError, match="the reference is empty"):
        load_task("piqa", split="test")
