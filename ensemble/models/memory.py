"""Whether a model's weights fit, said with numbers before anything is loaded."""

from __future__ import annotations

import json
import os
import struct
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ensemble.errors import MemberError
from ensemble.models import gguf
from ensemble.models.spec import Checkpoint

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_GIB = 2**30


def check_memory(name: str, checkpoint: Checkpoint, dtype: str, device: torch.device) -> None:
    """Make sure that the weights of a local model fit on a device; what is on the hub is not known before.

    Raises:
        MemberError: They do not; says how much they need, and how much is free.
    """
    needed, how = 0, ""
    if checkpoint.is_local and checkpoint.gguf is not None:
        needed = gguf.dense_size(Path(checkpoint.location, checkpoint.gguf), getattr(torch, dtype))
        how = " (a GGUF file's weights are made dense)"
    elif checkpoint.is_local:
        needed = weights_size(Path(checkpoint.location), dtype)
    free = free_memory(device)
    if free is not None and needed > free:
        raise MemberError(
            f"{name}: its weights need {needed / _GIB:.1f} GiB in {dtype}{how}, and {device} has "
            f"{free / _GIB:.1f} GiB free; use a smaller dtype (bfloat16), another device, or fewer models"
        )


def weights_size(folder: Path, dtype: str) -> int:
    """Bytes of a folder's weights in a numeric type (``auto``: as they are stored), by the headers of its files."""
    stored, numbers = 0, 0
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
            try:
                header = json.loads(file.read(min(length, path.stat().st_size)))
            except ValueError:
                continue  # a damaged file is reported by the library that reads it
        tensors = [entry for key, entry in header.items() if key != "__metadata__"]
        stored += sum(entry["data_offsets"][1] - entry["data_offsets"][0] for entry in tensors)
        numbers += sum(prod(entry["shape"]) for entry in tensors)
    return stored if dtype == "auto" else numbers * getattr(torch, dtype).itemsize


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on a device; None where that is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    try:
        # What the system can give without swapping; free pages alone leave out what it merely caches.
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None


def token_size(config: PretrainedConfig, dtype: torch.dtype) -> int:
    """Bytes of the keys and values that a model keeps for a token, by its configuration; 0 where that does not say."""
    heads = getattr(config, "num_attention_heads", None)
    if not isinstance(heads, int):
        return 0
    # Where fewer heads keep keys and values, most configurations say so by this name; else it is an upper limit.
    kept = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * config.num_hidden_layers * kept * width * dtype.itemsize)


def rows_that_fit(bytes_per_token: int, tokens: int, free: int | None) -> int | None:
    """How many rows of so many tokens a device has room for, at least 1; None where what is free is not known.

    Half of the room stays for what is copied when rows come, go and grow.
    """
    return None if free is None else max(1, free // (2 * max(1, bytes_per_token * tokens)))
