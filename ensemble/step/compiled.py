"""A step of UNITE on a processor in compiled code, ``compiled.c``, which a wheel has if it was built with a C compiler.

A step of one text has little to compute, so the calls of some forty operations on tensors are most of its time. Without
the compiled code, and on other devices, tensors do the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ensemble.step.distribution import Distribution
from ensemble.vocabulary.joint import JointVocabulary

LIBRARY = Path(__file__).with_name("_compiled.so")
_MOST_CANDIDATES, _MOST_ENTRIES = 64, 1024
"""Those of each member, and of all, that ``compiled.c`` has room for."""
_TYPES = (torch.float32, torch.bfloat16)


class _Member(ctypes.Structure):
    """``struct member`` of ``compiled.c``."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("is_half", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("candidates", ctypes.c_int64),
        ("entry_of", ctypes.c_void_p),
    )


def _load() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError:  # it was not built, or for another kind of machine
        return None
    number, address = ctypes.c_int64, ctypes.c_void_p
    library.unite_union.argtypes = [number, address, number, number, *[address] * 8]
    library.unite_choice.argtypes = [number, number, *[address] * 5]
    library.unite_union.restype = library.unite_choice.restype = None
    return library


library = _load()
"""None where it is not there."""


def union(logits: Sequence[Tensor], joint: JointVocabulary, k: int, weights: Tensor) -> Distribution | None:
    """Steps 1 to 6 of UNITE, as in :func:`ensemble.methods.unite.union`; sums are in float64.

    The logits [B, V_i] have minus infinity for ids that are no candidates. None if tensors have to do it.
    """
    count, rows = len(logits), len(logits[0])
    if library is None or k > _MOST_CANDIDATES or k * count > _MOST_ENTRIES or not all(map(_is_readable, logits)):
        return None
    weights, counts = weights.double(), [min(k, z.shape[1]) for z in logits]
    width = sum(counts)
    wanted, entries, ids = torch.empty(3, rows, width, dtype=torch.long).unbind()
    present = torch.empty(rows, width, dtype=torch.bool)
    probabilities = torch.empty(count + 1, rows, width)
    members = [
        _Member(z.data_ptr(), z.dtype == torch.bfloat16, z.shape[1], z.stride(0), n, tables.entry_of.data_ptr())
        for z, n, tables in zip(logits, counts, joint.members, strict=True)
    ]
    library.unite_union(
        count,
        (_Member * count)(*members),
        rows,
        joint.size + 1,
        joint.places.data_ptr(),
        joint.penalties.data_ptr(),
        weights.data_ptr(),
        wanted.data_ptr(),
        entries.data_ptr(),
        ids.data_ptr(),
        present.data_ptr(),
        probabilities.data_ptr(),
    )
    tops = wanted.split_with_sizes(counts, dim=1)
    return Distribution(entries, present, ids, probabilities[:count], probabilities[count], tuple(tops))


def choice(step: Distribution) -> Tensor | None:
    """[B, 3] in float64: the sum of each row's mean, the token that wins, and the number of present entries.

    The winner is that of :func:`ensemble.step.distribution.greedy`. None if tensors have to do it.
    """
    parts = (step.mean, step.members[0], step.ids, step.present)
    types = (torch.float32, torch.float32, torch.long, torch.bool)
    if library is None or step.mean.device.type != "cpu" or tuple(part.dtype for part in parts) != types:
        return None
    rows, width = step.ids.shape
    mean, first, ids, present = (part.contiguous() for part in parts)
    numbers = torch.empty(rows, 3, dtype=torch.float64)
    library.unite_choice(
        rows, width, mean.data_ptr(), first.data_ptr(), ids.data_ptr(), present.data_ptr(), numbers.data_ptr()
    )
    return numbers


def _is_readable(logits: Tensor) -> bool:
    return logits.device.type == "cpu" and logits.dtype in _TYPES and logits.stride(1) == 1
