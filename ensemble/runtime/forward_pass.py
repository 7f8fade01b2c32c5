"""What goes into a forward pass: which rows are read together, and how their ids get to the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_CPU_PASS_TOKENS = 512
_ACCELERATOR_PASS_TOKENS = 8192
_CPU_PASS_LOGITS = 2**26
_ACCELERATOR_PASS_LOGITS = 2**28
"""Logits of a forward pass, where it computes more of them than are needed: 256 MiB and 1 GiB in float32."""


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device. The host does not wait for a copy to a GPU: what is computed there later waits for it."""
    # Elsewhere a copy that is not waited for is not safe: one to the host could be read before it is there.
    if device.type != "cuda":
        return tensor.to(device)
    # Only from pinned memory does a copy run while the host goes on.
    return (tensor.pin_memory() if tensor.device.type == "cpu" else tensor).to(device, non_blocking=True)


def pass_tokens(device: torch.device) -> int:
    """The largest number of tokens, padding included, of a forward pass over prompts."""
    # A CPU works fastest on what its caches hold; an accelerator needs more tokens to use all of its cores.
    return _CPU_PASS_TOKENS if device.type == "cpu" else _ACCELERATOR_PASS_TOKENS


def pass_logits(device: torch.device, vocabulary: int) -> int:
    """The largest number of tokens of a forward pass whose logits are computed, for so many logits of each."""
    return max(1, (_CPU_PASS_LOGITS if device.type == "cpu" else _ACCELERATOR_PASS_LOGITS) // vocabulary)


def plan_passes(lengths: Sequence[int], max_tokens: int, max_extra: int | None = None) -> list[list[int]]:
    """Split rows into passes of similar lengths and at most ``max_tokens``, padding included; a longer row is alone.

    At most ``max_extra`` tokens of a pass are after the end of its shortest row. A single pass keeps the rows' order.
    """

    def fit(rows: int, shortest: int, longest: int) -> bool:
        return rows * longest <= max_tokens and (max_extra is None or rows * (longest - shortest) <= max_extra)

    if not lengths or fit(len(lengths), min(lengths), max(lengths)):
        return [list(range(len(lengths)))]
    passes: list[list[int]] = []
    for n in sorted(range(len(lengths)), key=lengths.__getitem__):
        if passes and fit(len(passes[-1]) + 1, lengths[passes[-1][0]], lengths[n]):
            passes[-1].append(n)
        else:
            passes.append([n])
    return passes


def run_passes(passes: Sequence[Sequence[int]], run: Callable[[Sequence[int]], Tensor]) -> Tensor:
    """Run passes (numbers of their rows) in turn; the logits [rows, last, V] of all, in the order of the rows."""
    if len(passes) == 1:
        return run(passes[0])
    rows = {n: row for numbers in passes for n, row in zip(numbers, run(numbers), strict=True)}
    return torch.stack([rows[n] for n in range(len(rows))])
