"""The benchmarks run and keep their promises about what they print; how fast anything is, no test says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import decode, gpu, profiling, serving, start, steps
from ensemble.methods import list_methods


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_decode_prints_one_json_object_with_every_promised_ratio(capsys):
    assert decode.main(["--quick", "--json", "--threads", "1"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(decode.KEYS) <= set(printed)
    assert all(value is None or value > 0 for value in printed.values())
    for name in ("step_over_topk", "plain_over_members_middle", "tables_first_s", "tables_again_s", "peak_memory_mib"):
        assert printed[name] is not None, name


def test_start_prints_one_json_object_with_every_figure(capsys):
    assert start.main(["--quick", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert tuple(printed) == start.KEYS
    assert printed["help_over_python"] > 0


def test_gpu_runs_on_a_processor_too_and_keeps_its_result_with_the_hardware(capsys, tmp_path: Path):
    assert gpu.main(["--quick", "--json", "--device", "cpu", "--threads", "1", "--save", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    for end in ("qwen2_llama3", "llama2_qwen2_llama3", "llama2_llama3"):
        speeds = ["tokens_per_second", *(f"speed_over_{name}" for name in end.split("_"))]
        names = [f"{speed}_{size}" for speed in speeds for size in (1, 16, 64)]
        assert all(printed[f"plain_{name}_{end}"] > 0 for name in names)
    assert printed["step_over_topk"] > 0
    kept = json.loads((tmp_path / "gpu_cpu.json").read_text(encoding="utf-8"))
    assert {"processor", "cores", "memory_gib", "torch", "torch_threads"} <= set(kept["machine"])
    assert {name: figure["value"] for name, figure in kept["figures"].items()} == printed


def test_profiling_writes_as_much_as_lm_eval_and_the_same(capsys, tmp_path: Path):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    # The other parts start process after process, each of which loads torch.
    options = ["--quick", "--json", "--threads", "1", "--only", "throughput"]
    assert profiling.main([*options, "--save", str(tmp_path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(profiling.KEYS) <= set(printed)
    assert printed["throughput_over_lm_eval"] > 0
    assert printed["same_responses"] == 1
    assert json.loads((tmp_path / "profiling.json").read_text(encoding="utf-8"))["quick"] is True


def test_steps_measures_every_token_level_method_that_fits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert steps.main(["--quick", "--json", "--threads", "1"]) == 0
    printed = json.loads(capsys.readouterr().out)
    names = [name.replace("-", "_") for name, method in list_methods().items() if method.level == "token"]
    whole = {"unite_ms", "peak_memory_mib"}
    assert printed.keys() == {*whole, *(f"{name}_over_unite" for name in names[1:])}
    unmeasured = {name for name, value in printed.items() if value is None}
    assert unmeasured == {"average_over_unite", "deepen_adapt_over_unite"}


def test_serving_loses_no_request_and_refuses_one_over_the_limit(capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    assert serving.main(["--quick", "--json", "--threads", "1"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["lost"], printed["same_texts"]) == (0, 1)
    assert printed["serving_speedup"] > 0
    assert printed["refused_over_limit"] >= 1
