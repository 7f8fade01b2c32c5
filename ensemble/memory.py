"""Whether a model's weights fit, said with numbers before anything is loaded."""

from __future__ import annotations

import json
import os
import struct
from math import prod
from pathlib import Path

import torch

from ensemble.checkpoint import Checkpoint
from ensemble.errors import MemberError

_GIB = 2**30


def check_memory(name: str, checkpoint: Checkpoint, dtype: str, device: torch.device) -> None:
    """Make sure that the weights of a local folder fit on a device; what is on the hub is not known before.

    Raises:
        MemberError: They do not; says how much they need, and how much is free.
    """
    needed = weights_size(Path(checkpoint.location), dtype) if checkpoint.is_local else 0
    free = free_memory(device)
    if free is not None and needed > free:
        raise MemberError(
            f"{name}: its weights need {needed / _GIB:.1f} GiB in {dtype}, and {device} has {free / _GIB:.1f} GiB "
            "free; use a smaller dtype (bfloat16), another device, or fewer models"
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
