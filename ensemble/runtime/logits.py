"""A member's next-token logits of a step, in this process or in another one.

A method over whole vocabularies needs the logits here, as a tensor. UNITE and the methods built on it need only the k
largest of each member, and then those of some ids. So a member in another process keeps the rest there, and sends a
``RemoteRows`` in their place. Members of both kinds may be combined.
Of equal logits the one with the lower id comes first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias, cast

import torch
from torch import Tensor

from ensemble.runtime.remote_runner import RemoteRows

Logits: TypeAlias = Tensor | RemoteRows
"""One member's logits [rows, V], here or in another process."""
_RANKED, _RANKED_AT_ONCE = 32, 2**14
"""Below these sizes (values of a row over k, values of all rows) a row is searched whole; measured."""
_SORTED, _SORTED_AT_ONCE = 16, 2**10
"""The same where they are sorted: few values, and those in double precision."""
_CONVERTED = 2**18
"""Values of half precision that are converted at a time."""


def whole(logits: Sequence[Logits]) -> Sequence[Tensor]:
    """All members' logits [rows, V]; a TypeError for remote ones, which the method's declaration excludes."""
    if are_remote(logits):
        raise TypeError("this method needs all logits; of a member in another process only the top ones are available")
    return cast("Sequence[Tensor]", logits)


def are_remote(logits: Sequence[Logits]) -> bool:
    """Whether the logits of a member are in another process."""
    return not all(isinstance(each, Tensor) for each in logits)


def concat(first: Logits, second: Logits) -> Logits:
    """The rows of both, of one member."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return torch.cat([first, second])
    return cast("RemoteRows", first).concat(cast("RemoteRows", second))


def fault(logits: Logits, row: int) -> str | None:
    """Why no token can be chosen in a row; None if one can."""
    if not isinstance(logits, Tensor):
        return logits.fault(row)
    # Only asked after a step has failed: to ask at every step would make each step wait for the device.
    return "its logits are not numbers (NaN)" if bool(logits[row].isnan().any()) else None


def top_k(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest (all if V is smaller) of logits [B, V] and their ids, lower ids first; a NaN is among the k.

    It needs no copy from the device.
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
    positions = (chunks[:, :, None] * size + _range(size, values.device)).flatten(1)
    if whole < width:
        # What is left over at the end of the rows is less than a chunk, and always taken.
        rest = _range(width, values.device)[whole:].expand(rows, -1)
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
    keys = wide.addcmul(wide.abs().add_(2.0**-149), _steps(values.shape[1], values.device))
    return keys.topk(k, dim=1).indices


@lru_cache(maxsize=64)  # a few for each size of vocabulary
def _range(width: int, device: torch.device) -> Tensor:
    return torch.arange(width, device=device)


@lru_cache(maxsize=64)
def _steps(width: int, device: torch.device) -> Tensor:
    return torch.arange(width, dtype=torch.float64, device=device) * -(2.0**-48)
