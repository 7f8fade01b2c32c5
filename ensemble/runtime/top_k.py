"""The k largest logits of each row, the lower id first among equals."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

_RANKED, _RANKED_AT_ONCE = 32, 2**14
"""Below these sizes (values of a row over k, values of all rows) a row is searched whole; measured."""
_SORTED, _SORTED_AT_ONCE = 16, 2**10
"""The same where they are sorted: few values, and those in double precision."""
_CONVERTED = 2**18
"""Values of half precision that are converted at a time."""


def top_k(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of logits [B, V] and their ids, both [B, k]; lower ids first among equals.

    If V is smaller than k, all of them. It needs no copy from the device. Where a logit is NaN, one of the k values of
    its row is NaN.
    """
    ids = _first(values, min(k, values.shape[1]))
    return values.gather(1, ids), ids


def _first(values: Tensor, k: int) -> Tensor:
    """The positions [B, k] of the k largest values [B, n]; lower positions first among equals."""
    rows, width = values.shape
    # Of few values a sort is the quickest, being a single operation.
    if rows * width <= _SORTED_AT_ONCE or (values.dtype == torch.float64 and width <= _SORTED * k):
        return values.sort(dim=1, descending=True, stable=True).indices[:, :k]
    if values.dtype != torch.float64 and (width <= _RANKED * k or rows * width <= _RANKED_AT_ONCE):
        return _first_by_key(values, k)
    # The row is cut into chunks of neighbours, and the chunks are put in the order of their first values: those that
    # come before all others of their chunk. If a chunk is not among the first k, then k values of other chunks come
    # before its first value, and so before all its values. Therefore the k largest are in the first k chunks. The first
    # value of a chunk is its maximum, and of two equal maxima the one in the lower chunk has the lower position. So the
    # order of the chunks is that of their maxima, among equals by number, which this function finds.
    size = 2 ** round(math.log2(width / k) / 2)
    whole = width - width % size
    chunks = _first(_maxima(values[:, :whole], size), k).sort(dim=1).values
    positions = (chunks[:, :, None] * size + _constant(_range, size, values.device)).flatten(1)
    if whole < width:
        # What is left over at the end of the rows is less than a chunk, and always taken.
        rest = _constant(_range, width, values.device)[whole:].expand(rows, -1)
        positions = torch.cat([positions, rest], dim=1)
    # The chunks are in ascending order, so among equals the lower place is the lower position.
    best: Tensor = positions.gather(1, _first(values.gather(1, positions), k))
    return best


def _maxima(values: Tensor, size: int) -> Tensor:
    """The maxima [B, n / size] of chunks of neighbours."""
    shape = (-1, values.shape[1] // size, size)
    if values.dtype not in (torch.float16, torch.bfloat16) or values.device.type != "cpu":
        return values.view(shape).amax(dim=2)
    # A processor computes in single precision. To convert a few rows at a time keeps them in its cache.
    parts = values.split(max(1, _CONVERTED // values.shape[1]))
    return torch.cat([part.float().view(shape).amax(dim=2) for part in parts])


def _first_by_key(values: Tensor, k: int) -> Tensor:
    """See :func:`_first`; for types of at most single precision, several times as fast as a sort of many values.

    torch.topk leaves the order of equals open. So equals are made different, in double precision: from each value
    ``v`` the ``(|v| + 2^-149) * 2^-48`` fold of its position is subtracted. Two different values of single precision
    are at least ``(|v| + 2^-149) * 2^-25`` apart, where v is the one farther from 0. So up to position 2^23 nothing
    that is smaller comes before what is larger.
    """
    # An infinite value would swallow what is subtracted; beyond the range of single precision any other number will do.
    wide = values.double().clamp_(-1e39, 1e39)
    keys = wide.addcmul(wide.abs().add_(2.0**-149), _constant(_steps, values.shape[1], values.device))
    return keys.topk(k, dim=1).indices


def _range(width: int, device: torch.device) -> Tensor:
    return torch.arange(width, device=device)


def _steps(width: int, device: torch.device) -> Tensor:
    return torch.arange(width, dtype=torch.float64, device=device) * -(2.0**-48)


def _constant(make: Callable[[int, torch.device], Tensor], width: int, device: torch.device) -> Tensor:
    """``make(width, device)``, kept for later steps; compiled code, which cannot use what is kept, makes it itself."""
    return make(width, device) if torch.compiler.is_compiling() else _kept(make, width, device)


@lru_cache(maxsize=128)  # a few for each size of vocabulary
def _kept(make: Callable[[int, torch.device], Tensor], width: int, device: torch.device) -> Tensor:
    return make(width, device)
