"""Memory: what a model needs by its files, held against what it takes, and where several models are placed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from advisor.pool.fit import need_of_entry
from advisor.pool.pool_file import PoolEntry
from ensemble.models.memory import MemoryNeed
from ensemble.models.spec import Checkpoint

pytest_plugins = ["pools"]

SEVEN = MemoryNeed(7_600_000_000, "bfloat16", 15_200_000_000, 57_344, 152_064, 3584, 28)
MEASURE = """
import resource, sys, torch
from advisor.profile.generate import peak_memory, reset_peak_memory
from ensemble import Ensemble
from pathlib import Path
import transformers
import ensemble.models.load
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
# What the libraries take once, before any model, is no part of the estimate.
Ensemble.from_pretrained([sys.argv[1]], dtype="float32").generate(["warm"], max_new_tokens=2)
reset_peak_memory()
before = resident()
e = Ensemble.from_pretrained([sys.argv[2]], dtype="float32")
e.generate(["x" * 200] * 8, max_new_tokens=56)
print(peak_memory() - before)
"""


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


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is read from Linux's /proc")
def test_the_estimate_is_within_a_factor_of_1_6_of_what_a_small_model_takes(tmp_path: Path) -> None:
    small, large = save(tmp_path / "small", 64, 2), save(tmp_path / "large", 768, 10)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, small, large], capture_output=True, text=True, check=True, timeout=100
    )
    measured, need = int(done.stdout.split()[-1]), need_of_entry(entry(large), "float32")
    assert need is not None
    assert 1 / 1.6 < need.total(8, 256) / measured < 1.6, (need.total(8, 256), measured)
