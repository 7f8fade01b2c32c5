"""Model runners of this process: the base class, and the runner that works without a cache."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ensemble.runtime.draft import Draft
from ensemble.runtime.forward_pass import pass_logits, pass_tokens, plan_passes, run_passes, to_device

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Ids = Sequence[int]


class LocalRunner(ABC):
    """Runs a model in evaluation mode on a batch of rows of ids, numbered from 0 in the order of admission.

    Logits are on the model's device, or where :func:`logits_device` says.
    """

    reads_rows = True
    """Whether :meth:`read` gives logits along its rows only, and not after any context."""
    keeps_rows = False
    """Whether to extend a row costs only its new tokens, so that rows are worth keeping."""

    def __init__(self, model: PreTrainedModel) -> None:
        # Typed as Any, because forward passes take other arguments for each kind of model.
        self._model: Any = model
        self._device = model.device
        self._logits_device = logits_device(model.device)
        self._rows: list[list[int]] = []

    @property
    def _reads_each(self) -> bool:
        """Whether a draft's tokens are read one by one."""
        # To read from an accelerator waits for it. So it writes a whole draft, and one copy brings that.
        return self._device.type == "cpu"

    @abstractmethod
    def prefill(self, prompts: Sequence[Ids], last: int = 1) -> Tensor:
        """Append rows; the logits [prompts, last, V] after their last tokens, without meaning before them."""

    @abstractmethod
    def extend(self, keep: Sequence[int], new: Sequence[Ids], last: int = 1) -> Tensor:
        """Cut each row to ``keep`` tokens and append at least one; the logits [rows, last, V], as :meth:`prefill`."""

    @abstractmethod
    def drop(self, kept: Sequence[int]) -> None:
        """Keep only the rows with these numbers, in this order."""

    def take(self, other: LocalRunner) -> None:
        """Append the rows of another runner of the same model and kind, which must not be used afterwards."""
        self._rows += other._rows

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        return [len(row) for row in self._rows]

    def admit(self, prompts: Sequence[Ids]) -> Tensor:
        """Append a row for each prompt; return the logits [prompts, V] after each of them."""
        return self.prefill(prompts)[:, -1]

    def feed(self, keep: Sequence[int], new: Sequence[Ids]) -> Tensor:
        """Cut each row to ``keep`` tokens and append ``new``, at least one each; the logits [rows, V] after them."""
        return self.extend(keep, new)[:, -1]

    def draft(self, keep: Sequence[int], new: Sequence[Ids], drafts: Draft) -> Tensor:
        """Feed the rows, new ones too (``keep`` 0), then draft; the logits [places, V] after each token."""
        count = len(self._rows)
        parts = [self.feed(keep[:count], new[:count])] if count else []
        if fresh := new[count:]:
            parts.append(self.admit(fresh))
        lengths, longest = self.lengths, drafts.longest
        logits = [torch.cat(parts) if len(parts) > 1 else parts[0]]
        # All rows are written on together: a draft that has ended would else have its last token read again and again.
        append = self._appender(longest)
        written: list[list[int]] = []
        unread: list[Tensor] = []
        for place in range(longest):
            tokens, shares = drafts.choose(logits[-1], place)
            if self._reads_each:
                ids = tokens.tolist()
                if not drafts.take(ids, shares.tolist(), is_fed=False):
                    break
                written.append(ids)
            else:
                # Ids are exact in this type.
                unread += [tokens.double(), shares.double()]
            logits.append(append(tokens))
        if unread:
            rows = torch.stack(unread).tolist()
            for ids, chances in zip(rows[::2], rows[1::2], strict=True):
                written.append(list(map(int, ids)))
                drafts.take(written[-1], chances, is_fed=True)
        # Also what a draft does not have: the row holds it until it is rolled back.
        for n, (row, length) in enumerate(zip(self._rows, lengths, strict=True)):
            row[length:] = [ids[n] for ids in written]
        if len(drafts.tokens) == 1:
            return torch.cat(logits[: len(drafts.tokens[0]) + 1])
        places = [logits[place][n] for n, draft in enumerate(drafts.tokens) for place in range(len(draft) + 1)]
        return torch.stack(places)

    def _appender(self, count: int) -> Callable[[Tensor], Tensor]:  # noqa: ARG002  # for subclasses
        """A function that appends a token [rows] and gives the logits [rows, V], at most ``count`` times.

        Only the caller of the function writes the tokens into the rows, which may be later.
        """
        return lambda tokens: self.feed(self.lengths, [[token] for token in tokens.tolist()])

    def write_ahead(self, contexts: Sequence[Ids], max_tokens: int) -> None:  # noqa: B027  # nothing to do here
        """Begin to write after contexts, if the model is elsewhere; the next :meth:`read` uses what it told.

        Reading a draft is faster here.
        """

    def already_known(self, contexts: Sequence[Ids]) -> Sequence[Ids]:
        """The first of some contexts along a draft: where the model wrote ahead, as far as it wrote the same text."""
        return contexts

    def read(self, keep: Sequence[int], new: Sequence[Ids], contexts: Sequence[Sequence[Ids]]) -> Tensor:
        """Feed the rows, new ones too (``keep`` 0); the logits [contexts, V] after their contexts, row by row.

        A context has at least ``keep + 1`` tokens, and is a beginning of the row if ``reads_rows``.
        """
        count, firsts = len(self._rows), [len(each[0]) for each in contexts]
        parts = []
        if count:
            parts.append(self.extend(keep[:count], new[:count], last=max(map(len, new[:count]))))
        if fresh := new[count:]:
            # A long prompt's logits take much memory, so none are computed before the first context's end.
            last = max(len(row) - first + 1 for row, first in zip(fresh, firsts[count:], strict=True))
            parts.append(self.prefill(fresh, last=last))
        picked, lengths = [], iter(zip(self.lengths, contexts, strict=True))
        for part in parts:
            end = part.shape[1] - 1
            places = [
                (row, end - (length - len(context)))
                for row, (length, each) in enumerate(islice(lengths, len(part)))
                for context in each
            ]
            # One copy to the device for the places of all rows.
            index = to_device(torch.tensor(places).T.contiguous(), part.device)
            picked.append(part[index[0], index[1]])
        return picked[0] if len(picked) == 1 else torch.cat(picked)

    def branch(self, parents: Sequence[int], new: Sequence[Ids], places: Sequence[tuple[int, int]]) -> Tensor:
        """Replace each prompt's row by its continuations; the logits [places, V], see :meth:`score`."""
        self.drop(parents)
        widest = max(map(len, new))
        # The last token of each prompt is read again: no logits were kept from the first reading.
        logits = self.extend([length - 1 for length in self.lengths], new, last=widest)
        # The logits of all rows end in the same column, so a shorter row begins further right.
        columns = [(row, widest - len(new[row]) + position) for row, position in places]
        index = to_device(torch.tensor(columns), logits.device)
        return logits[index[:, 0], index[:, 1]]

    def score(
        self, prompts: Sequence[Ids], parents: Sequence[int], new: Sequence[Ids], places: Sequence[tuple[int, int]]
    ) -> Tensor:
        """Read prompts, then continuations from their last token on, in an empty batch; the logits [places, V].

        ``places`` are pairs: the number of a continuation, and the position of a token in its ``new``.
        """
        self.prefill(prompts)
        logits = self.branch(parents, new, places)
        self.drop([])
        return logits


class RecomputingRunner(LocalRunner):
    """Runs whole rows at every call, slowly; right for a model whose state cannot be rolled back, too."""

    def prefill(self, prompts: Sequence[Ids], last: int = 1) -> Tensor:
        """See :meth:`LocalRunner.prefill`."""
        rows = [list(prompt) for prompt in prompts]
        self._rows += rows
        return self._forward(rows, last)

    def extend(self, keep: Sequence[int], new: Sequence[Ids], last: int = 1) -> Tensor:
        """See :meth:`LocalRunner.extend`."""
        # The rows are kept as ids only, and every call runs them from their first token.
        for row, kept, ids in zip(self._rows, keep, new, strict=True):
            del row[kept:]
            row.extend(ids)
        return self._forward(self._rows, last)

    def drop(self, kept: Sequence[int]) -> None:
        """See :meth:`LocalRunner.drop`."""
        # A row may be kept several times, and a list is changed in place: so each needs another list.
        self._rows = [list(self._rows[n]) for n in kept]

    def _forward(self, rows: Sequence[Ids], last: int) -> Tensor:
        tokens = pass_tokens(self._device)
        logits = pass_logits(self._device, self._model.config.get_text_config().vocab_size)
        # Rows of other lengths end in other columns, and a pass has the logits of whole columns.
        limits = (tokens, logits) if can_skip_logits(type(self._model).forward) else (min(tokens, logits),)
        passes = plan_passes([len(row) for row in rows], *limits)
        return run_passes(passes, lambda numbers: self._pass([rows[n] for n in numbers], last))

    def _pass(self, rows: Sequence[Ids], last: int) -> Tensor:
        """The logits [rows, last, V] of rows that are read together."""
        lengths = [len(row) for row in rows]
        longest = max(lengths)
        # Rows are padded on the right, where a causal model never sees the padding. So no mask is needed.
        ids = to_device(torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows]), self._device)
        # Logits take most of a long prompt's memory, so none are computed before the first one needed.
        needed = min(longest, longest - min(lengths) + last)
        options = {"logits_to_keep": needed} if can_skip_logits(type(self._model).forward) else {}
        logits: Tensor = self._model(input_ids=ids, use_cache=False, **options).logits
        ends = to_device(torch.tensor(lengths), self._device) - (longest - logits.shape[1])
        return last_logits(logits, ends, last).to(self._logits_device)


def logits_device(device: torch.device) -> torch.device:
    """Where the logits of a model on a device go, and the steps that combine them."""
    # Steps compute in float64, which MPS lacks. It shares the host's memory, so the way to the CPU is short.
    return torch.device("cpu") if device.type == "mps" else device


def last_logits(logits: Tensor, ends: Tensor, last: int) -> Tensor:
    """The logits [rows, last, V] before each row's end, without its padding; its first repeat where it is short."""
    places = (ends[:, None] - last + torch.arange(last, device=logits.device)).clamp(min=0)
    return logits.gather(1, places[:, :, None].expand(-1, -1, logits.shape[2]))


@lru_cache  # reading the signature takes longer than all else around a forward pass
def can_skip_logits(forward: Callable[..., object]) -> bool:
    """Whether a model's forward pass can compute the logits of the last tokens only."""
    return "logits_to_keep" in inspect.signature(forward).parameters


def common_prefix(rows: Sequence[Ids]) -> list[int]:
    """The longest sequence that all rows begin with."""
    # What the smallest and the largest row share, all rows between them share too.
    first, last = min(rows, key=list), max(rows, key=list)
    return list(first[: common_length(list(first), list(last))])


def common_length(a: Ids, b: Ids) -> int:
    """How many ids two sequences of the same type share at the front."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    # A binary search: Python compares slices at the speed of C, and single ids slowly.
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if a[:middle] == b[:middle] else (low, middle)
    return low
