"""Memory: what a model needs and what a device has free, before anything is loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ensemble.errors import MemberError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_GIB = 2**30


def check_memory(
    name: str, weights: tuple[int, int], dtype: str, device: torch.device, *, is_gguf: bool = False
) -> None:
    """Check that the weights of a model fit on a device.

    Args:
        name: The model's name.
        weights: The number of weights in its files, and the files' bytes.
        dtype: The type to load them in; ``auto`` is the stored one.
        device: The device.
        is_gguf: Whether they are in the format GGUF.

    Raises:
        MemberError: They do not; the message has the bytes that they need and the bytes that are free.
    """
    count, stored = weights
    needed = stored if dtype == "auto" else count * getattr(torch, dtype).itemsize
    how = " (GGUF weights are loaded unquantised)" if is_gguf else ""
    free = free_memory(device)
    if free is not None and needed > free:
        raise MemberError(
            f"{name}: its weights need {needed / _GIB:.1f} GiB in {dtype}{how}, and {device} has "
            f"{free / _GIB:.1f} GiB free; use a smaller dtype (bfloat16), another device, or fewer models"
        )


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on a device; None if this is unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    # Other devices (MPS, XPU) have no common way to ask.
    if device.type != "cpu":
        return None
    try:
        # MemAvailable counts memory that the system can free without swapping; MemFree would leave out its caches.
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None


def token_size(config: PretrainedConfig, dtype: torch.dtype) -> int:
    """Bytes of a token's keys and values in a model's cache, by its configuration; 0 if that does not tell."""
    heads = getattr(config, "num_attention_heads", None)
    if not isinstance(heads, int):
        return 0
    # With grouped-query attention fewer heads have keys and values. Most configurations use this name; for others the
    # result is an upper limit.
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * config.num_hidden_layers * kv_heads * width * dtype.itemsize)


def rows_that_fit(bytes_per_token: int, tokens: int, free: int | None) -> int | None:
    """How many rows of a batch fit on a device, at least 1; None if its free memory is unknown.

    Args:
        bytes_per_token: Bytes of a token's keys and values in all members.
        tokens: Tokens of a row.
        free: Bytes that are free.
    """
    # Half of the memory is left for the spare rows and slots of the caches, and for what a forward pass makes.
    return None if free is None else max(1, free // (2 * max(1, bytes_per_token * tokens)))
