"""A model's key-value cache with room to grow: a step writes what is new, and copies nothing of what is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

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
            self._room = self._larger(key_states, slots), self._larger(value_states, slots)
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

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only these rows, in this order, and the room behind them."""
        if self._room is None:
            super().batch_select_indices(indices)
            return
        slots = self.get_seq_length()
        self._room = self._room[0][indices], self._room[1][indices]
        self.keys, self.values = (room[:, :, :slots] for room in self._room)

    def _larger(self, like: Tensor, slots: int) -> Tensor:
        rows, heads, _, width = like.shape
        return like.new_empty(rows, heads, slots + max(_LEAST_ROOM, slots // 8), width)


class GrowingCache(DynamicCache):
    """A cache of such layers, whatever the model's configuration says of windows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer_class_to_replicate = GrowingLayer

    @property
    def growing(self) -> list[GrowingLayer]:
        """The layers; there are none before the first forward pass."""
        return cast("list[GrowingLayer]", self.layers)
