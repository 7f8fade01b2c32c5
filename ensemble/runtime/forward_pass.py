"""What goes into a forward pass: which rows are read together, their ids on the device, and the key-value cache.

The cache has spare room: a step writes the new keys and values only, and copies nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

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


_MIN_SPARE_SLOTS = 64
"""Spare slots of a new tensor; an eighth of the needed slots where that is more."""


class GrowingLayer(DynamicLayer):
    """A layer whose keys and values [rows, heads, slots, width] are the first rows and slots of larger tensors.

    The library's own layer concatenates, so every step copies the whole cache. That takes longer than the attention
    itself, and on a CPU it also requests new memory pages from the system each time.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]  # transformers does not type all of its methods
        # The larger tensors of keys and of values; None before the first append.
        self._room: list[Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append slots; return all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        rows, old_slots = len(key_states), self.get_seq_length()
        slots = old_slots + key_states.shape[2]
        room = self._reserve(rows, slots)
        for tensor, new in zip(room, (key_states, value_states), strict=True):
            tensor[:rows, :, old_slots:slots] = new
        self._show(rows, slots)
        return self.keys, self.values

    def begin(self, keys: Tensor, values: Tensor) -> None:
        """Hold these keys and values. The first append copies them; they must not change before."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        self._room = None
        self.keys, self.values = keys, values

    def cut(self, end: int, first: int = 0) -> None:
        """Keep only the slots from ``first`` to ``end``."""
        self.keys, self.values = self.keys[:, :, first:end], self.values[:, :, first:end]
        if first and self._room is not None:
            self._room = [tensor[:, :, first:] for tensor in self._room]
            self._release()

    def arrange(self, order: Tensor) -> None:
        """Put in slot n of a row what was in its slot ``order[row, n]``, for an order [rows, slots]."""
        rows, slots = order.shape
        room = self._reserve(rows, slots)
        for tensor, old in zip(room, (self.keys, self.values), strict=True):
            index = order[:, None, :, None].expand(-1, old.shape[1], -1, old.shape[3])
            tensor[:rows, :, :slots] = old.gather(2, index)
        self._show(rows, slots)
        self._release()

    def join(self, others: Sequence[GrowingLayer], places: Sequence[Tensor], rows: int, slots: int) -> None:
        """Take in the rows of other layers under new numbers; the last slots of these are the last of all.

        The rows that are here stay where they are. Slots without keys and values are zero.
        """
        if not self.is_initialized:
            self.lazy_initialization(others[0].keys, others[0].values)
            self.keys, self.values = others[0].keys[:0, :, :0], others[0].values[:0, :, :0]
        old_rows, old_slots = len(self.keys), self.keys.shape[2]
        room = self._reserve(rows, slots)
        for n, tensor in enumerate(room):
            # Masked slots count for nothing unless they hold NaN, which uninitialised memory may.
            tensor[:old_rows, :, old_slots:slots] = 0
            for other, index in zip(others, places, strict=True):
                new = (other.keys, other.values)[n]
                empty = slots - new.shape[2]
                tensor[:, :, :empty].index_fill_(0, index, 0)
                tensor[:, :, empty:slots].index_copy_(0, index, new)
        self._show(rows, slots)

    def keep(self, kept: Tensor, to: Tensor, origin: Tensor) -> None:
        """Keep the rows ``kept``, in this order; copy only the rows ``origin`` that move, ``to`` new numbers."""
        rows, slots = len(kept), self.get_seq_length()
        if self._room is None or rows > len(self._room[0]):
            self._renew(rows, with_spare(slots), kept)
            return
        if len(to):
            for tensor in self._room:
                tensor[:, :, :slots].index_copy_(0, to, tensor[origin, :, :slots])
        self._show(rows, slots)
        self._release()

    def _show(self, rows: int, slots: int) -> None:
        """Let keys and values be the first rows and slots of the larger tensors."""
        room = cast("list[Tensor]", self._room)
        self.keys, self.values = (tensor[:rows, :, :slots] for tensor in room)

    def _reserve(self, rows: int, slots: int) -> list[Tensor]:
        """Larger tensors for so many rows and slots, which hold the keys and values."""
        has_rows, has_slots = (0, 0) if self._room is None else (len(self._room[0]), self._room[0].shape[2])
        if self._room is not None and rows <= has_rows and slots <= has_slots:
            return self._room
        # Spare rows only where rows join: each that comes alone would copy all others.
        most = rows + rows // 4
        is_joining = 0 < len(self.keys) < rows
        return self._renew(
            most if is_joining else max(rows, min(has_rows, most)),
            has_slots if slots <= has_slots else with_spare(slots),
        )

    def _release(self) -> None:
        """Move to smaller tensors where most of the memory is not needed."""
        rows, slots = len(self.keys), self.keys.shape[2]
        # The storage, because a tensor without its first slots is a view that keeps the memory of all.
        if 2 * self.keys[:, :, :1].nbytes * with_spare(slots) < self.keys.untyped_storage().nbytes():
            self._renew(rows, with_spare(slots))

    def _renew(self, rows: int, slots: int, kept: Tensor | None = None) -> list[Tensor]:
        """Move the keys and values, or only the rows ``kept`` of them, to new larger tensors."""
        # The old keys are free before the new values are made: so no more than one tensor is there twice.
        self._room = None
        room = []
        for name in ("keys", "values"):
            old: Tensor = getattr(self, name)
            tensor = old.new_empty(rows, old.shape[1], slots, old.shape[3])
            shown = tensor[: len(old) if kept is None else rows, :, : old.shape[2]]
            shown.copy_(old if kept is None else old[kept])
            setattr(self, name, shown)
            room.append(tensor)
        self._room = room
        return room


def with_spare(slots: int) -> int:
    """The slots of a new tensor that needs so many."""
    return slots + max(_MIN_SPARE_SLOTS, slots // 8)


class GrowingCache(DynamicCache):
    """A cache of growing layers, also where the model's configuration has sliding windows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer_class_to_replicate = GrowingLayer

    def join(self, others: Sequence[GrowingCache], places: Sequence[Tensor], rows: int, slots: int) -> None:
        """Take in the rows of other caches of the same model, which lose them; see :meth:`GrowingLayer.join`."""
        if not self.layers:
            self.layers = [GrowingLayer() for _ in others[0].layers]
        for n, layer in enumerate(self.growing):
            layer.join([other.growing[n] for other in others], places, rows, slots)
            # Each layer's memory is free before the next one grows, so that no two caches are needed at a time.
            for other in others:
                other.layers[n] = GrowingLayer()

    def keep(self, kept: Sequence[int], device: torch.device) -> None:
        """Keep only these rows, in this order, on the device that holds them."""
        moved = [n for n, row in enumerate(kept) if n != row]
        numbers = to_device(torch.tensor([*kept, *moved, *(kept[n] for n in moved)], dtype=torch.long), device)
        index, to, origin = numbers.split([len(kept), len(moved), len(moved)])
        for layer in self.growing:
            layer.keep(index, to, origin)

    @property
    def growing(self) -> list[GrowingLayer]:
        """The layers; an empty list before the first forward pass."""
        return cast("list[GrowingLayer]", self.layers)
