"""What crosses the network, as bytes: small integers as they are, tensors as their numbers, whole vocabularies never.

Ray sends bytes as they are. So what is counted here is all that a step says, but for the envelope of each message.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Packed = tuple[str, tuple[int, ...], bytes]
"""A tensor: the name of its type, its shape, its numbers."""
LOST = None
"""What a node answers that does not have the contexts it is asked about: it was started anew since."""


@dataclass(slots=True)
class Traffic:
    """What was said over a line so far.

    Attributes:
        calls: Messages to the node; each but the notes that rows are gone has one back.
        sent: Bytes to the node.
        received: Bytes from it.
    """

    calls: int = 0
    sent: int = 0
    received: int = 0


def packed(value: Any) -> bytes:
    """Plain values as bytes. It is pickle, as all else that Ray sends between the processes of a job."""
    return pickle.dumps(value, protocol=5)


def unpacked(data: bytes) -> Any:
    """What :func:`packed` was given."""
    return pickle.loads(data)


def pack_tensor(tensor: Tensor) -> Packed:
    """A tensor for the wire, on the processor; whole numbers in 32 bits, which hold any id."""
    if not tensor.dtype.is_floating_point:
        tensor = tensor.to(torch.int32)
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.cpu().contiguous().numpy().tobytes()


def unpack_tensor(sent: Packed) -> Tensor:
    """A tensor from the wire; whole numbers in 64 bits."""
    name, shape, data = sent
    dtype: torch.dtype = getattr(torch, name)
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(shape)
    return tensor if dtype.is_floating_point else tensor.long()
