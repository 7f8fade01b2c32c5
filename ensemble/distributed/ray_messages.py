"""What crosses the network, as bytes: small integers, tensors as their numbers, and never a whole vocabulary.

Ray sends bytes unchanged. So counting them here counts all that a step sends, except for each message's envelope.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch
from torch import Tensor

Packed = tuple[str, tuple[int, ...], bytes]
"""A tensor: the name of its type, its shape, its numbers."""
BATCH_LOST = None
"""The reply of a worker that does not have the batch of a request, because it was restarted."""


def packed(value: Any) -> bytes:
    """Plain values as bytes."""
    # Pickle is safe here: Ray itself uses it for everything between the processes of a job.
    return pickle.dumps(value, protocol=5)


def unpacked(data: bytes) -> Any:
    """The values that :func:`packed` made bytes of."""
    return pickle.loads(data)


def pack_tensor(tensor: Tensor) -> Packed:
    """A tensor as it is sent: on the CPU, whole numbers in 32 bits."""
    if not tensor.dtype.is_floating_point:
        # 32 bits hold every token id and halve the message.
        tensor = tensor.to(torch.int32)
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.cpu().contiguous().numpy().tobytes()


def unpack_tensor(sent: Packed) -> Tensor:
    """The tensor that was sent; whole numbers in 64 bits."""
    name, shape, data = sent
    dtype: torch.dtype = getattr(torch, name)
    # A copy, because torch warns of a tensor on bytes that cannot be written. It refuses an empty buffer.
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(shape)
    return tensor if dtype.is_floating_point else tensor.long()
