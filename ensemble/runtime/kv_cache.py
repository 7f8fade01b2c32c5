"""A model's key-value cache with spare room: a step writes the new keys and values only, and copies nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from ensemble.runtime.forward_pass import to_device

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
