"""The page "On a GPU": its table is computed, and its refusal is what the program prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ensemble.models.memory import gigabytes, need_of

if TYPE_CHECKING:
    from pools import Place

pytest_plugins = ["pools"]

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "how-to" / "on-a-gpu.md").read_text(encoding="utf-8")


def test_the_refusal_on_the_page_is_what_the_program_prints(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (quoted,) = re.findall(r"^advisor: models\.txt:1: .*", PAGE, re.MULTILINE)
    place.task()
    place.pool(f"{models / 'alpha'} name=Qwen2-7B-Instruct", str(models / "beta"))
    # The sizes of a 7B model and of a GPU with 12 GB, in place of those of a tiny model and of this machine.
    count, values = MODELS["7B"]
    seven = need_of(count, 2 * count, values, "bfloat16")  # type: ignore[arg-type]
    monkeypatch.setattr("advisor.models.fit.need_of_model", lambda *_: seven)
    monkeypatch.setattr("advisor.models.fit.free_on", lambda _: 12_000_000_000)
    monkeypatch.setattr("advisor.models.resources.resolve_device", lambda _: "cuda")
    monkeypatch.setattr("advisor.jobs.session.check_pool", lambda *_, **__: None)
    assert place.refused("select", "--pool", "models.txt", "--task", "task.yaml") == quoted


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
