"""``advisor doctor`` and ``advisor --version``: what they say of the machine, and when the status is 1."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from importlib.metadata import packages_distributions
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from pools import Place
from servers import Raw, as_json, models

from advisor.commands import doctor
from advisor.jobs.dry_run import plan_together
from ensemble.models import memory
from ensemble.models.memory import Processor
from ensemble.step import compiled

pytest_plugins = ["pools", "hubs"]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(doctor, "USUAL_PORTS", {})


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terabyte is free, whatever this machine has."""
    monkeypatch.setattr("advisor.jobs.dry_run.free_on", lambda _: 10**12)


def test_the_machine_the_versions_and_the_cache_are_said_and_nothing_is_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "library", object())
    ran = place.advisor("doctor")
    assert ran.status == 0
    first = [line.split()[0] for line in ran.out.splitlines()]
    assert first == [
        "processor",
        "GPU",
        "versions",
        *["extra"] * len(doctor.EXTRAS),
        "quantization",
        "hub",
        "cache",
        "downloads",
    ]
    assert "switched off by HF_HUB_OFFLINE" in ran.out
    monkeypatch.setattr(memory, "this_processor", lambda: Processor(frozenset({"amx_bf16"}), 2**34))
    assert "cores, slow in float16, " in place.advisor("doctor").out
    assert (place.files(), place.cache.exists()) == (set(), False)


def test_a_step_that_is_not_compiled_and_the_packages_of_quantisation_are_said(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "library", None)
    monkeypatch.setattr(doctor, "version_of", {"bitsandbytes": "1.2"}.get)
    assert "step         not compiled, so it takes longer; install a C compiler" in place.advisor("doctor").out
    found = json.loads(place.advisor("doctor", "--json").out)
    assert found["machine"]["compiled_step"] is False
    assert found["quantization"] == {"bitsandbytes": "1.2"}


def test_servers_on_usual_ports_are_named_with_the_line_that_a_pool_file_needs(
    place: Place, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(raw.url.rpartition(":")[2].removesuffix("/v1"))
    # On the second port nothing listens.
    monkeypatch.setattr(doctor, "USUAL_PORTS", {port: "Ollama", 1: "vLLM"})
    raw.answer = lambda _path, _body: models("llama3", "qwen3")
    assert f"server       openai:{raw.url}#* (usual port of Ollama): llama3, qwen3\n" in place.advisor("doctor").out
    raw.answer = lambda _path, _body: models("llama3")
    assert f"server       openai:{raw.url} (usual port of Ollama): llama3\n" in place.advisor("doctor").out
    found = json.loads(place.advisor("doctor", "--json").out)["servers"]
    assert found == [{"url": raw.url, "usual_for": "Ollama", "models": ["llama3"]}]
    # Another program than a server of models.
    raw.answer = lambda _path, _body: (200, {}, b"<html>")
    assert "\nserver" not in place.advisor("doctor").out


def test_the_extras_are_those_of_the_project() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {
        name: requirements
        for name, requirements in project["optional-dependencies"].items()
        if name not in ("dev", "all")
    }
    assert set(doctor.EXTRAS) == set(extras)
    # A module that doctor looks for comes with a package of its extra.
    packages = packages_distributions()
    for name, requirements in extras.items():
        brought = {Requirement(requirement).name.lower().replace("_", "-") for requirement in requirements}
        for module in doctor.EXTRAS[name]:
            by = {package.lower().replace("_", "-") for package in packages[module.partition(".")[0]]}
            assert by & brought, module


def test_each_model_of_a_pool_has_its_plan(place: Place, models: Path) -> None:
    place.job(models)
    ran = place.advisor("doctor", "--pool", "models.txt", "--task", "task.yaml", "--json")
    found = json.loads(ran.out)
    assert ran.status == 0
    assert [plan["model"] for plan in found["models"]] == ["alpha", "beta", "gamma"]
    for plan in found["models"]:
        assert plan["fits"] is True
        assert plan["download"] == 0
        assert 0 < plan["weights"] < plan["memory"] < plan["free"] == 10**12
    assert (found["problems"], len(found["together"]["models"])) == ([], 3)


def test_a_model_that_cannot_run_gives_status_1_and_the_others_are_still_planned(place: Place, models: Path) -> None:
    (place.folder / "empty").mkdir()
    place.pool(str(models / "alpha"), "./empty")
    ran = place.advisor("doctor", "--pool", "models.txt")
    assert ran.status == 1
    assert "empty: cannot run: models.txt:2: " in ran.out
    assert "alpha: " in ran.out


def test_a_cache_that_cannot_be_written_gives_status_1(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root can write everywhere
    ran = place.advisor("doctor")
    problem = f"problem      {place.cache / 'unite-advisor'} cannot be written; give --cache-dir"
    assert (ran.status, ran.out.splitlines()[-2]) == (1, problem)
    assert "cannot be written; set HF_HUB_CACHE" in ran.out.splitlines()[-1]


def test_a_download_is_known_before_it_begins_and_one_larger_than_the_disk_is_a_problem_on_the_terminal_too(
    place: Place, monkeypatch: pytest.MonkeyPatch, small_hub: None, models: Path
) -> None:
    place.pool("org/alpha")
    (plan,) = json.loads(place.advisor("doctor", "--pool", "models.txt", "--json").out)["models"]
    weights = (models / "alpha" / "model.safetensors").stat().st_size
    assert (plan["download"], plan["problem"]) == (weights, None)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    ran = place.advisor("doctor", "--pool", "models.txt")
    assert ran.status == 1
    assert "to download, and" in ran.out.splitlines()[-1]
    assert ran.out.splitlines()[-1].startswith("problem ")


def test_a_name_that_no_folder_can_have_is_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 300) / "below"
    found = doctor.cache_folder(long)
    assert (found["folder"], found["size"], found["writable"]) == (str(long), 0, False)
    assert doctor.cache_folder(tmp_path / "new")["writable"] is True
    (tmp_path / "file").write_bytes(b"")
    assert doctor.cache_folder(tmp_path / "file" / "below")["writable"] is False


def test_a_gguf_file_on_the_hub_is_planned_without_its_download(
    place: Place, serve: Callable[[Path], None], tmp_path: Path
) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "there" / "packed").mkdir(parents=True)
    # Not a GGUF file, so that whatever reads it fails.
    (tmp_path / "there" / "packed" / "q4.gguf").write_bytes(b"x" * 5000)
    serve(tmp_path / "there")
    place.pool("org/packed gguf_file=q4.gguf")
    place.task()
    ran = place.advisor("doctor", "--pool", "models.txt", "--task", "task.yaml", "--json")
    (plan,) = json.loads(ran.out)["models"]
    assert (ran.status, plan["problem"], plan["download"]) == (0, None, 5000)
    planned = place.advisor("select", "--pool", "models.txt", "--task", "task.yaml", "--dry-run")
    assert (planned.status, "q4: cpu; its size is not known here" in planned.out) == (0, True)
    assert list((tmp_path / "hub").rglob("q4.gguf")) == []


def test_the_variable_is_blamed_only_where_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.hub()["offline"] == "HF_HUB_OFFLINE"
    # As after a request that the hub did not answer: the library's constant is set, and the variable is not.
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert (doctor.hub()["offline"], doctor.hub()["answers"]) == (None, False)


@pytest.mark.parametrize(
    ("token", "status", "says"),
    [
        ("hf_secret", 200, "answers; token accepted"),
        ("hf_secret", 401, "answers; token refused"),
        ("hf_secret", 429, "answers; token set"),
        ("", 401, "answers; no token"),
    ],
)
def test_the_state_of_the_token_and_the_folder_of_downloads_are_said_and_the_token_is_not(
    place: Place,
    raw: Raw,
    hub: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    token: str,
    status: int,
    says: str,
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    raw.answer = lambda _path, _body: as_json({}, status)
    hub(raw.url.removesuffix("/v1"))
    ran = place.advisor("doctor")
    assert says in ran.out and "hf_secret" not in ran.out
    assert raw.asked[0][1].get("authorization", "") == f"Bearer {token}".removesuffix("Bearer ")
    assert f"downloads    {tmp_path / 'hub'}: 0 MB, " in ran.out
    assert (ran.status == 1) == ("the hub does not accept this token" in ran.out) == (says == "answers; token refused")


def test_a_hub_that_never_answers_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr("huggingface_hub.get_session", lambda: time.sleep(60))
    monkeypatch.setattr(doctor, "_HUB_SECONDS", -0.9)
    assert doctor.hub()["answers"] is False


def test_the_set_that_is_planned_has_the_largest_models_of_the_fullest_device() -> None:
    plans = [
        {"model": name, "device": device, "weights": weights, "free": 25, "resources": None}
        for name, device, weights in (("a", "cuda:0", 10), ("b", "cuda:0", 20), ("c", "cuda:0", 5), ("d", "cuda:1", 8))
    ]
    found = plan_together(plans, 2)
    assert found == {"device": "cuda:0", "models": ["b", "a"], "memory": 30, "free": 25, "fits": False}
    assert plan_together(plans[:1], 2) is None


def test_a_shell_gets_the_commands_that_can_follow(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_ADVISOR_COMPLETE": "complete_bash", "COMP_WORDS": "advisor doc", "COMP_CWORD": "1"}.items():
        monkeypatch.setenv(name, value)
    assert place.advisor().out == "doctor\n"
