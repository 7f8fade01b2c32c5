"""The page "On a GPU": its table is computed, and each of its commands runs, with tiny models on the CPU."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import pytest
from pages import Shell, blocks, warm_shell
from sharing import demo_cache

from ensemble.models.memory import gigabytes, need_of

if TYPE_CHECKING:
    from pools import Place

pytest_plugins = ["pools"]

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "how-to" / "on-a-gpu.md").read_text(encoding="utf-8")
# The only changes to the commands: tiny models of the demo for the large ones, their task for GSM8K, and few questions.
# This machine has no GPU, so the third model is loaded as it is stored.
SUBSTITUTIONS = {
    "Qwen/Qwen2-7B-Instruct": "advisor/demo/models/terse-llama",
    "mistralai/Mistral-7B-Instruct-v0.3": "advisor/demo/models/terse-neox",
    "meta-llama/Llama-3.1-70B-Instruct    quantization=4bit": "advisor/demo/models/terse-mistral",
    "--task gsm8k": "--task advisor/demo/word_problems.yaml --limit 20 --max-new-tokens 16",
}
INSTALLS = "pip install"


def tiny(text: str) -> str:
    for large, small in SUBSTITUTIONS.items():
        text = text.replace(large, small)
    return text


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    folder = tmp_path_factory.mktemp("gpu")
    (folder / "advisor").symlink_to(ROOT / "advisor")
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "MPLCONFIGDIR": matplotlib.get_cachedir(),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(demo_cache(tmp_path_factory)),
    }
    with warm_shell(folder, env) as warm:
        yield warm


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_command_of_the_page_runs_with_tiny_models(shell: Shell) -> None:
    lines = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for block in blocks(PAGE):
        if block.file is not None:
            lines.append(f'```text title="{block.file}"\n{tiny(block.code)}```')
        elif block.language == "bash" and INSTALLS not in block.code:
            code = tiny(block.code).replace("--port 8000", f"--port {port}")
            mark = f"<!-- stays: http://127.0.0.1:{port}/v1/models -->\n" if "advisor serve" in code else ""
            lines.append(f"{mark}```bash\n{code}```")
    page = shell.folder / "page.md"
    page.write_text("\n\n".join(lines), encoding="utf-8")
    shell.run(page)
    assert (shell.folder / "runs" / "gsm8k" / "report.html").is_file()
    assert len(lines) == 6


def test_the_refusal_on_the_page_is_what_the_program_prints(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (quoted,) = re.findall(r"^advisor: models\.txt:1: .*", PAGE, re.MULTILINE)
    place.task()
    place.pool(f"{models / 'alpha'} name=Qwen2-7B-Instruct", str(models / "beta"))
    # The sizes of a 7B model and of a GPU with 12 GB, in place of those of a tiny model and of this machine.
    count, values = MODELS["7B"]
    seven = need_of(count, 2 * count, values, "bfloat16")  # type: ignore[arg-type]
    monkeypatch.setattr("advisor.pool.fit.need_of_model", lambda *_: seven)
    monkeypatch.setattr("advisor.pool.fit.free_on", lambda _: 12_000_000_000)
    monkeypatch.setattr("advisor.pool.resources.resolve_device", lambda _: "cuda")
    monkeypatch.setattr("advisor.jobs.session.check_pool", lambda *_, **__: None)
    assert place.refused("select", "--pool", "models.txt", "--task", "task.yaml") == quoted


def test_every_substitution_is_of_something_on_the_page() -> None:
    assert [large for large in SUBSTITUTIONS if large not in PAGE] == []


def config(**values: int) -> object:
    from transformers import LlamaConfig

    return LlamaConfig(dtype="bfloat16", **values)


MODELS = {
    "7B": (
        7_615_616_512,
        config(
            hidden_size=3584, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4, vocab_size=152_064
        ),
    ),
    "70B": (
        70_553_706_496,
        config(
            hidden_size=8192, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8, vocab_size=128_256
        ),
    ),
}
KINDS = {"bfloat16": None, "8 bits": "8bit", "4 bits": "4bit"}


def row(model: str, kind: str) -> str:
    """A row of the table, computed."""
    count, values = MODELS[model]
    need = need_of(count, 2 * count, values, "bfloat16", KINDS[kind])  # type: ignore[arg-type]
    memory = gigabytes(need.total(64, 1000))
    return f"| {model} | {kind} | {gigabytes(need.weights)} | {memory} | {gigabytes(2 * count)} |"


def test_the_table_is_what_the_estimate_says() -> None:
    assert re.findall(r"^\| 70?B .*$", PAGE, re.MULTILINE) == [row(model, kind) for model in MODELS for kind in KINDS]
