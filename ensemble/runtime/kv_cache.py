"""A model's key-value cache with spare room: a step writes the new keys and values only, and copies nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

_MIN_SPARE_SLOTS = 64
"""Spare slots of a new tensor; an eighth of the needed slots where that is more."""


class GrowingLayer(DynamicLayer):
    """A layer whose keys and values [rows, heads, slots, width] are the first slots of larger tensors.

    The library's own layer concatenates, so every step copies the whole cache. That takes longer than the attention
    itself, and on a CPU it also requests new memory pages from the system each time.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]  # transformers does not type all of its methods
        # The larger tensors of keys and of values; None before the first append.
        self._room: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append slots; return all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        old_slots = self.get_seq_length()
        slots = old_slots + key_states.shape[2]
        if self._room is None or self._room[0].shape[2] < slots:
            rows = len(key_states)
            self._room = _empty_room(key_states, rows, slots), _empty_room(value_states, rows, slots)
            if old_slots:
                self._room[0][:, :, :old_slots] = self.keys
                self._room[1][:, :, :old_slots] = self.values
        for room, new in zip(self._room, (key_states, value_states), strict=True):
            room[:, :, old_slots:slots] = new
        self.keys, self.values = (room[:, :, :slots] for room in self._room)
        return self.keys, self.values

    def begin(self, keys: Tensor, values: Tensor) -> None:
        """Hold these keys and values. The first append copies them; they must not change before."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        self._room = None
        self.keys, self.values = keys, values

    def cut(self, slots: int) -> None:
        """Keep only the first slots."""
        self.keys, self.values = self.keys[:, :, :slots], self.values[:, :, :slots]

    def gather(self, parts: Sequence[GrowingLayer], indices: Sequence[Tensor], slots: int) -> None:
        """Hold the rows of other layers, each padded with empty slots at the front.

        Args:
            parts: The layers, each with at most ``slots`` slots.
            indices: For each of them the new numbers [rows] of its rows.
            slots: Slots of every row.
        """
        self.lazy_initialization(parts[0].keys, parts[0].values)
        rows = sum(map(len, indices))
        self._room = (
            _gathered([part.keys for part in parts], indices, rows, slots),
            _gathered([part.values for part in parts], indices, rows, slots),
        )
        self.keys, self.values = (room[:, :, :slots] for room in self._room)

    def keep(self, kept: Tensor, to: Tensor, origin: Tensor) -> None:
        """Keep only some rows; copy only those that move, if these are few.

        Args:
            kept: [rows] the old numbers of the rows, in their new order.
            to: [moved] the new numbers of the rows that move.
            origin: [moved] the old numbers of these rows.
        """
        rows, slots = len(kept), self.get_seq_length()
        if self._room is None or not self._is_worth_keeping(rows) or 2 * len(to) > rows:
            self.batch_select_indices(kept)
            return
        for room in self._room:
            room.index_copy_(0, to, room[origin])
        self._room = self._room[0][:rows], self._room[1][:rows]
        self.keys, self.values = (room[:, :, :slots] for room in self._room)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only these rows, in this order, with their spare slots."""
        if self._room is None:
            super().batch_select_indices(indices)
            return
        slots = self.get_seq_length()
        self._room = self._room[0][indices], self._room[1][indices]
        self.keys, self.values = (room[:, :, :slots] for room in self._room)

    def _is_worth_keeping(self, rows: int) -> bool:
        """Whether the larger tensors hold so many rows, and these rows use at least half of their memory."""
        if self._room is None or rows > len(self._room[0]):
            return False
        room = self._room[0]
        # The storage, because a tensor of fewer rows is a view that keeps the memory of all.
        return 2 * room[:rows].nbytes >= room.untyped_storage().nbytes()


def _gathered(parts: Sequence[Tensor], indices: Sequence[Tensor], rows: int, slots: int) -> Tensor:
    room = _empty_room(parts[0], rows, slots)
    for part, index in zip(parts, indices, strict=True):
        empty = slots - part.shape[2]
        # Masked slots count for nothing unless they hold NaN, which uninitialised memory may.
        room[:, :, :empty].index_fill_(0, index, 0)
        room[:, :, empty:slots].index_copy_(0, index, part)
    return room


def _empty_room(like: Tensor, rows: int, slots: int) -> Tensor:
    _, heads, _, width = like.shape
    return like.new_empty(rows, heads, slots + max(_MIN_SPARE_SLOTS, slots // 8), width)


class GrowingCache(DynamicCache):
    """A cache of growing layers, also where the model's configuration has sliding windows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer_class_to_replicate = GrowingLayer

    def gather(self, parts: Sequence[GrowingCache], indices: Sequence[Tensor], slots: int) -> None:
        """Hold the rows of other caches of the same model; see :meth:`GrowingLayer.gather`."""
        layers = [GrowingLayer() for _ in parts[0].layers]
        for layer, others in zip(layers, zip(*(part.growing for part in parts), strict=True), strict=True):
            layer.gather(others, indices, slots)
        self.layers = list(layers)

    def keep(self, kept: Sequence[int], device: torch.device) -> None:
        """Keep only these rows, in this order, on the device that holds them."""
        places = torch.tensor(kept, dtype=torch.long)
        moved = (places != torch.arange(len(kept))).nonzero().squeeze(1)
        index, to, origin = (tensor.to(device) for tensor in (places, moved, places[moved]))
        for layer in self.growing:
            layer.keep(index, to, origin)

    @property
    def growing(self) -> list[GrowingLayer]:
        """The layers; an empty list before the first forward pass."""
        return cast("list[GrowingLayer]", self.layers)
