"""Code that comes with a model runs only where the command line names the model, whatever a file says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pools import Place

from advisor import select
from ensemble.errors import InputError

pytest_plugins = ["pools"]

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
class Config(LlamaConfig):
    model_type = "mine"
    def __init__(self, **options):
        super().__init__(**options)
        Path({file!r}).touch()
class Model(LlamaForCausalLM):
    config_class = Config
"""
POOL, TASK = ("--pool", "models.txt"), ("--task", "task.yaml")
REFUSAL = "models.txt:1: coded runs the code in "
CONSENT = ("--trust-remote-code", "coded")


@pytest.fixture
def ran(place: Place, models: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A pool with a model that has code of its own; the file that its code writes."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    place.task()
    file = tmp_path / "ran"
    copy = shutil.copytree(models / "alpha", place.folder / "coded")
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (copy / "code.py").write_text(CODE.format(file=str(file)), encoding="utf-8")
    place.pool("./coded trust_remote_code=true", str(models / "beta"))
    return file


@pytest.mark.parametrize(
    "command",
    [
        ("select", *POOL, *TASK),
        ("select", *POOL, *TASK, "--dry-run"),
        ("profile", *POOL, *TASK),
        ("profile", *POOL, *TASK, "--dry-run"),
        ("label", *POOL, *TASK),
        ("doctor", *POOL),
    ],
)
def test_a_pool_alone_runs_no_code(place: Place, ran: Path, command: tuple[str, ...]) -> None:
    for others in ((), ("--trust-remote-code", "beta")):
        line = place.refused(*command, *others)
        assert line.startswith(f"advisor: {REFUSAL}{place.folder / 'coded'}; ")
        assert "--trust-remote-code coded" in line
    assert not ran.exists()


@pytest.mark.parametrize("name", ["coded", "./coded", "other/../coded"])
def test_the_name_or_the_folder_is_consent_and_a_model_that_is_not_taken_needs_none(
    place: Place, ran: Path, name: str
) -> None:
    assert place.advisor("select", *POOL, *TASK, "--only", "beta", "--dry-run").status == 0
    assert not ran.exists()
    assert place.advisor("profile", *POOL, *TASK, "--quiet", "--trust-remote-code", name).status == 0
    assert ran.exists()


def test_a_folder_is_meant_as_the_pool_writes_it(
    place: Place, ran: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task = place.folder / "task.yaml"
    monkeypatch.chdir(tmp_path)
    pool = ("--pool", str(place.folder / "models.txt"), "--task", str(task), "--quiet")
    assert place.advisor("profile", *pool, "--trust-remote-code", "./coded").status == 0
    assert ran.exists()


def test_a_run_needs_consent_again(place: Place, ran: Path) -> None:
    place.pool("./coded trust_remote_code=true")
    place.select("--quiet", *CONSENT)
    ran.unlink()
    place.task([{"question": f"What is {n} - 1?", "answer": str(n - 1)} for n in range(20, 44)])
    for command in (
        ("run", "run", "1 + 1"),
        ("run", "run", "1 + 1", *POOL),
        ("run", "--models", "coded", "1 + 1"),
        ("check", "run", "held_out.jsonl"),
        ("check", "run", "held_out.jsonl", *POOL),
    ):
        refused = place.advisor(*command)
        assert (refused.status, ran.exists()) == (2, False)
        assert "--trust-remote-code" in refused.line, command
        assert place.advisor(*command, *CONSENT, "--max-new-tokens", "2").status == 0
        assert ran.exists()
        ran.unlink()


def test_code_on_the_hub_needs_a_commit_also_without_a_pool(place: Place) -> None:
    assert "needs a pinned revision" in place.refused("run", "--models", "org/a", "hi", "--trust-remote-code", "org/a")


def test_a_judge_by_its_line_needs_consent(place: Place, models: Path, ran: Path) -> None:
    place.task(metric="judge", judge={"mode": "single", "prompt": "{{response}}", "verdict": "likelihood"})
    place.pool(str(models / "beta"))
    line = place.refused("profile", *POOL, *TASK, "--judge", "./coded trust_remote_code=true")
    assert "--judge: coded runs the code in " in line
    assert not ran.exists()


def test_python_takes_the_same_option(place: Place, ran: Path) -> None:
    options = {"no_verify": True, "quiet": True, "max_gap": 100.0, "max_length_ratio": 1e9}
    with pytest.raises(InputError, match="--trust-remote-code coded"):
        select("models.txt", "task.yaml", **options)
    assert not ran.exists()
    select("models.txt", "task.yaml", trust_remote_code=["coded"], **options)
    assert ran.exists()
