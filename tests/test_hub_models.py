"""Models of a hub on this machine: what a load asks for, what a pool of ids needs, and downloads that break off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pools import Place

from advisor.models.job import Job
from ensemble.errors import InputError
from ensemble.models.load import check_models, load_member
from ensemble.models.spec import Checkpoint, ModelSpec

pytest_plugins = ["pools", "hubs"]
SPEC = ModelSpec(Checkpoint("org/alpha"), "alpha")


def test_a_load_asks_for_each_file_once_and_from_a_full_cache_for_none(small_hub: Any) -> None:
    check_models([SPEC])
    load_member(SPEC)
    assert max(Counter(small_hub.asked).values()) == 1
    small_hub.asked.clear()
    load_member(SPEC)
    # transformers looks for chat templates each time.
    assert [each for each in small_hub.asked if "/tree/" not in each] == []


def test_a_pool_of_ids_runs_from_an_empty_cache_a_full_one_and_without_the_hub(
    place: Place, small_hub: Any, hub: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    place.task()
    place.pool("org/alpha", "org/beta")
    command = ("select", "--pool", "models.txt", "--task", "task.yaml", "--quiet", "--json")
    asked = []
    for number in range(3):
        if number == 2:
            monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        ran = place.advisor(*command, "--out", str(number), "--cache-dir", str(place.folder / f"cache{number}"))
        assert (ran.status, ran.err) == (0, "")
        asked.append([*small_hub.asked])
        small_hub.asked.clear()
    assert sum("model.safetensors" in each and each.startswith("GET") for each in asked[0]) == 2
    assert [each for each in asked[1] if "/resolve/" in each] == []
    assert asked[2] == []
    samples = [(place.folder / str(number) / "samples.jsonl").read_text(encoding="utf-8") for number in range(3)]
    assert samples[0] == samples[1] == samples[2]


def test_weights_are_downloaded_before_a_bar_begins_beside_which_those_of_downloads_are_not_shown(
    place: Place, small_hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, asked = Job.start, small_hub.asked
    monkeypatch.setattr(Job, "start", lambda job: (asked.append("bar"), start(job))[1])
    place.task()
    place.pool("org/alpha")
    assert place.advisor("profile", "--pool", "models.txt", "--task", "task.yaml", "--quiet").status == 0
    assert [each for each in asked if each == "bar" or each.endswith("model.safetensors")][-1] == "bar"


@pytest.mark.parametrize(("file", "seconds"), [("config.json", 0.0), ("model.safetensors", 0.3)], ids=["cut", "slow"])
def test_a_download_that_breaks_off_is_named_and_nothing_of_it_is_used(
    small_hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, seconds: float
) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    small_hub.cut[file] = seconds
    with pytest.raises(
        InputError, match=f"^org/alpha: its {file} cannot be downloaded from the hub .*; try again later"
    ):
        load_member(SPEC)
    assert [*tmp_path.rglob(f"{file}*"), *tmp_path.rglob("*.incomplete")] == []
    small_hub.cut.clear()
    assert load_member(SPEC).name == "alpha"
