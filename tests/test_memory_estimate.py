"""Memory: what a model needs by its files, held against what it takes, and where several models are placed."""

from __future__ import annotations

import gc
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tiny import byte_tokenizer
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

from advisor.pool.checks import check_models
from advisor.pool.fingerprint import identify, model_of
from advisor.pool.fit import check_candidates, check_together, need_of_entry
from advisor.pool.placement import place as placed_of
from advisor.pool.placement import place_entries
from advisor.pool.pool_file import PoolEntry, read_pool
from advisor.pool.quantization import check_quantization, quantization_config, with_quantization
from advisor.profile.generate import peak_memory, reset_peak_memory
from advisor.response_cache import ResponseCache
from ensemble import Ensemble
from ensemble.errors import InputError
from ensemble.models.load import quantization_of
from ensemble.models.memory import MemoryNeed, need_of
from ensemble.models.spec import QUANTIZATIONS, Checkpoint, ModelSpec

if TYPE_CHECKING:
    from pools import Place

pytest_plugins = ["pools"]

SEVEN = MemoryNeed(7_600_000_000, "bfloat16", 15_200_000_000, 57_344, 152_064, 3584, 28)


def save(folder: Path, hidden: int, layers: int) -> Path:
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=260,
        max_position_embeddings=512,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def entry(folder: Path, **values: Any) -> PoolEntry:
    return PoolEntry(folder.name, Checkpoint(str(folder)), "models.txt:1", **values)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is read from Linux's /proc")
def test_the_estimate_is_within_a_factor_of_1_5_of_what_a_small_model_takes(tmp_path: Path) -> None:
    small, large = save(tmp_path / "small", 64, 2), save(tmp_path / "large", 512, 8)
    # What the libraries take once, before any model, is no part of the estimate.
    Ensemble.from_pretrained([small], dtype="float32").generate(["x" * 200] * 8, max_new_tokens=8)
    gc.collect()
    reset_peak_memory()
    before = resident()
    Ensemble.from_pretrained([large], dtype="float32").generate(["x" * 200] * 8, max_new_tokens=56)
    peak, need = peak_memory(), need_of_entry(entry(large), "float32")
    assert peak is not None
    assert need is not None
    assert 1 / 1.5 < need.total(8, 256) / (peak - before) < 1.5, (need.total(8, 256), peak - before)


def test_weights_are_counted_exactly(tmp_path: Path) -> None:
    folder = save(tmp_path / "a", 64, 2)
    parameters = sum(each.numel() for each in LlamaForCausalLM.from_pretrained(folder).parameters())
    found = {dtype: need_of_entry(entry(folder), dtype) for dtype in ("float32", "bfloat16")}
    assert {dtype: need and (need.parameters, need.weights) for dtype, need in found.items()} == {
        "float32": (parameters, 4 * parameters),
        "bfloat16": (parameters, 2 * parameters),
    }


def test_a_models_keys_and_values_are_those_of_its_cache(tmp_path: Path) -> None:
    folder = save(tmp_path / "a", 64, 2)
    model = LlamaForCausalLM.from_pretrained(folder)
    layers = model(torch.zeros(1, 10, dtype=torch.long)).past_key_values.layers
    need = need_of_entry(entry(folder), "float32")
    assert need is not None
    assert 10 * need.per_token == sum(part.nbytes for layer in layers for part in (layer.keys, layer.values))


def test_quantised_weights_take_their_bits_and_the_embeddings_stay_in_half_precision() -> None:
    config = LlamaConfig(
        vocab_size=1000, hidden_size=100, num_attention_heads=5, num_hidden_layers=1, tie_word_embeddings=True
    )
    eight, four = (need_of(1_100_000, 2_200_000, config, "bfloat16", kind).weights for kind in ("8bit", "4bit"))
    assert (eight, four) == (1_000_000 + 200_000, int(1_000_000 * 4.127 / 8) + 200_000)


# --- What does not fit ---


def test_models_that_do_not_fit_together_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.pool.fit.free_on", lambda _: 24_000_000_000)
    with pytest.raises(InputError) as caught:
        check_together(dict.fromkeys("abc", ("cuda", SEVEN)))
    assert str(caught.value) == (
        "3 models of 7.6 billion parameters in bfloat16: 46 GB; cuda has 24 GB free: load them in 4 bits with "
        "quantization=4bit, or serve them (openai:http://HOST:PORT/v1#MODEL)"
    )


def test_models_on_different_devices_are_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.pool.fit.free_on", lambda _: 24_000_000_000)
    check_together({"a": ("cuda:0", SEVEN), "b": ("cuda:1", SEVEN), "c": ("cuda:2", None)})


def test_a_run_of_which_no_model_fits_ends_before_one_is_loaded(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.job(models)
    monkeypatch.setattr("advisor.pool.fit.free_on", lambda _: 1000)
    assert "has 0 MB free" in place.refused("select", "--pool", "models.txt", "--task", "task.yaml")


def test_one_model_that_does_not_fit_is_a_note_and_so_is_a_pair(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry(models / name) for name in ("alpha", "beta")]
    sizes = sorted(need.weights for each in entries if (need := need_of_entry(each, "auto")) is not None)
    monkeypatch.setattr("advisor.pool.fit.free_on", lambda _: sum(sizes) - 1)
    (note,) = check_candidates(entries, "cpu", "auto", decode_together=True)
    assert note.startswith("no two models fit on cpu together")
    assert check_candidates(entries, "cpu", "auto", decode_together=False) == []


# --- Several GPUs ---


def test_the_largest_model_is_placed_first_where_most_is_free() -> None:
    placed = placed_of({"s": 10, "m": 20, "l": 30}, {"cuda:0": 40, "cuda:1": 41}, {})
    assert placed == {"l": "cuda:1", "m": "cuda:0", "s": "cuda:0"}


def test_a_device_that_a_line_names_is_kept_and_takes_its_room() -> None:
    placed = placed_of({"mine": 30, "other": 20}, {"cuda:0": 40, "cuda:1": 39}, {"mine": "cuda:0"})
    assert placed == {"mine": "cuda:0", "other": "cuda:1"}


def test_candidates_are_placed_on_several_gpus_only(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry(models / "alpha"), entry(models / "beta"), entry(models / "gamma", device="cpu")]
    assert place_entries(entries, "auto", "auto") == (tuple(entries), None)
    monkeypatch.setattr("advisor.pool.placement._gpus", lambda: {"cuda:0": 10**9, "cuda:1": 10**9})
    placed, said = place_entries(entries, "auto", "auto")
    assert [each.device for each in placed] in (["cuda:0", "cuda:1", "cpu"], ["cuda:1", "cuda:0", "cpu"])
    assert said is not None
    assert "cuda:0: " in said
    assert place_entries(entries, "cpu", "auto") == (tuple(entries), None)


# --- Quantisation ---


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_a_quantisation_is_the_configuration_that_transformers_gets(kind: str) -> None:
    made: Any = quantization_of(ModelSpec(Checkpoint("org/a"), "a", quantization=quantization_config(kind)))
    assert isinstance(made, BitsAndBytesConfig)
    assert (made.load_in_4bit, made.load_in_8bit) == (kind == "4bit", kind == "8bit")
    if kind == "4bit":
        assert (made.bnb_4bit_quant_type, made.bnb_4bit_compute_dtype) == ("nf4", torch.bfloat16)


def test_a_line_goes_before_the_command_and_gguf_files_and_servers_stay(tmp_path: Path) -> None:
    save(tmp_path / "a", 64, 1)
    save(tmp_path / "b", 64, 1)
    (tmp_path / "m.gguf").write_bytes(b"")
    pool = tmp_path / "models.txt"
    pool.write_text("a quantization=8bit\nb\nm.gguf\nopenai:http://127.0.0.1:1/v1#x\n", encoding="utf-8")
    found = with_quantization(read_pool(str(pool)), "4bit")
    assert [each.quantization for each in found] == ["8bit", "4bit", None, None]
    with pytest.raises(InputError, match="--quantization 3bit: not one of 4bit, 8bit"):
        with_quantization((), "3bit")
    pool.write_text("m.gguf quantization=4bit\n", encoding="utf-8")
    with pytest.raises(InputError, match="a GGUF file defines its own quantization"):
        read_pool(str(pool))


def test_without_a_gpu_quantisation_is_refused_before_anything_is_loaded(place: Place, models: Path) -> None:
    place.job(models)
    line = place.refused("select", "--pool", "models.txt", "--task", "task.yaml", "--quantization", "4bit")
    assert "alpha: quantization=4bit needs a CUDA GPU, and it runs on cpu" in line
    with pytest.raises(InputError, match="needs a CUDA GPU"):
        check_models([ModelSpec(Checkpoint(str(models / "alpha")), "a", quantization=quantization_config("8bit"))])


def test_a_missing_package_is_named(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.pool.quantization.find_spec", lambda _: None)
    with pytest.raises(InputError, match="needs bitsandbytes; install it"):
        check_quantization("a", "4bit", "cuda:0")


def test_the_quantisation_is_part_of_the_cache_key_and_of_what_is_loaded(models: Path, tmp_path: Path) -> None:
    with ResponseCache(tmp_path) as cache:
        plain = entry(models / "alpha")
        rounded = replace(plain, quantization="4bit")
        found = [identify(each, "auto", "auto", cache) for each in (plain, rounded)]
    assert "quantization" not in found[0].key()
    assert found[1].key() == {**found[0].key(), "quantization": "4bit"}
    assert model_of(rounded, found[1], "cuda", "auto", "auto").quantization == quantization_config("4bit")
    assert model_of(plain, found[0], "cpu", "auto", "auto").quantization is None
