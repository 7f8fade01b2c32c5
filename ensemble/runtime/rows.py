"""A model's contexts: a batch of token sequences that differ in length, grow unevenly and are rolled back.

``CachedRows`` keeps the model's key-value cache. Every token has a slot in it; a slot that holds nothing (padding, or a
token that was taken back) is masked out, so that rows need no common length. ``RecomputedRows`` reads every row anew at
each step: slower, and right for every causal model, also one whose state cannot be taken back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ensemble.runtime.batch import in_passes, tokens_of_a_pass
from ensemble.runtime.kv_cache import GrowingCache, GrowingLayer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Ids = Sequence[int]
_MOST_SLOTS = 2
"""Slots for each token of the longest row, above which a cache is packed anew."""
_SHORTEST_PREFIX = 8
"""A common beginning shorter than this is not worth a pass of its own."""


class Rows(Protocol):
    """A batch of contexts of one model. Rows are numbered from 0, in the order in which they were admitted."""

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        ...

    def admit(self, prompts: Sequence[Ids], last: int = 1) -> Tensor:
        """Append a row for each prompt; the logits [prompts, last, V] after the last ``last`` tokens of each.

        What stands before a prompt's own tokens is meaningless.
        """
        ...

    def feed(self, keep: Sequence[int], new: Sequence[Ids], last: int = 1) -> Tensor:
        """Cut each row to its first ``keep`` tokens and append its new ones (at least one).

        Returns:
            The logits [rows, last, V] after each row's last ``last`` tokens; what stands before a row's own new tokens
            is meaningless.
        """
        ...

    def drop(self, kept: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        ...


class RecomputedRows:
    """Contexts of a model without a usable cache; every call runs whole rows."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._rows: list[list[int]] = []

    @property
    def lengths(self) -> list[int]:
        """See :class:`Rows`."""
        return [len(row) for row in self._rows]

    def admit(self, prompts: Sequence[Ids], last: int = 1) -> Tensor:
        """See :class:`Rows`."""
        rows = [list(prompt) for prompt in prompts]
        self._rows += rows
        return self._run(rows, last)

    def feed(self, keep: Sequence[int], new: Sequence[Ids], last: int = 1) -> Tensor:
        """See :class:`Rows`."""
        self._rows = [[*row[:kept], *ids] for row, kept, ids in zip(self._rows, keep, new, strict=True)]
        return self._run(self._rows, last)

    def drop(self, kept: Sequence[int]) -> None:
        """See :class:`Rows`."""
        self._rows = [self._rows[n] for n in kept]

    def _run(self, rows: Sequence[Ids], last: int) -> Tensor:
        """Logits [rows, last, V]; rows are padded on the right, which a causal model never sees."""
        device = self._model.device
        lengths = [len(row) for row in rows]
        longest = max(lengths)
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
        # Logits take most of a long prompt's memory: none are made before the first that is asked for.
        wanted = min(longest, longest - min(lengths) + last)
        skipped = {"logits_to_keep": wanted} if _can_skip_logits(type(self._model).forward) else {}
        logits: Tensor = self._model(input_ids=ids, use_cache=False, **skipped).logits
        ends = torch.tensor(lengths, device=device)[:, None] - (longest - logits.shape[1])
        places = (ends - last + torch.arange(last, device=device)).clamp(min=0)
        return logits.gather(1, places[:, :, None].expand(-1, -1, logits.shape[2]))


class CachedRows:
    """Contexts of a model with a key-value cache, in one batch.

    The map of filled slots stays in the host's memory: what is fed is decided there, and a look at a map on an
    accelerator would make every step wait for it.

    Args:
        model: A model whose cache can be padded and rolled back.
        window: Slots that it attends to; None where it attends to all.
    """

    def __init__(self, model: PreTrainedModel, window: int | None = None) -> None:
        self._model = model
        self._window = window
        self._device = model.device
        self._cache = GrowingCache()
        self._filled = torch.zeros(0, 0, dtype=torch.bool)
        self._is_full = True
        self._rows: list[list[int]] = []
        self._prefix: tuple[list[int], GrowingCache] | None = None

    @property
    def lengths(self) -> list[int]:
        """See :class:`Rows`."""
        return [len(row) for row in self._rows]

    def admit(self, prompts: Sequence[Ids], last: int = 1) -> Tensor:
        """See :class:`Rows`. What all prompts begin with is computed once, and kept for those that come later."""
        ids, cache = self._shared_prefix(prompts)
        keep = [min(len(ids), len(prompt) - last) for prompt in prompts]
        own = [prompt[kept:] for prompt, kept in zip(prompts, keep, strict=True)]
        passes = in_passes([len(row) for row in own], tokens_of_a_pass(self._device))
        admitted, logits = [], []
        for numbers in passes:
            part = CachedRows(self._model, self._window)
            part._begin([ids] * len(numbers), cache)
            logits.append(part.feed([keep[n] for n in numbers], [own[n] for n in numbers], last))
            admitted.append((numbers, part))
        self._append(admitted)
        if len(passes) == 1:
            return logits[0]
        order = sorted(range(len(prompts)), key=[n for numbers in passes for n in numbers].__getitem__)
        return torch.cat(logits)[torch.tensor(order, device=self._device)]

    def feed(self, keep: Sequence[int], new: Sequence[Ids], last: int = 1) -> Tensor:
        """See :class:`Rows`."""
        rows = [[*row[:kept], *ids] for row, kept, ids in zip(self._rows, keep, new, strict=True)]
        if self._is_full and len(set(keep)) == len({len(row) for row in rows}) == 1:
            return self._feed_full(rows, keep[0], last)
        widest = max(len(ids) for ids in new)
        self._roll_back(keep)
        self._pack(_MOST_SLOTS * max(map(len, rows)) - widest)
        if self._window is not None and self._filled.shape[1] + widest > self._window:
            # A slot is a token only where no row has holes. So each is fed as many as the others, some of them again.
            keep = [max(0, len(row) - widest) for row in rows]
            new = [row[kept:] for row, kept in zip(rows, keep, strict=True)]
            self._roll_back(keep)
            self._pack(0)
        # Padding goes left of the new tokens, so that every row's last logits stand in the last column.
        padding = torch.tensor([[widest - len(ids)] for ids in new])
        ids = torch.tensor([[*[0] * (widest - len(row)), *row] for row in new])
        column = torch.arange(widest)
        positions = (torch.tensor(keep)[:, None] - padding + column).clamp(min=0)
        self._filled = torch.cat([self._filled, column >= padding], dim=1)
        self._is_full = bool(self._filled.all())
        self._rows = rows
        return self._run(ids, positions, last, self._filled)

    def _feed_full(self, rows: list[list[int]], keep: int, last: int) -> Tensor:
        """The same where every slot is a token, before and after: no mask is needed, which saves its making."""
        if keep < self._filled.shape[1]:
            for layer in self._cache.growing:
                layer.cut(keep)
        self._rows = rows
        self._filled = torch.ones(len(rows), len(rows[0]), dtype=torch.bool)
        ids = torch.tensor([row[keep:] for row in rows])
        return self._run(ids, torch.arange(keep, len(rows[0])).expand(len(rows), -1), last, None)

    def _run(self, ids: Tensor, positions: Tensor, last: int, mask: Tensor | None) -> Tensor:
        logits: Tensor = self._model(
            input_ids=ids.to(self._device),
            attention_mask=None if mask is None else mask.to(self._device, torch.long),
            position_ids=positions.to(self._device),
            past_key_values=self._cache,
            use_cache=True,
            **({"logits_to_keep": last} if _can_skip_logits(type(self._model).forward) else {}),
        ).logits
        return logits[:, -last:]

    def drop(self, kept: Sequence[int]) -> None:
        """See :class:`Rows`."""
        self._cache.keep(kept, self._device)
        self._filled = self._filled[torch.tensor(kept, dtype=torch.long)]
        self._rows = [self._rows[n] for n in kept]
        if kept:
            self._pack(_MOST_SLOTS * max(self.lengths))
        self._is_full = bool(self._filled.all())

    def _shared_prefix(self, prompts: Sequence[Ids]) -> tuple[list[int], GrowingCache]:
        """The longest beginning that all prompts share (each keeping a token of its own), and its cache for one row."""
        if self._prefix is not None:
            ids = self._prefix[0]
            if all(len(prompt) > len(ids) and list(prompt[: len(ids)]) == ids for prompt in prompts):
                return self._prefix
        ids = common_prefix(prompts)[: min(map(len, prompts)) - 1]
        if len(prompts) == 1 or len(ids) < _SHORTEST_PREFIX:
            return [], GrowingCache()
        single = CachedRows(self._model, self._window)
        single._begin([[]], GrowingCache())
        single.feed([0], [ids])
        self._prefix = ids, single._cache
        return self._prefix

    def _begin(self, rows: Sequence[Ids], prefix: GrowingCache) -> None:
        """Make rows that hold just a prefix, the same in all."""
        for layer in prefix.growing:
            own = GrowingLayer()
            own.begin(*(tensor.expand(len(rows), -1, -1, -1) for tensor in (layer.keys, layer.values)))
            self._cache.layers.append(own)
        self._filled = torch.ones(len(rows), len(rows[0]), dtype=torch.bool)
        self._is_full = True
        self._rows = [list(row) for row in rows]

    def _append(self, parts: Sequence[tuple[Sequence[int], CachedRows]]) -> None:
        """Take over the rows of other batches of the same model, behind one's own, each at its number there."""
        if not self._rows and len(parts) == 1:
            ((_, only),) = parts
            self._cache, self._filled, self._rows = only._cache, only._filled, only._rows
            self._is_full = only._is_full
            return
        there = len(self._rows)
        parts = [([there + n for n in numbers], part) for numbers, part in parts]
        if there:
            self._pack(max(self.lengths))
            parts = [(range(there), self), *parts]
        placed = {n: row for numbers, part in parts for n, row in zip(numbers, part._rows, strict=True)}
        slots = max(part._filled.shape[1] for _, part in parts)
        filled = torch.zeros(len(placed), slots, dtype=torch.bool)
        for numbers, part in parts:
            filled[torch.tensor(numbers), slots - part._filled.shape[1] :] = part._filled
        indices = [torch.tensor(numbers, device=self._device) for numbers, _ in parts]
        self._cache.gather([part._cache for _, part in parts], indices, slots)
        self._filled, self._is_full = filled, bool(filled.all())
        self._rows = [placed[n] for n in range(len(placed))]

    def _roll_back(self, keep: Sequence[int]) -> None:
        """Empty the slots of all tokens behind each row's first ``keep``."""
        if any(kept < len(row) for kept, row in zip(keep, self._rows, strict=True)):
            self._filled &= self._filled.cumsum(dim=1) <= torch.tensor(keep)[:, None]

    def _pack(self, most: int) -> None:
        """Give up slots that no row uses at either end, and all holes where more than ``most`` slots would be left.

        Without holes a row's tokens stand side by side in the last slots.
        """
        used = self._filled.any(dim=0).nonzero()
        first, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        if end - first < self._filled.shape[1]:
            self._filled = self._filled[:, first:end]
            self._reslot(lambda tensor: tensor[:, :, first:end])
        if end - first <= most or not bool((self._filled[:, :-1] & ~self._filled[:, 1:]).any()):
            return
        # A stable sort moves the empty slots to the front and keeps the order of the others.
        longest = int(self._filled.sum(dim=1).max())
        order = self._filled.to(torch.int8).argsort(dim=1, stable=True)[:, -longest:]
        self._filled = self._filled.gather(1, order)
        index = order.to(self._device)[:, None, :, None]
        self._reslot(lambda tensor: tensor.gather(2, index.expand(-1, tensor.shape[1], -1, tensor.shape[3])))

    def _reslot(self, change: Callable[[Tensor], Tensor]) -> None:
        """Change the keys and values [rows, heads, slots, width] of every layer."""
        for layer in self._cache.growing:
            layer.change(change)


@lru_cache
def _can_skip_logits(forward: Callable[..., object]) -> bool:
    """Whether a kind of model can be told to make only the last logits; to look takes longer than all else here."""
    return "logits_to_keep" in inspect.signature(forward).parameters


def common_prefix(rows: Sequence[Ids]) -> list[int]:
    """The longest sequence that all rows begin with."""
    first, last = min(rows, key=list), max(rows, key=list)
    length = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return list(first[:length])
