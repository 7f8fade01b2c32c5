"""The runner that keeps a model's key-value cache, for rows that differ in length, grow unevenly and are rolled back.

Every token of a row has a slot in the cache. A slot without a token (padding, or a token that was rolled back) is
masked out. So rows need no common length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ensemble.runtime.kv_cache import GrowingCache, GrowingLayer
from ensemble.runtime.local_runner import LocalRunner, can_skip_logits, common_prefix
from ensemble.runtime.model_runner import Ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CPU_PASS_TOKENS = 512
_ACCELERATOR_PASS_TOKENS = 8192
_MAX_SLOTS_PER_TOKEN = 2
"""Slots for each token of the longest row; a cache with more of them is packed."""
_SHORTEST_PREFIX = 8
"""Tokens of the shortest common prefix that gets a forward pass for itself."""


class CachedRunner(LocalRunner):
    """Runs a causal model with its key-value cache.

    Args:
        model: A model whose cache can be padded and rolled back.
        window: Slots that it attends to; None if it attends to all.
    """

    def __init__(self, model: PreTrainedModel, window: int | None = None) -> None:
        super().__init__(model)
        self._window = window
        self._cache = GrowingCache()
        # [rows, slots] which slots hold a token. It stays in the host's memory: the host decides from it what to feed,
        # and to read it from an accelerator would make every step wait.
        self._filled = torch.zeros(0, 0, dtype=torch.bool)
        self._is_full = True
        self._prefix: tuple[list[int], GrowingCache] | None = None

    def prefill(self, prompts: Sequence[Ids], last: int = 1) -> Tensor:
        """See :meth:`LocalRunner.prefill`. A common prefix of all prompts is computed once, and kept for later ones."""
        # Few-shot prompts share most of their text; computing it for each row would multiply the time of a batch.
        prefix, cache = self._shared_prefix(prompts)
        keep = [min(len(prefix), len(prompt) - last) for prompt in prompts]
        rest = [prompt[kept:] for prompt, kept in zip(prompts, keep, strict=True)]
        passes = plan_passes([len(ids) for ids in rest], pass_tokens(self._device))
        parts, logits = [], []
        for numbers in passes:
            part = CachedRunner(self._model, self._window)
            part._begin(prefix, cache, len(numbers))
            logits.append(part.extend([keep[n] for n in numbers], [rest[n] for n in numbers], last))
            parts.append((numbers, part))
        self._append(parts)
        if len(passes) == 1:
            return logits[0]
        # The passes took the prompts by length; the caller expects its own order.
        order = sorted(range(len(prompts)), key=[n for numbers in passes for n in numbers].__getitem__)
        return torch.cat(logits)[torch.tensor(order, device=self._device)]

    def extend(self, keep: Sequence[int], new: Sequence[Ids], last: int = 1) -> Tensor:
        """See :meth:`LocalRunner.extend`."""
        rows = [[*row[:kept], *ids] for row, kept, ids in zip(self._rows, keep, new, strict=True)]
        if self._is_full and len(set(keep)) == len({len(row) for row in rows}) == 1:
            return self._extend_full(rows, keep[0], last)
        # All rows of a forward pass have one width; shorter ones are padded.
        widest = max(len(ids) for ids in new)
        self._roll_back(keep)
        self._pack(_MAX_SLOTS_PER_TOKEN * max(map(len, rows)) - widest)
        if self._window is not None and self._filled.shape[1] + widest > self._window:
            # The model counts its window in slots, which are tokens only in a row without holes. So every row is fed
            # as many tokens as the others, even if some of these are fed again.
            keep = [max(0, len(row) - widest) for row in rows]
            new = [row[kept:] for row, kept in zip(rows, keep, strict=True)]
            self._roll_back(keep)
            self._pack(0)
        # Padding goes left of the new tokens, so that the last logits of every row are in the last column.
        padding = torch.tensor([[widest - len(ids)] for ids in new])
        ids = torch.tensor([[*[0] * (widest - len(row)), *row] for row in new])
        column = torch.arange(widest)
        positions = (torch.tensor(keep)[:, None] - padding + column).clamp(min=0)
        self._filled = torch.cat([self._filled, column >= padding], dim=1)
        self._is_full = bool(self._filled.all())
        self._rows = rows
        return self._forward(ids, positions, last, self._filled)

    def drop(self, kept: Sequence[int]) -> None:
        """See :meth:`LocalRunner.drop`."""
        self._cache.keep(kept, self._device)
        self._filled = self._filled[torch.tensor(kept, dtype=torch.long)]
        self._rows = [self._rows[n] for n in kept]
        if kept:
            self._pack(_MAX_SLOTS_PER_TOKEN * max(self.lengths))
        self._is_full = bool(self._filled.all())

    def take(self, other: CachedRunner) -> None:
        """Append the rows of another runner of the same model, which must not be used afterwards."""
        self._append([(range(other.row_count), other)])

    def _appender(self, count: int) -> Callable[[Tensor], Tensor]:
        """See :class:`LocalRunner`."""
        if self._window is not None and self._filled.shape[1] + count > self._window:
            return super()._appender(count)
        positions = torch.tensor(self.lengths, device=self._device)[:, None]
        one = torch.ones(len(self._rows), 1, dtype=torch.bool)

        def append(tokens: Tensor) -> Tensor:
            nonlocal positions
            self._filled = torch.cat([self._filled, one], dim=1)
            logits = self._forward(tokens[:, None], positions, 1, None if self._is_full else self._filled)
            positions = positions + 1
            return logits[:, -1]

        return append

    def _extend_full(self, rows: list[list[int]], keep: int, last: int) -> Tensor:
        """Extend rows of one length that have no holes."""
        if keep < self._filled.shape[1]:
            for layer in self._cache.growing:
                layer.cut(keep)
        self._rows = rows
        self._filled = torch.ones(len(rows), len(rows[0]), dtype=torch.bool)
        ids = torch.tensor([row[keep:] for row in rows])
        # Every slot holds a token, so no mask is needed; a step without one is faster.
        return self._forward(ids, torch.arange(keep, len(rows[0])).expand(len(rows), -1), last, None)

    def _forward(self, ids: Tensor, positions: Tensor, last: int, mask: Tensor | None) -> Tensor:
        logits: Tensor = self._model(
            input_ids=ids.to(self._device),
            attention_mask=None if mask is None else mask.to(self._device, torch.long),
            position_ids=positions.to(self._device),
            past_key_values=self._cache,
            use_cache=True,
            **({"logits_to_keep": last} if can_skip_logits(type(self._model).forward) else {}),
        ).logits
        return logits[:, -last:]

    def _shared_prefix(self, prompts: Sequence[Ids]) -> tuple[list[int], GrowingCache]:
        """The longest prefix of all prompts that leaves each a token, and the cache of one row that holds it."""
        if self._prefix is not None:
            ids = self._prefix[0]
            if all(len(prompt) > len(ids) and list(prompt[: len(ids)]) == ids for prompt in prompts):
                return self._prefix
        ids = common_prefix(prompts)[: min(map(len, prompts)) - 1]
        # A pass for itself costs about as much as the tokens that it saves.
        if len(prompts) == 1 or len(ids) < _SHORTEST_PREFIX:
            return [], GrowingCache()
        single = CachedRunner(self._model, self._window)
        single._begin([], GrowingCache(), 1)
        single.extend([0], [ids])
        self._prefix = ids, single._cache
        return self._prefix

    def _begin(self, prefix: Ids, cache: GrowingCache, rows: int) -> None:
        """Begin with rows that hold the prefix only."""
        for layer in cache.growing:
            copy = GrowingLayer()
            # Expanded views share the prefix's memory until something is appended.
            copy.begin(*(tensor.expand(rows, -1, -1, -1) for tensor in (layer.keys, layer.values)))
            self._cache.layers.append(copy)
        self._filled = torch.ones(rows, len(prefix), dtype=torch.bool)
        self._is_full = True
        self._rows = [list(prefix) for _ in range(rows)]

    def _append(self, parts: Sequence[tuple[Sequence[int], CachedRunner]]) -> None:
        """Append the rows of other runners of the same model.

        Args:
            parts: The runners, each with its rows' numbers among all rows to append.
        """
        if not self._rows and len(parts) == 1:
            ((_, part),) = parts
            self._cache, self._filled, self._rows = part._cache, part._filled, part._rows
            self._is_full = part._is_full
            return
        count = len(self._rows)
        parts = [([count + n for n in numbers], part) for numbers, part in parts]
        if count:
            # Holes would be copied with the rows and take memory until the next packing.
            self._pack(max(self.lengths))
            parts = [(range(count), self), *parts]
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
        """Empty the slots of all tokens after each row's first ``keep``."""
        if any(kept < len(row) for kept, row in zip(keep, self._rows, strict=True)):
            # The running sum counts the tokens of a row up to each slot.
            self._filled &= self._filled.cumsum(dim=1) <= torch.tensor(keep)[:, None]

    def _pack(self, max_slots: int) -> None:
        """Remove slots that no row uses at either end; also remove holes where more than ``max_slots`` slots remain.

        Without holes, a row's tokens fill the last slots.
        """
        used = self._filled.any(dim=0).nonzero()
        first, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        if end - first < self._filled.shape[1]:
            self._filled = self._filled[:, first:end]
            self._change_slots(lambda tensor: tensor[:, :, first:end])
        if end - first <= max_slots or not bool((self._filled[:, :-1] & ~self._filled[:, 1:]).any()):
            return
        # A stable sort moves the empty slots to the front and keeps the order of the others.
        longest = int(self._filled.sum(dim=1).max())
        order = self._filled.to(torch.int8).argsort(dim=1, stable=True)[:, -longest:]
        self._filled = self._filled.gather(1, order)
        index = order.to(self._device)[:, None, :, None]
        self._change_slots(lambda tensor: tensor.gather(2, index.expand(-1, tensor.shape[1], -1, tensor.shape[3])))

    def _change_slots(self, change: Callable[[Tensor], Tensor]) -> None:
        """Replace the keys and values [rows, heads, slots, width] of every layer."""
        for layer in self._cache.growing:
            layer.begin(change(layer.keys), change(layer.values))


def pass_tokens(device: torch.device) -> int:
    """The largest number of tokens, padding included, of a forward pass over prompts."""
    # A CPU works fastest on what its caches hold; an accelerator needs more tokens to use all of its cores.
    return _CPU_PASS_TOKENS if device.type == "cpu" else _ACCELERATOR_PASS_TOKENS


def plan_passes(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Split rows into forward passes: rows of similar length together, so that little of a pass is padding.

    Args:
        lengths: Tokens of each row.
        max_tokens: Tokens of a pass, padding included; a longer row gets a pass for itself.

    Returns:
        The numbers of the rows of each pass; in their order where one pass holds all rows.
    """
    if len(lengths) * max(lengths, default=0) <= max_tokens:
        return [list(range(len(lengths)))]
    passes: list[list[int]] = []
    for n in sorted(range(len(lengths)), key=lengths.__getitem__):
        if passes and (len(passes[-1]) + 1) * lengths[n] <= max_tokens:
            passes[-1].append(n)
        else:
            passes.append([n])
    return passes
