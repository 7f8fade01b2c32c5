"""GGUF files that were dequantized once, in the user's cache folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from ggufs import write_gguf
from tiny import byte_tokenizer, tiny_model

from ensemble.models import gguf
from ensemble.models.load import load_member
from ensemble.models.member import LocalMember
from ensemble.models.spec import Checkpoint, ModelSpec

TEXT = "sing <s> 123 é 今🙂 the ring"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tokenizer = byte_tokenizer((" the", "ing"))
    tokenizer.chat_template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    model = tiny_model(tokenizer, hidden=32, dtype=torch.float32, positions=256)
    write_gguf(tmp_path / "tiny.gguf", model, tokenizer, kind=GGMLQuantizationType.Q8_0)
    return tmp_path / "tiny.gguf"


def load(path: Path, **options: Any) -> LocalMember:
    return load_member(ModelSpec(Checkpoint(str(path)), "tiny", **options))


def state(member: LocalMember) -> dict[str, torch.Tensor]:
    return dict(member.model.state_dict())


def entries(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "unite-advisor" / "gguf").glob("*"))


def weights_entry(tmp_path: Path) -> Path:
    (entry,) = [entry for entry in entries(tmp_path) if (entry / "model.safetensors").is_file()]
    return entry


@pytest.fixture
def no_gguf(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it to forbid transformers to read GGUF files from now on."""

    def forbid() -> None:
        def fail(*_: object, **__: object) -> None:
            raise AssertionError("the GGUF file was read again")

        monkeypatch.setattr("transformers.modeling_gguf_pytorch_utils.load_gguf_checkpoint", fail)
        monkeypatch.setattr("gguf.GGUFReader", fail)

    return forbid


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_second_start_reads_no_gguf_and_has_the_same_model_and_tokenizer(
    file: Path, no_gguf: Callable[[], None], dtype: str
) -> None:
    first = load(file, dtype=dtype)
    no_gguf()
    second = load(file, dtype=dtype)
    assert state(first).keys() == state(second).keys()
    assert all(torch.equal(tensor, state(second)[name]) for name, tensor in state(first).items())
    ids = torch.tensor([first.encode_prompt(TEXT)])
    with torch.inference_mode():
        assert torch.equal(first.model(ids).logits, second.model(ids).logits)
    assert first.tokenizer.backend_tokenizer.to_str() == second.tokenizer.backend_tokenizer.to_str()
    assert first.tokenizer.special_tokens_map == second.tokenizer.special_tokens_map
    assert second.encode_prompt(TEXT) == first.encode_prompt(TEXT)
    assert second.vocabulary.eos_ids == first.vocabulary.eos_ids
    assert (second.spec, second.context, second.window) == (first.spec, first.context, first.window)


def test_each_numeric_type_has_weights_of_its_own(file: Path) -> None:
    load(file, dtype="bfloat16")
    dense = load(file)
    fresh = load(file)
    assert dense.model.dtype == fresh.model.dtype == torch.float32
    assert all(torch.equal(tensor, state(fresh)[name]) for name, tensor in state(dense).items())


def test_a_changed_file_is_dequantized_again(file: Path) -> None:
    before = state(load(file))
    tokenizer = byte_tokenizer((" the", "ing"))
    write_gguf(file, tiny_model(tokenizer, hidden=32, dtype=torch.float32, positions=256, seed=5), tokenizer)
    after = state(load(file))
    assert any(not torch.equal(tensor, after[name]) for name, tensor in before.items())


@pytest.mark.parametrize("damage", ["byte", "cut", "gone", "list"])
def test_a_damaged_entry_is_made_again(file: Path, tmp_path: Path, damage: str) -> None:
    before = state(load(file))
    entry = weights_entry(tmp_path)
    weights = entry / "model.safetensors"
    data = bytearray(weights.read_bytes())
    if damage == "gone":
        weights.unlink()
    elif damage == "list":
        (entry / "files.json").write_text("[1", encoding="utf-8")
    else:
        data[-3] ^= 0x40
        # Written anew: the model that is loaded has the old file mapped.
        weights.unlink()
        weights.write_bytes(data if damage == "byte" else data[:-100])
    after = state(load(file))
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert weights_entry(tmp_path) == entry
    assert gguf.cached(Checkpoint(str(file)), "float32") == entry


def test_a_cache_that_cannot_be_written_only_costs_time(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, where the folder should be", encoding="utf-8")
    assert load(file).encode_prompt(TEXT) == load(file).encode_prompt(TEXT)


def test_a_disk_that_is_full_leaves_no_part_of_an_entry(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    load(file)
    assert [entry for entry in entries(tmp_path) if (entry / "model.safetensors").exists()] == []
    assert gguf.cached(Checkpoint(str(file)), "float32") is None


def test_the_entry_that_was_used_longest_ago_leaves(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(file)
    for number, entry in enumerate(entries(tmp_path)):
        os.utime(entry, (number, number))
    checkpoint = Checkpoint(str(file))
    oldest = entries(tmp_path)[0]
    total = sum(path.stat().st_size for path in oldest.parent.rglob("*") if path.is_file())
    monkeypatch.setattr(gguf, "_MOST_BYTES", total)
    load(file, dtype="bfloat16")  # uses the text's entry, and adds one
    assert gguf.cached(checkpoint, "float32") is None
    assert gguf.cached(checkpoint, "bfloat16") is not None
    assert gguf.cached(checkpoint, gguf.TEXT_ENTRY) is not None
