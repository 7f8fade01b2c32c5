"""Models with LongRoPE (Phi-3 with 128k tokens): rows on the two sides of their border run in different forward passes.

A model with LongRoPE has two sets of rotary factors. transformers chooses one for a whole forward pass, by its largest
position (``longrope_frequency_update``): the short factors up to ``original_max_position_embeddings`` tokens, the long
ones beyond. So a short row beside a long one would get the long factors, and the keys that a row has in the cache are
wrong once it crosses the border. ``generate`` gives Phi-3's cache up there, and reads the text again from its first
token; so does the runner here. Models of other types keep the old keys in ``generate``. Here all get the logits of a
text that is read at once, which do not depend on how the text was fed: not on the batch, and not on drafts.

The factors of "dynamic" RoPE change beyond ``max_position_embeddings`` only, where a member's context ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from ensemble.runtime.local_runner import Ids, LocalRunner

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


def rope_border(config: PreTrainedConfig) -> int | None:
    """Tokens of the longest text that gets a model's short rotary factors; None if it has one set of factors."""
    config = config.get_text_config()
    parameters = getattr(config, "rope_parameters", None) or {}
    # Some models have parameters for each kind of their layers.
    each = [parameters, *(value for value in parameters.values() if isinstance(value, Mapping))]
    # The second name is the one in Phi-3's first configurations.
    long = [one for one in each if one.get("rope_type", one.get("type")) in ("longrope", "su")]
    key = "original_max_position_embeddings"
    return min((one.get(key) or getattr(config, key) for one in long), default=None)


class LongRopeRunner(LocalRunner):
    """Runs a model with LongRoPE; a row longer than ``border`` tokens gets the long factors, as it does alone.

    A row that crosses the border is read again once. If a draft crosses it and is rejected, it is read again for that.
    """

    def __init__(self, model: PreTrainedModel, border: int, make: Callable[[int], LocalRunner]) -> None:
        super().__init__(model)
        self._border = border
        # The pass over a common prefix must be on the side of its rows.
        self._sides = make(0), make(border)
        self.keeps_rows = self._sides[0].keeps_rows
        # For each side the numbers of the rows that it holds, in its order.
        self._held: tuple[list[int], list[int]] = [], []

    def prefill(self, prompts: Sequence[Ids], last: int = 1) -> Tensor:
        """See :meth:`LocalRunner.prefill`."""
        first = len(self._rows)
        self._rows += [list(prompt) for prompt in prompts]
        counts = {first + n: min(last, len(prompt)) for n, prompt in enumerate(prompts)}
        side = self._only_side(counts)
        if side is None:
            return self._read(counts, {}, last)
        self._held[side].extend(counts)
        return self._sides[side].prefill(prompts, last)

    def extend(self, keep: Sequence[int], new: Sequence[Ids], last: int = 1) -> Tensor:
        """See :meth:`LocalRunner.extend`."""
        for row, kept, ids in zip(self._rows, keep, new, strict=True):
            del row[kept:]
            row.extend(ids)
        counts = {n: min(last, len(ids)) for n, ids in enumerate(new)}
        side = self._only_side(counts)
        # Nearly every step: to put the logits of two sides together takes longer.
        if side is not None and self._held[side] == list(counts):
            return self._sides[side].extend(keep, new, last)
        return self._read(counts, dict(enumerate(keep)), last)

    def drop(self, kept: Sequence[int]) -> None:
        """See :meth:`LocalRunner.drop`."""
        for runner, held in zip(self._sides, self._held, strict=True):
            places = {n: place for place, n in enumerate(held)}
            runner.drop([places[n] for n in kept if n in places])
            held[:] = [new for new, n in enumerate(kept) if n in places]
        self._rows = [list(self._rows[n]) for n in kept]

    def take(self, other: LocalRunner) -> None:
        """See :meth:`LocalRunner.take`."""
        other = cast(LongRopeRunner, other)
        for runner, another, held, own in zip(self._sides, other._sides, self._held, other._held, strict=True):
            runner.take(another)
            held.extend(len(self._rows) + n for n in own)
        self._rows += other._rows

    def _only_side(self, counts: Mapping[int, int]) -> int | None:
        """The side of all of the last contexts of some rows; None if they are on both."""
        if max(len(self._rows[n]) for n in counts) <= self._border:
            return 0
        return 1 if min(len(self._rows[n]) - count for n, count in counts.items()) >= self._border else None

    def _read(self, counts: Mapping[int, int], keep: Mapping[int, int], last: int) -> Tensor:
        """Let the sides hold some rows as they are now; the logits [rows, last, V], zero where not needed."""
        parts: dict[int, list[Tensor]] = {n: [] for n in counts}
        for side, (runner, held) in enumerate(zip(self._sides, self._held, strict=True)):
            # The lengths of the shortest and the longest context whose logits are of this side's factors.
            ranges = {n: ends for n, count in counts.items() if (ends := self._range(side, n, count))}
            found: list[tuple[int, Tensor]] = []
            if keep:
                self._leave(side, [n for n in held if n in ranges])
                if held:
                    new = [self._rows[n][keep[n] : ranges[n][1]] for n in held]
                    widest = max(counts[n] for n in held)
                    found += zip(held, runner.extend([keep[n] for n in held], new, widest), strict=True)
            known = set(held)
            if fresh := [n for n in ranges if n not in known]:
                prompts = [self._rows[n][: ranges[n][1]] for n in fresh]
                found += zip(fresh, runner.prefill(prompts, max(counts[n] for n in fresh)), strict=True)
                held.extend(fresh)
            for n, logits in found:
                parts[n].append(logits[len(logits) - (ranges[n][1] - ranges[n][0] + 1) :])
        # A row that crosses the border has been on both sides; from now on it gets the long factors.
        self._leave(0, [n for n in self._held[0] if len(self._rows[n]) <= self._border])
        rows = [torch.cat(each) if len(each) > 1 else each[0] for each in parts.values()]
        return torch.stack([torch.cat([row.new_zeros(last - len(row), row.shape[1]), row]) for row in rows])

    def _range(self, side: int, n: int, count: int) -> tuple[int, int] | None:
        """The shortest and the longest of the last ``count`` contexts of a row that are on a side; None if none is."""
        longest = len(self._rows[n])
        shortest = longest - count + 1
        ends = (shortest, min(longest, self._border)) if side == 0 else (max(shortest, self._border + 1), longest)
        return ends if ends[0] <= ends[1] else None

    def _leave(self, side: int, kept: list[int]) -> None:
        """Let a side hold only these rows."""
        held = self._held[side]
        if len(kept) < len(held):
            stay = set(kept)
            self._sides[side].drop([place for place, n in enumerate(held) if n in stay])
            held[:] = kept
