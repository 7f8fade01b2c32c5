"""The device: which one is chosen where none is given, and where the choice is kept."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny import save_member, tiny_model, unigram_tokenizer

from advisor.jobs.figures import provenance_of_run
from advisor.models.fingerprint import Fingerprint, identify, model_of
from advisor.models.fit import check_candidates, device_of, need_of_model
from advisor.options.finished_run import ServeOptions
from advisor.options.new_run import SelectOptions
from advisor.options.shared import ClusterOptions
from advisor.run.plan import entries_as, loaded_as
from ensemble import Ensemble
from ensemble.errors import InputError
from ensemble.models import memory
from ensemble.models.load import load_member
from ensemble.models.memory import HALF, Processor, parse_device, this_processor, usable_dtype
from ensemble.models.spec import Checkpoint, ModelSpec, Resources, resolve_device

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor with units for bfloat16, whatever this machine has."""
    monkeypatch.setattr(memory, "this_processor", lambda: Processor(frozenset({"amx_bf16"}), 2**34))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights are stored in bfloat16."""
    model = tiny_model(unigram_tokenizer(True), 5).to(torch.bfloat16)
    return save_member(tmp_path_factory.mktemp("models") / "half", model, unigram_tokenizer(True))


@pytest.mark.parametrize(
    ("cuda", "mps", "chosen"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_is_cuda_then_mps_then_the_cpu(monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, chosen: str):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert resolve_device("auto") == chosen
    assert resolve_device("cpu") == "cpu"


def test_an_ensemble_is_in_float32_on_the_cpu_and_in_the_stored_type_where_that_is_requested(
    folder: Path, tmp_path: Path
):
    dtypes = [
        Ensemble.from_pretrained([folder], device="cpu", cache_dir=tmp_path, **given).members[0].local.model.dtype
        for given in ({}, {"dtype": "auto"}, {"dtype": "float16"})
    ]
    assert dtypes == [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize(("device", "dtype"), [("cuda", "auto"), ("mps", "auto"), ("auto", "auto"), ("cpu", "float32")])
def test_an_ensemble_on_an_accelerator_is_in_the_stored_type(
    monkeypatch: pytest.MonkeyPatch, folder: Path, device: str, dtype: str
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("ensemble.api.check_models", lambda *_: None)
    monkeypatch.setattr("ensemble.api.load_members", lambda specs: pytest.fail(specs[0].dtype))
    with pytest.raises(pytest.fail.Exception, match=f"^{dtype}$"):
        Ensemble.from_pretrained([folder], device=device)


def test_a_torch_without_cuda_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(InputError, match="this torch is built without CUDA"):
        parse_device("cuda:99")


def test_a_type_that_mps_lacks_becomes_float32_unless_it_is_requested(monkeypatch: pytest.MonkeyPatch):
    def empty(*_: object, dtype: torch.dtype, **__: object) -> None:
        if dtype in (torch.bfloat16, torch.float64):
            raise TypeError(f"MPS has no {dtype}")

    monkeypatch.setattr(torch, "empty", empty)
    config, mps = type("Config", (), {"dtype": torch.bfloat16}), torch.device("mps")
    assert usable_dtype("auto", config, mps, 10) == "float32"
    assert usable_dtype("float16", config, mps, 10) == "float16"
    with pytest.raises(InputError, match="dtype bfloat16: mps cannot compute in it; use float32"):
        usable_dtype("bfloat16", config, mps, 10)


def half(dtype: str, **more: object) -> SimpleNamespace:
    return SimpleNamespace(dtype=getattr(torch, dtype), **more)


@pytest.mark.parametrize(
    ("stored", "features", "chosen"),
    [
        ("bfloat16", {"avx2", "avx512f"}, "float32"),
        ("bfloat16", {"avx512f", "avx512_bf16"}, "auto"),
        ("bfloat16", {"asimd", "bf16"}, "auto"),
        ("bfloat16", {"asimd", "asimdhp"}, "float32"),
        ("float16", {"avx512f", "avx512_bf16", "amx_bf16", "f16c"}, "float32"),
        ("float16", {"avx512_fp16"}, "auto"),
        ("float16", set(), "float32"),
        ("float32", set(), "auto"),
    ],
)
def test_auto_is_float32_where_the_processor_lacks_units_for_the_stored_type(
    monkeypatch: pytest.MonkeyPatch, stored: str, features: set[str], chosen: str
):
    monkeypatch.setattr(memory, "this_processor", lambda: Processor(frozenset(features), 2**34))
    assert usable_dtype("auto", half(stored), CPU, 1_000_000) == chosen


def test_the_stored_type_stays_where_float32_takes_over_a_quarter_of_the_memory(monkeypatch: pytest.MonkeyPatch):
    def chosen(size: int, parameters: int) -> str:
        monkeypatch.setattr(memory, "this_processor", lambda: Processor(frozenset(), size))
        return usable_dtype("auto", half("bfloat16"), CPU, parameters)

    assert chosen(16_000, 1000) == "float32"
    assert chosen(15_999, 1000) == "auto"
    assert chosen(0, 1000) == "auto"
    assert chosen(16_000, 0) == "auto"


def test_a_requested_type_quantised_weights_and_gpus_keep_their_type(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "this_processor", lambda: Processor(frozenset(), 2**40))
    assert usable_dtype("bfloat16", half("bfloat16"), CPU, 10) == "bfloat16"
    assert usable_dtype("auto", half("bfloat16", quantization_config={"quant_method": "gptq"}), CPU, 10) == "auto"
    assert usable_dtype("auto", half("bfloat16"), torch.device("cuda"), 10) == "auto"


@pytest.mark.parametrize(("features", "dtype"), [({"avx2"}, "float32"), ({"amx_bf16"}, "bfloat16")])
def test_the_plan_the_key_and_the_loaded_model_have_the_same_type(
    folder: Path, monkeypatch: pytest.MonkeyPatch, features: set[str], dtype: str
):
    monkeypatch.setattr(memory, "this_processor", lambda: Processor(frozenset(features), 2**34))
    entry = ModelSpec(Checkpoint(str(folder)), "half", place="models.txt:1")
    need = need_of_model(entry)
    assert need is not None
    known = identify(entry, "auto", "auto")
    assert isinstance(known, Fingerprint)
    loaded = load_member(entry)
    assert loaded.spec is not None
    assert [need.dtype, known.spec.dtype, loaded.spec.dtype] == [dtype] * 3
    assert loaded.spec.device == resolve_device("auto")
    assert str(loaded.model.dtype) == f"torch.{dtype}"
    assert model_of(entry, known, "auto").dtype == dtype
    notes = check_candidates([entry], "cpu", "auto", decode_together=False)
    assert ["half: computed in float32" in note for note in notes] == [True] * (dtype == "float32")
    assert ("stored in bfloat16" in need.kind) == (dtype == "float32")


def test_the_processor_of_this_machine_is_read():
    here = this_processor()
    assert here.memory > 2**28
    if sys.platform == "linux":
        assert len(here.features) > 3
    assert all(isinstance(here.computes_in(dtype), bool) for dtype in HALF)


def test_responses_of_a_gpu_are_not_those_of_the_cpu(folder: Path):
    entry = ModelSpec(Checkpoint(str(folder)), "half", place="models.txt:1")
    keys = [identify(entry, "auto", "auto", device).key() for device in ("cpu", "cuda", "cuda:1")]
    # The same as before there was a choice, so that responses of older versions are found again.
    assert "device" not in keys[0]
    assert [key.get("device") for key in keys] == [None, "cuda", "cuda"]
    assert json.dumps(keys).count("auto") == 3  # the chat templates


@pytest.mark.parametrize(
    ("own", "of_run", "placed"),
    [(None, "auto", "cpu"), (None, "cuda", "cuda"), ("auto", "cuda", "cpu"), ("mps", "auto", "mps")],
)
def test_a_line_of_the_pool_file_comes_before_the_option(
    monkeypatch: pytest.MonkeyPatch, own: str | None, of_run: str, placed: str
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert device_of(ModelSpec(Checkpoint("x"), "x", device=own), of_run, "local") == placed


def test_on_a_cluster_auto_is_a_gpu_only_where_one_is_requested(monkeypatch: pytest.MonkeyPatch):
    # The GPU of this machine is not in the cluster.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    entry = ModelSpec(Checkpoint("x"), "x")
    assert device_of(entry, "auto", "ray") == "cpu"
    assert device_of(replace(entry, resources=Resources(num_gpus=0.5)), "auto", "ray") == "cuda"


@pytest.mark.parametrize(("sees_cuda", "device"), [(False, "cpu, mps"), (True, "cuda, mps")])
def test_a_result_says_which_devices_and_types_it_was(monkeypatch: pytest.MonkeyPatch, sees_cuda: bool, device: str):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: sees_cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    entries = [ModelSpec(Checkpoint(name), name, device=own) for name, own in (("a", None), ("b", "mps"))]
    dev = SimpleNamespace(scorer=None, metric="exact_match", origin=None)
    options, cluster = SelectOptions(), ClusterOptions()
    config: Any = SimpleNamespace(command="", options=options, cluster=cluster, candidates=entries, dev=dev)
    types = {"a": "bfloat16", "b": "float32"}
    known = {
        each.name: Fingerprint(replace(each, dtype=types[each.name], device=device_of(each, "auto", "local")))
        for each in entries
    }
    profiler: Any = SimpleNamespace(identities=known, models=SimpleNamespace(seconds={}, threads={}))
    found = provenance_of_run(config, profiler).model_dump()
    assert (found["device"], found["dtype"]) == (device, "bfloat16, float32")
    assert [model["device"] for model in found["models"].values()] == device.split(", ")


AS_IN_THE_RUN = ServeOptions(run="runs/x")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_run_of_a_gpu_is_refused_without_one_in_a_line_that_names_the_option(folder: Path):
    place = "runs/x/result.json"
    spec = ModelSpec(Checkpoint(str(folder)), "half", "cuda", "bfloat16", "never", place=place)
    message = "half ran on another device, which --device replaces: device cuda: not on this machine; use one of cpu,"
    with pytest.raises(InputError, match=f"^{place}: {message}"):
        entries_as([spec], AS_IN_THE_RUN)
    with pytest.raises(InputError, match=f"^{message}"):
        loaded_as([spec], AS_IN_THE_RUN)
    (changed,) = entries_as([spec], replace(AS_IN_THE_RUN, device="auto"))
    assert (changed.device, changed.dtype) == ("auto", "bfloat16")
    assert loaded_as([spec], replace(AS_IN_THE_RUN, device="auto")) == (replace(spec, device="cpu"),)
