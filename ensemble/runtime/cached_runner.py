"""The runner that keeps a model's key-value cache, for rows that differ in length, grow unevenly and are rolled back.

Every token of a row has a slot in the cache. A slot without a token (padding, or a token that was rolled back) is
masked out. So rows need no common length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, repeat
from operator import add
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from ensemble.runtime.forward_pass import (
    GrowingCache,
    GrowingLayer,
    pass_tokens,
    plan_passes,
    run_passes,
    to_device,
    with_spare,
)
from ensemble.runtime.local_runner import Ids, LocalRunner, can_skip_logits, common_prefix

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_MAX_SLOTS_PER_TOKEN = 2
"""Slots for each token of the longest row; a cache with more of them is packed."""
_SHORTEST_PREFIX = 8
"""Tokens of the shortest common prefix that gets a forward pass for itself."""


class CachedRunner(LocalRunner):
    """Runs a causal model with its cache; a common prefix of at least ``min_prefix`` tokens gets a pass for itself.

    Prompts of several ``kinds`` come in turns, one of each kind, and each kind has its own common prefix.
    """

    keeps_rows = True

    def __init__(
        self, model: PreTrainedModel, window: int | None = None, min_prefix: int = _SHORTEST_PREFIX, kinds: int = 1
    ) -> None:
        super().__init__(model)
        self._window = window
        self._kinds = kinds
        self._min_prefix = max(min_prefix, _SHORTEST_PREFIX)
        self._cache = GrowingCache()
        self._slots = 0
        # [rows, slots] which slots hold a token, with spare columns after the last slot; None if every slot does. It
        # stays in the host's memory: the host decides from it what to feed, and to read it from an accelerator would
        # make every step wait.
        self._filled: Tensor | None = None
        self._prefixes: dict[int, tuple[list[int], GrowingCache]] = {}

    def prefill(self, prompts: Sequence[Ids], last: int = 1) -> Tensor:
        """See :meth:`LocalRunner.prefill`. A common prefix of a kind is computed once, and kept for later prompts."""
        # Few-shot prompts share most of their text; computing it for each row would multiply the time of a batch.
        prefixes = [self._shared_prefix(kind, prompts[kind :: self._kinds]) for kind in range(self._kinds)]
        kinds = [n % self._kinds for n in range(len(prompts))]
        keep = [
            max(0, min(len(prefixes[kind][0]), len(prompt) - last)) for prompt, kind in zip(prompts, kinds, strict=True)
        ]
        rest = [prompt[kept:] for prompt, kept in zip(prompts, keep, strict=True)]
        # The rows of a pass have one prefix, or none.
        together: dict[int | None, list[int]] = {}
        for n, kind in enumerate(kinds):
            together.setdefault(kind if prefixes[kind][0] else None, []).append(n)
        passes = [
            [own[place] for place in places]
            for own in together.values()
            for places in plan_passes([len(rest[n]) for n in own], pass_tokens(self._device))
        ]
        parts: list[tuple[Sequence[int], CachedRunner]] = []

        def read(numbers: Sequence[int]) -> Tensor:
            part = CachedRunner(self._model, self._window)
            part._begin(*prefixes[kinds[numbers[0]]], len(numbers))
            parts.append((numbers, part))
            logits = part.extend([keep[n] for n in numbers], [rest[n] for n in numbers], last)
            # Prompts with fewer tokens have fewer logits, and those of all passes are joined.
            return pad(logits, (0, 0, last - logits.shape[1], 0)) if logits.shape[1] < last else logits

        logits = run_passes(passes, read)
        self._append(parts)
        return logits

    def extend(self, keep: Sequence[int], new: Sequence[Ids], last: int = 1) -> Tensor:
        """See :meth:`LocalRunner.extend`."""
        # All rows of a forward pass have one width; shorter ones are padded.
        widths = list(map(len, new))
        widest = max(widths)
        is_even = widest == min(widths)
        if self._filled is None and is_even and min(keep) == max(keep):
            return self._extend_full(keep[0], new, widest, last)
        self._roll_back(keep)
        self._pack(_MAX_SLOTS_PER_TOKEN * max(map(add, keep, widths)) - widest)
        if self._window is not None and self._slots + widest > self._window:
            # The model counts its window in slots, which are tokens only in a row without holes. So every row is fed
            # as many tokens as the others, even if some of these are fed again.
            rows = [[*row, *ids] for row, ids in zip(self._rows, new, strict=True)]
            keep = [max(0, len(row) - widest) for row in rows]
            new = [row[kept:] for row, kept in zip(rows, keep, strict=True)]
            is_even = all(len(ids) == widest for ids in new)
            self._roll_back(keep)
            self._pack(0)
        if self._filled is None and is_even:
            # What made the rows differ was cut off.
            return self._extend_full(self._slots, new, widest, last)
        return self._extend_uneven(new, widest, last, is_even=is_even)

    def drop(self, kept: Sequence[int]) -> None:
        """See :meth:`LocalRunner.drop`."""
        if not kept:
            self._cache, self._slots, self._filled, self._rows = GrowingCache(), 0, None, []
            return
        self._cache.keep(kept, self._device)
        # A row may be kept several times, and a list is changed in place: so each needs another list.
        self._rows = [list(self._rows[n]) for n in kept]
        if self._filled is not None:
            self._filled = self._filled[torch.tensor(kept)]
            self._trim()
            self._pack(_MAX_SLOTS_PER_TOKEN * max(self.lengths))

    def take(self, other: LocalRunner) -> None:
        """See :meth:`LocalRunner.take`."""
        if other._rows:
            self._append([(range(len(other._rows)), cast(CachedRunner, other))])

    def _appender(self, count: int) -> Callable[[Tensor], Tensor]:
        """See :class:`LocalRunner`."""
        if self._window is not None and self._slots + count > self._window:
            return super()._appender(count)
        positions = to_device(torch.tensor(self.lengths), self._device)[:, None]

        def append(tokens: Tensor) -> Tensor:
            nonlocal positions
            mask = None if self._filled is None else self._mask(self._slots + 1)
            if mask is not None:
                mask[:, -1] = True
            self._slots += 1
            logits = self._forward(tokens[:, None], positions, 1, mask)
            positions = positions + 1
            return logits[:, -1]

        return append

    def _extend_full(self, keep: int, new: Sequence[Ids], width: int, last: int) -> Tensor:
        """Extend rows of one length that have no holes by ids of one number."""
        if keep < self._slots:
            for layer in self._cache.growing:
                layer.cut(keep)
            for row in self._rows:
                del row[keep:]
        for row, ids in zip(self._rows, new, strict=True):
            row.extend(ids)
        self._slots = keep + width
        # One tensor for all that the device needs: each copy to a device takes as long as a larger one.
        table = to_device(torch.tensor([*chain.from_iterable(new), *range(keep, self._slots)]), self._device)
        tokens, positions = table.split_with_sizes((len(new) * width, width))
        # Every slot holds a token, so no mask is needed; a step without one is faster.
        return self._forward(tokens.view(-1, width), positions.expand(len(new), -1), last, None)

    def _extend_uneven(self, new: Sequence[Ids], widest: int, last: int, *, is_even: bool) -> Tensor:
        """Extend rows by ids, of which the longest are ``widest``; ``is_even`` if all are."""
        start, count = self._slots, len(new)
        filled = self._mask(start + widest)
        for row, ids in zip(self._rows, new, strict=True):
            row.extend(ids)
        # Padding has no position, and a model has no negative ones.
        positions = [max(0, place) for row in self._rows for place in range(len(row) - widest, len(row))]
        # One tensor for the ids and the positions, as in _extend_full.
        if is_even:
            table = torch.tensor([*chain.from_iterable(new), *positions])
            filled[:, start:] = True
        else:
            # Padding goes left of the new tokens, so that the last logits of every row are in the last column.
            padding = [widest - len(ids) for ids in new]
            padded = chain.from_iterable((*repeat(0, empty), *ids) for empty, ids in zip(padding, new, strict=True))
            table = torch.tensor([*padded, *positions, *padding])
            torch.ge(torch.arange(widest), table[-count:, None], out=filled[:, start:])
        self._slots += widest
        tokens, places = to_device(table[: 2 * widest * count], self._device).view(2, count, widest).unbind()
        return self._forward(tokens, places, last, filled)

    def _forward(self, ids: Tensor, positions: Tensor, last: int, mask: Tensor | None) -> Tensor:
        logits: Tensor = self._model(
            input_ids=ids,
            attention_mask=None if mask is None else to_device(mask, self._device).long(),
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            **({"logits_to_keep": last} if can_skip_logits(type(self._model).forward) else {}),
        ).logits
        return logits[:, -last:].to(self._logits_device)

    def _shared_prefix(self, kind: int, prompts: Sequence[Ids]) -> tuple[list[int], GrowingCache]:
        """The longest prefix of a kind's prompts that leaves each a token, and the cache of one row that holds it."""
        if kind in self._prefixes:
            ids = self._prefixes[kind][0]
            if all(len(prompt) > len(ids) and list(prompt[: len(ids)]) == ids for prompt in prompts):
                return self._prefixes[kind]
        # A pass for itself costs about as much as the tokens that it saves.
        if len(prompts) < 2:
            return [], GrowingCache()
        ids = common_prefix(prompts)[: min(map(len, prompts)) - 1]
        if len(ids) < self._min_prefix:
            return [], GrowingCache()
        single = CachedRunner(self._model, self._window)
        single._begin([], GrowingCache(), 1)
        single.extend([0], [ids])
        self._prefixes[kind] = ids, single._cache
        return self._prefixes[kind]

    def _begin(self, prefix: Ids, cache: GrowingCache, rows: int) -> None:
        """Begin with rows that hold the prefix only."""
        for layer in cache.growing:
            copy = GrowingLayer()
            # Expanded views share the prefix's memory until something is appended.
            copy.begin(*(tensor.expand(rows, -1, -1, -1) for tensor in (layer.keys, layer.values)))
            self._cache.layers.append(copy)
        self._slots = len(prefix)
        self._rows = [list(prefix) for _ in range(rows)]

    def _append(self, parts: Sequence[tuple[Sequence[int], CachedRunner]]) -> None:
        """Append the rows of other runners of the same model, each with the numbers that its rows get."""
        if not self._rows and len(parts) == 1:
            ((_, part),) = parts
            self._cache, self._slots, self._filled, self._rows = part._cache, part._slots, part._filled, part._rows
            return
        count = len(self._rows)
        placed = {count + n: row for numbers, part in parts for n, row in zip(numbers, part._rows, strict=True)}
        rows = [*self._rows, *(placed[n] for n in range(count, count + len(placed)))]
        places = [torch.tensor(numbers) + count for numbers, _ in parts]
        on_device = [to_device(place, self._device) for place in places]
        slots = max(self._slots, *(part._slots for _, part in parts))
        is_full = all(each._filled is None and each._slots == slots for each in (self, *(part for _, part in parts)))
        if not is_full:
            filled = torch.zeros(len(rows), with_spare(slots), dtype=torch.bool)
            # The rows that are here keep their slots: to move them would copy the whole cache.
            filled[:count, : self._slots] = True if self._filled is None else self._filled[:, : self._slots]
            for place, (_, part) in zip(places, parts, strict=True):
                own = torch.tensor(True) if part._filled is None else part._filled[:, : part._slots]
                filled[place, slots - part._slots : slots] = own
        self._cache.join([part._cache for _, part in parts], on_device, len(rows), slots)
        self._rows, self._slots = rows, slots
        self._filled = None if is_full else filled

    def _mask(self, slots: int) -> Tensor:
        """Which of so many slots hold a token [rows, slots]; the caller fills the last columns, which are new."""
        if self._filled is None or self._filled.shape[1] < slots:
            room = torch.ones(len(self._rows), with_spare(slots), dtype=torch.bool)
            if self._filled is not None:
                room[:, : self._slots] = self._filled[:, : self._slots]
            self._filled = room
        return self._filled[:, :slots]

    def _roll_back(self, keep: Sequence[int]) -> None:
        """Empty the slots of all tokens after each row's first ``keep``."""
        back = [n for n, row in enumerate(self._rows) if keep[n] < len(row)]
        if not back:
            return
        for n in back:
            del self._rows[n][keep[n] :]
        filled, index = self._mask(self._slots), torch.tensor(back)
        cut = filled[index]
        # The running sum counts the tokens of a row up to each slot.
        cut &= cut.cumsum(dim=1) <= torch.tensor([keep[n] for n in back])[:, None]
        filled[index] = cut
        self._trim()

    def _trim(self) -> None:
        """Remove slots that no row uses at either end."""
        filled = self._mask(self._slots)
        if self._slots and bool(filled[:, 0].any() & filled[:, -1].any()):
            return
        used = filled.any(dim=0).nonzero()
        first, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        for layer in self._cache.growing:
            layer.cut(end, first)
        self._slots = end - first
        self._set_filled(cast(Tensor, self._filled)[:, first:])

    def _pack(self, max_slots: int) -> None:
        """Remove the holes where there are more than ``max_slots`` slots. Then a row's tokens fill the last slots."""
        if self._filled is None or self._slots <= max_slots:
            return
        filled = self._mask(self._slots)
        if not bool((filled[:, :-1] & ~filled[:, 1:]).any()):
            return
        # A stable sort moves the empty slots to the front and keeps the order of the others.
        order = filled.to(torch.int8).argsort(dim=1, stable=True)[:, -max(self.lengths) :]
        on_device = to_device(order, self._device)
        for layer in self._cache.growing:
            layer.arrange(on_device)
        self._slots = order.shape[1]
        self._set_filled(filled.gather(1, order))

    def _set_filled(self, filled: Tensor) -> None:
        """Note which slots hold a token [rows, slots], after slots were removed. There may be spare columns."""
        self._filled = None if bool(filled[:, : self._slots].all()) else filled
