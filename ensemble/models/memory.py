"""Memory and numeric types: what a model needs and what a device has, before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ensemble.common.text import memory
from ensemble.errors import InputError, MemberError
from ensemble.models.spec import resolve_device

if TYPE_CHECKING:
    from transformers import PretrainedConfig

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
    memory: int  # bytes of memory of the machine, free or not

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
    return Processor(features, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def stored_dtype(config: object) -> str:
    """The type of a model's stored weights, as its configuration names it; float32 if it names none."""
    return str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")


def usable_dtype(dtype: str, config: object, device: torch.device, parameters: int) -> str:
    """The type of a model: float32 if ``auto`` is a type that the device lacks or is slow in, else ``dtype``.

    The features of the processor decide, and not a measurement, because responses are stored by the type.
    ``parameters`` is 0 if it is not known, or for quantised weights. InputError if the device lacks a requested type.
    """
    wanted = stored_dtype(config) if dtype == "auto" else dtype
    if device.type == "cpu" and dtype == "auto":
        here, in_float32 = this_processor(), parameters * torch.float32.itemsize
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


_GIB = 2**30
_BITS = {"4bit": 4.127, "8bit": 8.0}
"""Bits of a quantised weight. With 4 bits each 64 weights have a scale of 8 bits, and each 256 scales one of 32."""

_GROUPS = Path("/proc/self/cgroup")
_GROUP_ROOT = Path("/sys/fs/cgroup")
_GROUP_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""The files of a control group's limit and use, and the part of its use that can be freed, by its controllers: of
version 2, and of version 1."""


class MemoryNeed(NamedTuple):
    """What a model needs on its device while it generates."""

    parameters: int  # the number of weights
    dtype: str  # the numeric type that they are loaded in
    weights: int  # bytes of the weights
    per_token: int  # bytes of a token's keys and values; 0 if the configuration does not tell
    vocabulary: int  # logits of a row
    width: int  # numbers of a token between two layers
    quantization: str | None = None  # one of QUANTIZATIONS, the method that the files name, or ``gguf``
    stored: str | None = None  # the type of the stored weights, where ``auto`` is another one

    @property
    def kind(self) -> str:
        """The form of the weights in memory, in words."""
        if self.quantization == "gguf":
            return f"{self.dtype} (GGUF weights are loaded unquantised)"
        if self.stored is not None:
            return f"{self.dtype} (stored in {self.stored}, in which this processor is slow)"
        return self.quantization or self.dtype

    def total(self, rows: int, tokens: int) -> int:
        """Bytes while a batch runs, without the libraries' code; ``tokens`` of the longest text, with its prompt."""
        # The cache is copied when it grows, so two of it exist for a moment. A layer keeps about 8 vectors of the
        # hidden width for a token that it reads; tests hold the number against what a model takes. The logits of a
        # row exist in float32, once as they are and once as probabilities.
        size: int = getattr(torch, self.dtype).itemsize
        return self.weights + rows * (tokens * (2 * self.per_token + 8 * size * self.width) + 2 * 4 * self.vocabulary)


def need_of(
    parameters: int, stored: int, config: PretrainedConfig, dtype: str, quantization: str | None = None
) -> MemoryNeed:
    """The memory that a model needs, by the number of weights and the bytes of its files; ``auto`` as stored."""
    text: Any = config.get_text_config()
    vocabulary, width = (_count(text, name) for name in ("vocab_size", "hidden_size"))
    named = stored_dtype(config) if dtype == "auto" else dtype
    computed = getattr(torch, named, torch.float32)
    weights = parameters * computed.itemsize
    if stored and (as_stored := _stored_as(config)) is not None:
        # No numeric type changes these weights, and several of them are packed into one number of the files.
        weights, quantization = stored, as_stored
    elif dtype == "auto" and stored:
        # Files may have another type than the configuration names. The smaller one, because an estimate that is too
        # large would refuse a run that works.
        weights = min(stored, weights)
    if quantization in _BITS:
        # The embeddings and the head stay as they are; tied ones are stored once.
        kept = min(parameters, vocabulary * width * (1 if getattr(text, "tie_word_embeddings", False) else 2))
        weights = int((parameters - kept) * _BITS[quantization] / 8) + 2 * kept
    per_token = token_size(text, computed) if _count(text, "num_hidden_layers") else 0
    return MemoryNeed(parameters, named, weights, per_token, vocabulary, width, quantization)


def _stored_as(config: PretrainedConfig) -> str | None:
    """The quantisation that a model's files have already."""
    stored: Any = getattr(config, "quantization_config", None)
    if stored is None:
        return None
    method = stored.get("quant_method") if isinstance(stored, dict) else getattr(stored, "quant_method", None)
    return str(getattr(method, "value", method) or "quantised")[:20]


def _count(config: object, name: str) -> int:
    value = getattr(config, name, None)
    # A stranger's file can have a negative number.
    return value if isinstance(value, int) and value > 0 else 0


def in_words(needs: Mapping[str, MemoryNeed]) -> str:
    """Models and the memory of their weights: "3 models of 7.6 billion parameters in bfloat16: 46 GB"."""
    ordered = sorted(each.parameters for each in needs.values())
    sizes = list(dict.fromkeys(f"{count / 1e9:.1f}" if count >= 1e8 else "<0.1" for count in ordered))
    span = sizes[0] if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    kinds = "/".join(sorted({each.kind for each in needs.values()}))
    count = next(iter(needs)) if len(needs) == 1 else f"{len(needs)} models"
    return f"{count} of {span} billion parameters in {kinds}: {memory(sum(each.weights for each in needs.values()))}"


def check_memory(
    name: str, weights: tuple[int, int], dtype: str, device: torch.device, *, is_gguf: bool = False
) -> None:
    """Raise a MemberError if ``weights`` (their number, and the files' bytes) do not fit on a device."""
    count, stored = weights
    needed = stored if dtype == "auto" else count * getattr(torch, dtype).itemsize
    how = " (GGUF weights are loaded unquantised)" if is_gguf else ""
    free = free_memory(device)
    if free is not None and needed > free:
        raise MemberError(
            f"its weights need {needed / _GIB:.1f} GiB in {dtype}{how}, and {device} has "
            f"{free / _GIB:.1f} GiB free; use a smaller dtype (bfloat16), another device, or fewer models",
            of=name,
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
        available = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return this_processor().memory
    return min([available, *free_in_groups()])


def free_in_groups() -> Iterator[int]:
    """Bytes that are free in each control group of this process that has a limit: a container's, or a batch job's."""
    try:
        lines = [line.split(":", 2) for line in _GROUPS.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return
    for _, controllers, path in lines:
        if controllers not in _GROUP_FILES:
            continue
        limit, used, cache = _GROUP_FILES[controllers]
        top = _GROUP_ROOT / controllers
        own = top / path[1:]
        # A container sees its own group as the topmost.
        for folder in {top, own, *(parent for parent in own.parents if parent.is_relative_to(top))}:
            # A group without a limit has a word there, or no such file.
            with suppress(OSError, ValueError, KeyError):
                most, now = (int((folder / name).read_text(encoding="ascii")) for name in (limit, used))
                figures = dict(line.split() for line in (folder / "memory.stat").read_text("ascii").splitlines())
                yield max(most - now + int(figures[cache]), 0)


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
    """Rows of so many tokens that fit, at least 1; None if the device's free bytes are unknown."""
    # Half of the memory is left for the spare rows and slots of the caches, and for what a forward pass makes.
    return None if free is None else max(1, free // (2 * max(1, bytes_per_token * tokens)))


def parse_device(device: str) -> torch.device:
    """The device with this name; InputError if this machine has none."""
    try:
        place = torch.device(resolve_device(device))
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        devices = ["cpu", *(f"cuda:{n}" for n in range(torch.cuda.device_count()))]
        devices += ["mps"] * torch.backends.mps.is_available()
        # A machine with a GPU and a torch for CPUs is common, and looks like a machine without a GPU.
        build = "; this torch is built without CUDA" * (device.startswith("cuda") and torch.version.cuda is None)
        raise InputError(
            f"device {device}: not on this machine; use one of {', '.join((*devices, 'auto'))}{build}"
        ) from error
    return place
