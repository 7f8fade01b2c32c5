"""The numeric type in which a model computes, and what ``dtype=auto`` means on each device."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from ensemble.errors import InputError

HALF = {
    "bfloat16": {"amx_bf16", "avx512_bf16", "bf16"},
    "float16": {"amx_fp16", "avx512_fp16", "asimdhp"},
}
"""The types of 16 bits, and the features of processors that compute in them, as Linux names them; the last is ARM's."""
_SHARE = 4
"""Float32 replaces a slow type if a model then takes at most this part of the memory, so that sets of three fit."""


class Processor(NamedTuple):
    """What decides the meaning of ``auto`` on a CPU. It is the same in each run on one machine."""

    features: frozenset[str]  # as Linux names them; empty on other systems
    memory: int  # bytes of memory of the machine, free or not; 0 if that is not known

    def computes_in(self, dtype: str) -> bool:
        """Whether it has units for a type; without them prompts take 5 to 13 times as long as in float32."""
        return dtype not in HALF or not HALF[dtype].isdisjoint(self.features)


@cache
def this_processor() -> Processor:
    """The processor of this machine."""
    features: frozenset[str] = frozenset()
    try:
        # One list for each core, and all cores have the same; the second name is ARM's.
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        lists = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
        features = frozenset(next(lists, "").split())
    except OSError:
        pass
    known = hasattr(os, "sysconf")
    return Processor(features, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if known else 0)


def stored_dtype(config: object) -> str:
    """The type of a model's stored weights, as its configuration names it; float32 if it names none."""
    return str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")


def usable_dtype(
    dtype: str, config: object, device: torch.device, parameters: int, processor: Processor | None = None
) -> str:
    """The type of a model: float32 if ``auto`` is a type that the device lacks or is slow in, else ``dtype``.

    The features of the processor decide, and not a measurement, because responses are stored by the type.
    ``parameters`` is 0 if it is not known, or for quantised weights. InputError if the device lacks a requested type.
    """
    wanted = stored_dtype(config) if dtype == "auto" else dtype
    if device.type == "cpu" and dtype == "auto":
        here = processor or this_processor()
        in_float32 = parameters * torch.float32.itemsize
        fits = 0 < in_float32 <= here.memory // _SHARE and getattr(config, "quantization_config", None) is None
        return "float32" if fits and not here.computes_in(wanted) else "auto"
    # Only MPS lacks types: float64, and before macOS 14 bfloat16.
    if device.type != "mps":
        return dtype
    try:
        torch.empty(0, dtype=getattr(torch, wanted), device=device)
    except (RuntimeError, TypeError) as error:
        if dtype == "auto":
            return "float32"
        raise InputError(f"dtype {dtype}: {device} cannot compute in it; use float32, or another device") from error
    return dtype
