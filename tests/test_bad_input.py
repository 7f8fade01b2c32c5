"""Bad input: exit 2 before anything is run, one line that says what to do, and nothing written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
from hubserver import COMMIT
from pools import LENIENT, SELECT, Place

pytest_plugins = ["hubs", "pools"]


# --- Options, lines of the pool, models ---


def test_a_task_that_runs_what_models_write_is_refused_unless_that_is_allowed(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.job(models)
    place.task(metric="pass_at_1", reference="assert answer == '{{answer}}'")
    for command in ("select", "profile"):
        line = place.refused(command, *SELECT[1:])
        assert "sums runs programs that models wrote" in line
        assert "cannot rule it out; give --allow-code-execution to take that risk" in line
    monkeypatch.setenv("ADVISOR_WEAK_SANDBOX", "1")
    ran = place.advisor("profile", *SELECT[1:], "--allow-code-execution", "--quiet")
    assert (ran.status, ran.out.count("points")) == (0, 3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["select"], "--pool is missing"),
        (["select", "--pool", "models.txt"], "--task is missing"),
        ([*SELECT, "--colour", "red"], "No such option: --colour"),
        ([*SELECT, "--method", "magic"], "--method magic: not one of unite"),
        ([*SELECT, "--device", "cuda:99"], "--device: device cuda:99: not on this machine; use one of cpu"),
        ([*SELECT, "--device", "meta"], "--device: device meta holds no numbers"),
        ([*SELECT, "--out", "task.yaml"], "--out task.yaml: task.yaml is a file; give a folder"),
        (
            [*SELECT, "--cache-dir", "task.yaml/cache"],
            "--cache-dir task.yaml/cache: the folder cannot be written (Not a directory)",
        ),
        (["select", "--pool", "gone.txt", "--task", "task.yaml"], "--pool gone.txt: no such file; give one"),
        (["select", "--pool", "demo-thinkin", "--task", "task.yaml"], "no such file; did you mean demo-thinking? give"),
        (["select", "--pool", "models.txt", "--task", "gone.yaml"], "there is no task file gone.yaml"),
        (["select", "--scores", "gone.json"], "--scores gone.json: the file does not exist"),
        (["run", "gone", "a prompt"], "gone: no such folder"),
        (["run", "--models", "gone", "a prompt"], "gone"),
        (["run", "--models", "a", "b", "--stop", ""], "stop is ('',)"),
    ],
)
def test_a_bad_option_is_one_line(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    place.job(models)
    assert says in place.refused(*arguments)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{models}/empty", "no config.json in it"),
        ("{models}/pickled", "it has weights only as pickle (pytorch_model.bin)"),
        ("{models}/alpha device=cuda:99 name=other", "device: device cuda:99: not on this machine"),
    ],
)
def test_a_bad_line_of_the_pool_is_named(place: Place, models: Path, line: str, says: str) -> None:
    place.task()
    place.pool(str(models / "beta"), "", line.format(models=models))
    found = place.refused(*SELECT)
    assert found.startswith("advisor: models.txt:3: ")
    assert says in found


def test_weights_that_cannot_be_read_are_bad_input(place: Place, models: Path) -> None:
    place.task()
    shutil.copytree(models / "alpha", "copy")
    Path("copy", "model-2.safetensors").symlink_to("gone")
    place.pool("./copy")
    assert "model-2.safetensors: cannot be read" in place.refused(*SELECT)


def test_code_that_came_with_a_model_and_fails_is_bad_input(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    place.task()
    copy = shutil.copytree(models / "alpha", place.folder / "copy")
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (copy / "code.py").write_text("raise ZeroDivisionError('boom')", encoding="utf-8")
    place.pool("./copy")
    assert "custom code" in place.refused(*SELECT)
    place.pool("./copy trust_remote_code=true")
    consent = ("--trust-remote-code", "copy")
    assert "copy: its configuration cannot be read (ZeroDivisionError: boom)" in place.refused(*SELECT, *consent)


# --- The hub ---


def test_a_model_on_the_hub_is_run_and_known_by_its_commit(place: Place, small_hub: None) -> None:
    place.task()
    place.pool("org/alpha", "org/gamma@main name=other")
    ran = place.advisor(*SELECT, "--no-verify", "--quiet", "--out", "run", *LENIENT)
    assert (ran.status, ran.err) == (0, "")
    result = place.json()
    models = result["provenance"]["models"]
    assert [(models[name]["path_or_id"], models[name]["revision"]) for name in ("alpha", "other")] == [
        ("org/alpha", COMMIT),
        ("org/gamma", COMMIT),
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("org/gone", "org/gone: not a local folder, and the hub has no model with this name"),
        ("org/pickled", "org/pickled: it has weights only as pickle (pytorch_model.bin)"),
        ("org/pickled@v9", "org/pickled: the hub has no revision v9"),
        ("org/gated-401", "org/gated-401: gated; accept its terms on its page on the hub, and log in"),
        ("org/gated-403", "org/gated-403: gated, and your account has no access"),
    ],
)
def test_the_hub_is_asked_before_anything_is_run(
    place: Place, models: Path, small_hub: None, line: str, says: str
) -> None:
    place.task()
    place.pool(str(models / "alpha"), line)
    found = place.refused(*SELECT)
    assert found.startswith(f"advisor: models.txt:2: {says}")


def test_a_hub_that_is_switched_off_is_said(
    place: Place, hub: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    place.task()
    place.pool("org/name")
    assert "models.txt:1: org/name: not a local folder" in place.refused(*SELECT)
    assert "the hub cannot be reached" in place.refused("run", "--models", "org/name", "a prompt")


def test_data_on_a_hub_that_cannot_be_reached_is_said_without_asking_again_and_again(
    place: Place, models: Path, hub: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    hub("http://127.0.0.1:9")
    place.pool(str(models / "alpha"))
    line = place.refused("select", "--pool", "models.txt", "--task", "gsm8k")
    assert "openai/gsm8k cannot be loaded" in line and "--data DIR" in line
    assert waits == []
