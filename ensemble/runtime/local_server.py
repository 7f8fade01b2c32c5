"""A model of this process as ``advisor serve`` gives its tokens to other programs, by token ids."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator, Iterator, Sequence

import torch
from torch import Tensor

from ensemble.errors import MemberError
from ensemble.runtime.local_runner import LocalRunner
from ensemble.runtime.logits import top_k
from ensemble.runtime.prefix_runner import PrefixRunner
from ensemble.servers.token_server import Ids, NextToken, ServerLimits

_MAX_CONTEXTS = 1024
_CONTEXTS_AT_ONCE = 256
"""Contexts whose logits are in memory together: with a large vocabulary they take some hundred megabytes."""
_NOTHING = -64.0
"""From the largest logit; a million of these add less to the sum of exponentials than the rounding of float64."""


class LocalTokenServer:
    """Continues contexts that are sent whole, of ``size`` ids; keeps at most ``rows`` rows in memory."""

    def __init__(
        self,
        make_runner: Callable[[], LocalRunner],
        eos_ids: Collection[int],
        context: int | None,
        size: int,
        rows: int = 64,
    ) -> None:
        self.limits = ServerLimits(k=size, contexts=_MAX_CONTEXTS, chosen=size, context=context)
        self._runner = PrefixRunner(make_runner, rows)
        self._eos_ids = frozenset(eos_ids)
        self._lock = threading.Lock()

    def steps(
        self, contexts: Sequence[Ids], max_tokens: int, wanted: int | Ids
    ) -> Generator[None, None, list[list[NextToken]]]:
        """Continue contexts greedily, in parts between which other calls may come; the next tokens of each.

        ``wanted`` is the number of top log-probabilities of each token, or ids whose log-probabilities each token has.
        """
        rows = [list(ids) for ids in contexts]
        tokens: list[list[NextToken]] = [[] for _ in rows]
        unfinished = list(range(len(rows)))
        while unfinished:
            for start in range(0, len(unfinished), _CONTEXTS_AT_ONCE):
                group = unfinished[start : start + _CONTEXTS_AT_ONCE]
                parts = self._runner.logits([rows[n] for n in group])
                while (part := self._next_part(parts)) is not None:
                    numbers, logits = part
                    for place, token in zip(numbers, _next_tokens(logits, wanted), strict=True):
                        tokens[group[place]].append(token)
                    yield
            # After all parts: the contexts of a part are not copied, and must not grow while others are read.
            for n in unfinished:
                rows[n].append(tokens[n][-1].token)
            unfinished = [n for n in unfinished if self._goes_on(rows[n], len(tokens[n]) < max_tokens)]
        return tokens

    def _next_part(self, parts: Iterator[tuple[list[int], Tensor]]) -> tuple[list[int], Tensor] | None:
        # The runner is not thread-safe, and must be free for other threads while the steps wait.
        with self._lock:
            return next(parts, None)

    def _goes_on(self, row: list[int], wants_more: bool) -> bool:
        has_room = self.limits.context is None or len(row) < self.limits.context
        return wants_more and has_room and row[-1] not in self._eos_ids


def _next_tokens(logits: Tensor, wanted: int | Ids) -> list[NextToken]:
    """The next token after each row of logits [rows, V], none of which may be NaN."""
    # A model in half precision gets exact log-probabilities too; one in double precision keeps it.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if isinstance(wanted, int):
        values, ids = top_k(logits, max(wanted, 1))
        best, tokens = values[:, :1], ids[:, :1]
    else:
        best, tokens = logits.max(dim=1, keepdim=True)
    # Of all log-probabilities few are wanted, so only the logarithm of the sum is computed. What a logit far below the
    # largest adds is rounded away, and exponentials below the range of normal numbers take 30 times as long.
    total = best + (logits - best).clamp_(min=_NOTHING).exp_().sum(dim=1, keepdim=True).log_()
    if bool(total.isnan().any()):
        raise MemberError("its logits are not numbers (NaN)")
    if isinstance(wanted, int):
        told = zip(ids[:, :wanted].tolist(), (values - total)[:, :wanted].tolist(), strict=True)
        rows = [dict(zip(*row, strict=True)) for row in told]
    else:
        index = torch.tensor(wanted, dtype=torch.long, device=logits.device)
        rows = [dict(zip(wanted, row, strict=True)) for row in (logits[:, index] - total).tolist()]
    # The token that was chosen may not be among those that are wanted.
    found = zip(tokens.tolist(), (best - total).tolist(), rows, strict=True)
    return [NextToken(token, {**row, token: value}) for [token], [value], row in found]
