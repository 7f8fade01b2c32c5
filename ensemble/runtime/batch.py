"""Which prompts are read together, so that a device works at its best and reads little padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_ON_A_PROCESSOR = 512
_ELSEWHERE = 8192


def tokens_of_a_pass(device: torch.device) -> int:
    """Tokens, padding included, that a device reads at a time.

    A processor works fastest on what its caches hold; an accelerator needs more to be busy.
    """
    return _ON_A_PROCESSOR if device.type == "cpu" else _ELSEWHERE


def in_passes(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Which rows are read together: such of like length, and not more tokens than may be.

    Args:
        lengths: Tokens of each row.
        most: Tokens of a pass, padding included; a row with more has one for itself.

    Returns:
        The numbers of the rows of each pass; in their order where one pass holds all.
    """
    if len(lengths) * max(lengths, default=0) <= most:
        return [list(range(len(lengths)))]
    passes: list[list[int]] = []
    for n in sorted(range(len(lengths)), key=lengths.__getitem__):
        if passes and (len(passes[-1]) + 1) * lengths[n] <= most:
            passes[-1].append(n)
        else:
            passes.append([n])
    return passes
