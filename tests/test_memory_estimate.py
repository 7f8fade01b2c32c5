"""Memory: what a model needs by its files, held against what it takes, and where several models are placed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pools import Place
from tiny import byte_tokenizer
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

from advisor.models.fingerprint import identify, model_of
from advisor.models.fit import (
    check_candidates,
    check_quantization,
    check_set,
    check_together,
    need_of_model,
    place_models,
    too_large,
)
from advisor.models.fit import place as placed_of
from advisor.models.pool_file import read_pool
from ensemble.errors import InputError
from ensemble.models.choices import QUANTIZATIONS
from ensemble.models.load import quantization_of
from ensemble.models.memory import MemoryNeed, need_of
from ensemble.models.model_files import weights_on_hub
from ensemble.models.spec import Checkpoint, ModelSpec, quantization_config

pytest_plugins = ["pools"]

SEVEN = MemoryNeed(7_600_000_000, "bfloat16", 15_200_000_000, 57_344, 152_064, 3584)


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


def entry(folder: Path, **values: Any) -> ModelSpec:
    return ModelSpec(Checkpoint(str(folder)), folder.name, place="models.txt:1", **values)


MEASURE = """
import gc, os, sys
from pathlib import Path
from advisor.models.local_model import peak_memory, reset_peak_memory
from ensemble import Ensemble

small, large = sys.argv[1:]
# What the libraries take once, before any model, is no part of the estimate.
Ensemble.from_pretrained([small], dtype="float32").generate(["x" * 200] * 8, max_new_tokens=8)
gc.collect()
reset_peak_memory()
before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
Ensemble.from_pretrained([large], dtype="float32").generate(["x" * 200] * 8, max_new_tokens=56)
print(peak_memory() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is read from Linux's /proc")
def test_the_estimate_is_within_a_factor_of_1_5_of_what_a_small_model_takes(tmp_path: Path) -> None:
    small, large = save(tmp_path / "small", 64, 2), save(tmp_path / "large", 512, 8)
    # In a new process: this one has memory of earlier tests, which the model would take instead of new one.
    done = subprocess.run([sys.executable, "-c", MEASURE, small, large], capture_output=True, text=True, check=True)
    need = need_of_model(entry(large), "float32")
    assert need is not None
    assert 1 / 1.5 < need.total(8, 256) / int(done.stdout) < 1.5, (need.total(8, 256), done.stdout)


def test_weights_are_counted_exactly(tmp_path: Path) -> None:
    folder = save(tmp_path / "a", 64, 2)
    parameters = sum(each.numel() for each in LlamaForCausalLM.from_pretrained(folder).parameters())
    found = {dtype: need_of_model(entry(folder), dtype) for dtype in ("float32", "bfloat16")}
    assert {dtype: need and (need.parameters, need.weights) for dtype, need in found.items()} == {
        "float32": (parameters, 4 * parameters),
        "bfloat16": (parameters, 2 * parameters),
    }


def test_quantised_weights_take_their_bits_and_the_embeddings_stay_in_half_precision() -> None:
    config = LlamaConfig(
        vocab_size=1000, hidden_size=100, num_attention_heads=5, num_hidden_layers=1, tie_word_embeddings=True
    )
    eight, four = (need_of(1_100_000, 2_200_000, config, "bfloat16", kind).weights for kind in ("8bit", "4bit"))
    assert (eight, four) == (1_000_000 + 200_000, int(1_000_000 * 4.127 / 8) + 200_000)


# --- What does not fit ---


def test_models_that_do_not_fit_together_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.models.fit.free_on", lambda _: 24_000_000_000)
    with pytest.raises(InputError) as caught:
        check_together(dict.fromkeys("abc", ("cuda", SEVEN)))
    assert str(caught.value) == (
        "3 models of 7.6 billion parameters in bfloat16: 46 GB; cuda has 24 GB free: load them in 4 bits with "
        "quantization=4bit, or serve them (openai:http://HOST:PORT/v1#MODEL)"
    )


def test_models_on_different_devices_are_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.models.fit.free_on", lambda _: 24_000_000_000)
    check_together({"a": ("cuda:0", SEVEN), "b": ("cuda:1", SEVEN), "c": ("cuda:2", None)})


def test_a_run_of_which_no_model_fits_ends_before_one_is_loaded(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.job(models)
    monkeypatch.setattr("advisor.models.fit.free_on", lambda _: 1000)
    assert "has 0 MB free" in place.refused("select", "--pool", "models.txt", "--task", "task.yaml")


@pytest.mark.parametrize(
    ("device", "dtype", "quantization", "way_out"),
    [
        ("cuda", "bfloat16", None, "load it in 4 bits with quantization=4bit"),
        ("cuda", "bfloat16", "8bit", "load it in 4 bits with quantization=4bit"),
        ("cuda", "bfloat16", "4bit", "take a smaller model"),
        ("cuda", "float16", "gptq", "take a smaller model"),
        ("cuda", "float32", "gguf", "load it with dtype=bfloat16"),
        ("cpu", "float32", None, "load it with dtype=bfloat16"),
        ("cpu", "bfloat16", None, "take a smaller model"),
    ],
)
def test_the_way_out_is_one_that_the_model_has(device: str, dtype: str, quantization: str | None, way_out: str) -> None:
    need = SEVEN._replace(dtype=dtype, quantization=quantization)
    assert f"free: {way_out}, or serve it (openai:" in too_large({"m": need}, device, 10**9)


def test_a_model_that_is_stored_quantised_says_so(tmp_path: Path) -> None:
    folder = save(tmp_path / "a", 64, 1)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    size = (folder / "model.safetensors").stat().st_size
    needs = [need_of_model(entry(folder), dtype) for dtype in ("auto", "float16")]
    assert [need and (need.kind, need.weights) for need in needs] == [("gptq", size)] * 2


@pytest.mark.parametrize("command", ["select", "profile"])
def test_a_run_whose_responses_are_stored_needs_no_memory(
    place: Place, models: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    place.job(models)
    out = ("--out", "run") if command == "select" else ()
    run = (command, "--pool", "models.txt", "--task", "task.yaml", *out)
    before = place.advisor(*run, "--json")
    assert before.status == 0, before
    monkeypatch.setattr("advisor.models.fit.free_on", lambda _: 1000)
    again = place.advisor(*run, "--json")
    assert again.status == 0, again
    assert "note models.txt:1: alpha of <0.1 billion parameters" in again.err
    if command == "profile":
        assert again.out == before.out


def test_one_model_that_does_not_fit_is_a_note_and_so_is_a_pair(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry(models / name) for name in ("alpha", "beta")]
    sizes = sorted(need.weights for each in entries if (need := need_of_model(each, "auto")) is not None)
    monkeypatch.setattr("advisor.models.fit.free_on", lambda _: sum(sizes) - 1)
    (note,) = check_candidates(entries, "cpu", "auto", decode_together=True)
    assert note.startswith("no two models fit on cpu together")
    assert check_candidates(entries, "cpu", "auto", decode_together=False) == []


# --- On the hub ---


@pytest.fixture
def on_hub(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int | None, int] | None]:
    """The weights of a model on the hub that has some files."""

    def found(
        files: dict[str, int], counts: dict[str, Any], names: list[list[str]], gguf_file: str | None = None
    ) -> tuple[int | None, int] | None:
        siblings = [SimpleNamespace(rfilename=name, size=size) for name, size in files.items()]
        info = SimpleNamespace(siblings=siblings, **{"safetensors": None, "gguf": None, **counts})
        monkeypatch.setattr("ensemble.models.model_files.info_of", lambda _: info)
        monkeypatch.setattr("ensemble.models.model_files.weight_names", lambda _: names)
        return weights_on_hub(Checkpoint("org/a", gguf_file=gguf_file))

    return found


SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
COPIES = {"consolidated.safetensors": 30, "pytorch_model.bin": 30, "model.fp16.safetensors": 15, "onnx/model.onnx": 30}


def test_a_second_copy_of_the_weights_is_not_counted(on_hub: Callable[..., tuple[int | None, int] | None]) -> None:
    total = {"safetensors": SimpleNamespace(total=7)}
    names = [["model.safetensors"], SHARDS]
    shards = dict(zip(SHARDS, (20, 10), strict=True))
    assert on_hub({**COPIES, **shards}, total, names) == (7, 30)
    assert on_hub({**COPIES, **shards, "model.safetensors": 29}, total, names) == (7, 29)
    assert on_hub({**COPIES, "model.safetensors": 29}, {}, [["model.safetensors"], []]) == (None, 29)
    assert on_hub(COPIES, total, names) is None


def test_of_a_gguf_repository_only_the_named_file_counts(on_hub: Callable[..., tuple[int | None, int] | None]) -> None:
    files = {"q4.gguf": 4, "q8.gguf": 8, "model.safetensors": 16}
    assert on_hub(files, {"gguf": {"total": 7}}, [], "q8.gguf") == (7, 8)
    assert on_hub(files, {}, [], "q4.gguf") == (None, 4)
    assert on_hub(files, {}, [], "q2.gguf") is None


def test_gguf_weights_that_are_still_on_the_hub_are_counted_as_they_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.models.fit.weights_on_hub", lambda _: (7, 4))
    there = ModelSpec(Checkpoint("org/nowhere", gguf_file="q4.gguf"), "a", place="models.txt:1")
    needs = [need_of_model(there, dtype) for dtype in ("auto", "bfloat16")]
    assert [need and (need.parameters, need.weights, need.quantization) for need in needs] == [
        (7, 28, "gguf"),
        (7, 14, "gguf"),
    ]
    monkeypatch.setattr("advisor.models.fit.weights_on_hub", lambda _: (None, 4))
    assert need_of_model(there, "auto") is None


# --- Several GPUs ---


def test_the_largest_model_is_placed_first_where_most_is_free() -> None:
    placed = placed_of({"s": 10, "m": 20, "l": 30}, {"cuda:0": 40, "cuda:1": 41}, {})
    assert placed == {"l": "cuda:1", "m": "cuda:0", "s": "cuda:0"}


def test_a_device_that_a_line_names_is_kept_and_takes_its_room() -> None:
    placed = placed_of({"mine": 30, "other": 20}, {"cuda:0": 40, "cuda:1": 39}, {"mine": "cuda:0"})
    assert placed == {"mine": "cuda:0", "other": "cuda:1"}


def test_candidates_are_placed_on_several_gpus_only(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry(models / "alpha"), entry(models / "beta"), entry(models / "gamma", device="cpu")]
    assert place_models(entries, "auto", "auto") == (tuple(entries), None)
    monkeypatch.setattr("advisor.models.fit._gpus", lambda: {"cuda:0": 10**9, "cuda:1": 10**9})
    placed, said = place_models(entries, "auto", "auto")
    assert [each.device for each in placed] in (["cuda:0", "cuda:1", "cpu"], ["cuda:1", "cuda:0", "cpu"])
    assert said is not None
    assert "cuda:0: " in said
    assert place_models(entries, "cpu", "auto") == (tuple(entries), None)


# --- Quantisation ---


@pytest.mark.parametrize("kind", QUANTIZATIONS)
def test_a_quantisation_is_the_configuration_that_transformers_gets(kind: str) -> None:
    made: Any = quantization_of(ModelSpec(Checkpoint("org/a"), "a", quantization=quantization_config(kind)))
    assert isinstance(made, BitsAndBytesConfig)
    assert (made.load_in_4bit, made.load_in_8bit) == (kind == "4bit", kind == "8bit")
    if kind == "4bit":
        assert (made.bnb_4bit_quant_type, made.bnb_4bit_compute_dtype) == ("nf4", torch.bfloat16)


def test_a_gguf_file_keeps_its_own_quantization(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"")
    pool = tmp_path / "models.txt"
    pool.write_text("m.gguf quantization=4bit\n", encoding="utf-8")
    with pytest.raises(InputError, match="a GGUF file defines its own quantization"):
        read_pool(str(pool))


def test_without_a_gpu_quantisation_is_refused_before_anything_is_loaded(place: Place, models: Path) -> None:
    place.job(models)
    pool = place.folder / "models.txt"
    pool.write_text(pool.read_text(encoding="utf-8").replace("\n", " quantization=4bit\n"), encoding="utf-8")
    line = place.refused("select", "--pool", "models.txt", "--task", "task.yaml")
    assert "alpha: quantization=4bit needs a CUDA GPU, and it runs on cpu" in line
    with pytest.raises(InputError, match="needs a CUDA GPU"):
        check_set([ModelSpec(Checkpoint(str(models / "alpha")), "a", quantization=quantization_config("8bit"))])


def test_a_missing_package_is_named(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.models.fit.is_installed", lambda _: False)
    with pytest.raises(InputError, match="needs bitsandbytes; install it"):
        check_quantization("a", "4bit", "cuda:0")


def test_the_quantisation_is_part_of_the_cache_key_and_of_what_is_loaded(models: Path) -> None:
    plain = entry(models / "alpha")
    rounded = replace(plain, quantization=quantization_config("4bit"))
    found = [identify(each, "auto", "auto") for each in (plain, rounded)]
    assert "quantization" not in found[0].key()
    assert found[1].key() == {**found[0].key(), "quantization": "4bit"}
    assert model_of(rounded, found[1], "auto").quantization == quantization_config("4bit")
    assert model_of(plain, found[0], "auto").quantization is None
