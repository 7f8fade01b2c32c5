"""A model's key-value cache with room to grow: a step writes what is new, and copies nothing of what is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

_LEAST_ROOM = 64
"""Slots that are made beyond those that are needed, at the least; else an eighth of these."""


class GrowingLayer(DynamicLayer):
    """A layer whose keys and values [rows, heads, slots, width] are the first slots of larger tensors.

    The library's own layer concatenates. Every step copies the whole cache then, which takes longer than to attend to
    it; on a processor it also asks the system for new pages each time.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]  # transformers types its methods, not all of them
        self._room: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append slots; the keys and values with them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        there = self.get_seq_length()
        slots = there + key_states.shape[2]
        if self._room is None or self._room[0].shape[2] < slots:
            rows = len(key_states)
            self._room = self._larger(key_states, rows, slots), self._larger(value_states, rows, slots)
            if there:
                self._room[0][:, :, :there] = self.keys
                self._room[1][:, :, :there] = self.values
        for room, new in zip(self._room, (key_states, value_states), strict=True):
            room[:, :, there:slots] = new
        self.keys, self.values = (room[:, :, :slots] for room in self._room)
        return self.keys, self.values

    def begin(self, keys: Tensor, values: Tensor) -> None:
        """Hold these; they are copied once something is appended, and must not change before."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        self._room = None
        self.keys, self.values = keys, values

    def cut(self, slots: int) -> None:
        """Keep only the first slots."""
        self.keys, self.values = self.keys[:, :, :slots], self.values[:, :, :slots]

    def change(self, change: Callable[[Tensor], Tensor]) -> None:
        """Put others in the place of the keys and of the values."""
        self.begin(change(self.keys), change(self.values))

    def gather(self, parts: Sequence[GrowingLayer], indices: Sequence[Tensor], slots: int) -> None:
        """Hold the rows of other layers, each behind as many empty slots as are missing.

        Args:
            parts: The layers, none with more than so many slots.
            indices: For each of them the numbers [rows] that its rows get.
            slots: Of all.
        """
        self.lazy_initialization(parts[0].keys, parts[0].values)
        rows = sum(map(len, indices))
        self._room = (
            self._gathered([part.keys for part in parts], indices, rows, slots),
            self._gathered([part.values for part in parts], indices, rows, slots),
        )
        self.keys, self.values = (room[:, :, :slots] for room in self._room)

    def _gathered(self, parts: Sequence[Tensor], indices: Sequence[Tensor], rows: int, slots: int) -> Tensor:
        room = self._larger(parts[0], rows, slots)
        for part, index in zip(parts, indices, strict=True):
            empty = slots - part.shape[2]
            # What is masked counts nothing, unless it is no number.
            room[:, :, :empty].index_fill_(0, index, 0)
            room[:, :, empty:slots].index_copy_(0, index, part)
        return room

    def keep(self, kept: Tensor, to: Tensor, origin: Tensor) -> None:
        """Keep only some rows; where most of them stay where they are, only the others are copied.

        Args:
            kept: [rows] their numbers, in their new order.
            to: [moved] the new numbers of those that do not stay where they are.
            origin: [moved] the numbers that these had.
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
        """Keep only these rows, in this order, and the room behind them."""
        if self._room is None:
            super().batch_select_indices(indices)
            return
        slots = self.get_seq_length()
        self._room = self._room[0][indices], self._room[1][indices]
        self.keys, self.values = (room[:, :, :slots] for room in self._room)

    def _is_worth_keeping(self, rows: int) -> bool:
        """Whether so many rows have a place in the room, and use at least half of its memory."""
        if self._room is None or rows > len(self._room[0]):
            return False
        room = self._room[0]
        return 2 * room[:rows].nbytes >= room.untyped_storage().nbytes()

    def _larger(self, like: Tensor, rows: int, slots: int) -> Tensor:
        _, heads, _, width = like.shape
        return like.new_empty(rows, heads, slots + max(_LEAST_ROOM, slots // 8), width)


class GrowingCache(DynamicCache):
    """A cache of such layers, whatever the model's configuration says of windows."""

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
        """Keep only these rows, in this order; on the device that holds them."""
        places = torch.tensor(kept, dtype=torch.long)
        moved = (places != torch.arange(len(kept))).nonzero().squeeze(1)
        index, to, origin = (tensor.to(device) for tensor in (places, moved, places[moved]))
        for layer in self.growing:
            layer.keep(index, to, origin)

    @property
    def growing(self) -> list[GrowingLayer]:
        """The layers; there are none before the first forward pass."""
        return cast("list[GrowingLayer]", self.layers)
