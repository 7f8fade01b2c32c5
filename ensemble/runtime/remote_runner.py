"""A model behind a server of next-token log-probabilities: the runner of its batches, and its logits there.

Rows are only lists of ids here: every request sends whole contexts, and the server finds their common beginnings in its
cache. So a server may be restarted at any time, and rows need no common length.

UNITE renormalises over the union, where the constant that makes log-probabilities of logits cancels. So they stand in
for logits, exactly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ensemble.runtime.draft import Draft
from ensemble.runtime.local_runner import Ids, common_length
from ensemble.servers.token_client import TokenClient
from ensemble.servers.token_server import Logprobs, NextToken
from ensemble.vocabulary.joint import NONE, Candidates

if TYPE_CHECKING:
    from numpy.typing import NDArray

_USUAL_K = 10
_LEAST_SHARE = 1e-4
"""The least share of all probability that candidates have: the server's values have seven digits."""
_MAX_FETCHED = 512
"""Where a grammar allows at most so many ids, all of them are fetched: the top ones may be others."""
_MORE = 10
"""Ids above k to ask for: special tokens and ids with equal bytes take places among the top ones."""


class RemoteRunner:
    """Runs a member behind a token server; ``k`` is the top log-probabilities of each request."""

    reads_rows = False

    def __init__(self, client: TokenClient, candidates: Candidates) -> None:
        self.client, self.candidates = client, candidates
        self._rows: list[list[int]] = []
        # What the server told when it last wrote: the token after each context.
        self._told: Callable[[], dict[tuple[int, ...], NextToken]] = dict
        self._writes_ahead = False
        self.k = 0
        self.need(_USUAL_K)

    def need(self, k: int) -> None:
        """Note how many candidates the method takes of each member."""
        more = max(self.k, min(k + _MORE, self.client.limits.k, self.candidates.size))
        if more > self.k:
            # What was told before has fewer.
            self.k, self._told = more, dict

    def admit(self, prompts: Sequence[Ids]) -> RemoteRows:
        """See :meth:`ensemble.runtime.local_runner.LocalRunner.admit`."""
        # A new list: the logits of rows that were fed before refer to the old one until the server has answered.
        self._rows = [*self._rows, *map(list, prompts)]
        return self._after(prompts)

    def feed(self, keep: Sequence[int], new: Sequence[Ids]) -> RemoteRows:
        """See :meth:`ensemble.runtime.local_runner.LocalRunner.feed`."""
        self._change(keep, new)
        return self._after(self._rows)

    def drop(self, kept: Sequence[int]) -> None:
        """See :meth:`ensemble.runtime.local_runner.LocalRunner.drop`."""
        self._rows = [self._rows[n] for n in kept]

    def draft(self, keep: Sequence[int], new: Sequence[Ids], drafts: Draft) -> RemoteRows:
        """See :meth:`ensemble.runtime.local_runner.LocalRunner.draft`. All drafts are one request."""
        self._change(keep, new)
        # The last token that is written has no logits after it, so it is not drafted.
        answers = self._write(self._rows, drafts.longest + 1)()
        contexts, tokens = [], []
        for n, (row, answer) in enumerate(zip(self._rows, answers, strict=True)):
            drafts.take_written(n, [(each.token, each.top) for each in answer[:-1]])
            draft = drafts.tokens[n]
            self._rows[n] = [*row, *draft]
            contexts += [self._rows[n][: len(row) + place] for place in range(len(draft) + 1)]
            tokens += answer[: len(draft) + 1]
        return RemoteRows(self, contexts, self.k, lambda: tokens)

    def write_ahead(self, contexts: Sequence[Ids], max_tokens: int) -> None:
        """See :meth:`ensemble.runtime.local_runner.LocalRunner.write_ahead`."""
        self._write(contexts, max_tokens)
        self._writes_ahead = True

    def already_known(self, contexts: Sequence[Ids]) -> Sequence[Ids]:
        """See :meth:`ensemble.runtime.local_runner.LocalRunner.already_known`."""
        if not self._writes_ahead:
            return contexts
        told = self._told()
        path = [*contexts[0], *(each.token for each in _path(told, contexts[0]))]
        return list(itertools.takewhile(lambda ids: tuple(ids) in told or self._is_on(list(ids), path), contexts))

    def _write(self, contexts: Sequence[Ids], max_tokens: int) -> Callable[[], list[list[NextToken]]]:
        """Let the server write after contexts; return a function that waits for the tokens after each.

        Where the members disagreed, the text goes on as one of them has written already. That one goes on at the end of
        what it wrote, and only if that is less than half of what is wanted: a few more tokens are not worth a request.
        """
        before, starts = self._told(), list(map(tuple, contexts))
        paths = [_path(before, start) for start in starts]
        ends = [(*start, *(each.token for each in path)) for start, path in zip(starts, paths, strict=True)]
        short = [
            n
            for n, (path, end) in enumerate(zip(paths, ends, strict=True))
            if not path or (2 * len(path) < max_tokens and self._goes_on(end))
        ]
        wait = self.client.write([ends[n] for n in short], max_tokens, self.k) if short else list

        @cache
        def written() -> list[list[NextToken]]:
            for n, tokens in zip(short, wait(), strict=True):
                paths[n] = [*paths[n], *tokens]
            return paths

        @cache
        def told() -> dict[tuple[int, ...], NextToken]:
            found: dict[tuple[int, ...], NextToken] = {}
            for start, path in zip(starts, written(), strict=True):
                ids = (*start, *(each.token for each in path))
                found |= {ids[: len(start) + n]: each for n, each in enumerate(path)}
            return found

        self._told = told
        return written

    def _goes_on(self, written: Ids) -> bool:
        """Whether the server can write more after what it wrote."""
        limit = self.client.limits.context
        return written[-1] not in self.candidates.eos_ids and (limit is None or len(written) < limit)

    def _is_on(self, context: list[int], path: list[int]) -> bool:
        """Whether a context is the beginning of a path's text, in other ids."""
        same = common_length(context, path)
        text, written = (b"".join(map(self.candidates.bytes_of, ids[same:])) for ids in (context, path))
        # At the end of the path nothing is known any more.
        return len(text) < len(written) and written.startswith(text)

    def read(self, keep: Sequence[int], new: Sequence[Ids], contexts: Sequence[Sequence[Ids]]) -> RemoteRows:
        """See :meth:`ensemble.runtime.local_runner.LocalRunner.read`. All places of all rows are one request."""
        self._change(keep, new)
        return self._after([context for each in contexts for context in each])

    def score(
        self, prompts: Sequence[Ids], parents: Sequence[int], new: Sequence[Ids], places: Sequence[tuple[int, int]]
    ) -> RemoteRows:
        """See :meth:`ensemble.runtime.local_runner.LocalRunner.score`."""
        rows = [[*prompts[parent][:-1], *ids] for parent, ids in zip(parents, new, strict=True)]
        starts = [len(prompts[parent]) for parent in parents]
        return self._after([rows[row][: starts[row] + position] for row, position in places])

    def row(self, context: Ids, top: Logprobs, k: int) -> _Row:
        """What the k top log-probabilities tell of a context."""
        # Not the smallest one shown: the token that was written may be an extra entry below rank k.
        values = top.values()
        lowest = min(values) if len(top) == k else sorted(values, reverse=True)[k - 1]
        floor = -math.inf if len(top) >= self.candidates.size else lowest
        return _Row(context, self.candidates.of(top), self.candidates.others(top), floor, k)

    def _change(self, keep: Sequence[int], new: Sequence[Ids]) -> None:
        """Cut the rows and append to them; rows beyond those of the batch begin here."""
        rows = [*self._rows, *([] for _ in keep[len(self._rows) :])]
        self._rows = [[*row[:kept], *ids] for row, kept, ids in zip(rows, keep, new, strict=True)]

    def _after(self, contexts: Sequence[Ids]) -> RemoteRows:
        """What the server tells after some contexts; each of them is sent once."""
        distinct: dict[tuple[int, ...], int] = {}
        known = self._told()
        self._writes_ahead = False
        keys = [tuple(context) for context in contexts]
        for key in keys:
            if key not in known:
                distinct.setdefault(key, len(distinct))
        wait = self.client.write(list(distinct), 1, self.k) if distinct else lambda: []

        def tokens() -> list[NextToken]:
            answers = wait()
            return [known[key] if key in known else answers[distinct[key]][0] for key in keys]

        return RemoteRows(self, contexts, self.k, tokens)


def _path(told: Mapping[tuple[int, ...], NextToken], context: Ids) -> list[NextToken]:
    """The tokens that a server has told after a context, each after the one before."""
    path: list[NextToken] = []
    ids = tuple(context)
    while (token := told.get(ids)) is not None:
        path.append(token)
        ids = (*ids, token.token)
    return path


class RemoteRows:
    """The log-probabilities after some contexts, as far as the server told them; ``wait`` gets its first answer."""

    def __init__(
        self, runner: RemoteRunner, contexts: Sequence[Ids], k: int, wait: Callable[[], Sequence[NextToken]]
    ) -> None:
        self._runner = runner
        self._parts = [(contexts, k, wait)]
        self._rows: list[_Row] | None = None

    @property
    def rows(self) -> list[_Row]:
        """The rows; waits for the server."""
        if self._rows is None:
            self._rows = [
                self._runner.row(context, token.top, k)
                for contexts, k, wait in self._parts
                for context, token in zip(contexts, wait(), strict=True)
            ]
        return self._rows

    def __len__(self) -> int:
        return sum(len(contexts) for contexts, _, _ in self._parts) if self._rows is None else len(self._rows)

    def __getitem__(self, rows: slice | list[int]) -> RemoteRows:
        part = RemoteRows(self._runner, (), 0, lambda: ())
        # Rows are shared, so what is fetched for a part is known in the whole.
        part._rows = self.rows[rows] if isinstance(rows, slice) else [self.rows[n] for n in rows]
        return part

    def concat(self, other: RemoteRows) -> RemoteRows:
        """These rows and then those of another; both of one member and one batch."""
        both = RemoteRows(self._runner, (), 0, lambda: ())
        if self._rows is None and other._rows is None:
            both._parts = [*self._parts, *other._parts]
        else:
            both._rows = [*self.rows, *other.rows]
        return both

    def to(self, device: torch.device) -> RemoteRows:  # noqa: ARG002  # as a tensor has it
        """These logits: they stay in the other process."""
        return self

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k largest logits [rows, k] among candidates and their ids; among equal ones the lower ids."""
        self._runner.need(k)
        # Special tokens may take so many places that fewer candidates are left than the method needs.
        if few := [row for row in self.rows if len(row.logprobs) < k and row.floor > -math.inf]:
            self._widen(few)()
        best = [sorted(row.logprobs.items(), key=lambda item: (-item[1], item[0]))[:k] for row in self.rows]
        for row, candidates in zip(self.rows, best, strict=True):
            if len(candidates) < k and row.floor > -math.inf:
                row.fault = row.fault or self._fault(f"only {len(candidates)} candidates are among them, and k is {k}")
        width = min(k, self._runner.candidates.size)
        # Where a vocabulary has fewer candidates, the rest of a row is impossible.
        filled = [
            [(0, math.nan)] * width if row.fault else [*own, *[(0, -math.inf)] * (width - len(own))]
            for row, own in zip(self.rows, best, strict=True)
        ]
        values = torch.tensor([[value for _, value in row] for row in filled], dtype=torch.float64)
        return values.reshape(len(best), width), torch.tensor(
            [[index for index, _ in row] for row in filled], dtype=torch.long
        ).reshape(len(best), width)

    def known(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The logits [rows, n] of ids as far as they arrived, and which are exact; the others are upper limits."""
        found = [
            [math.nan] * len(wanted) if row.fault else row.known(wanted)
            for row, wanted in zip(self.rows, ids.tolist(), strict=True)
        ]
        values = [
            [row.floor if value is None else value for value in values]
            for row, values in zip(self.rows, found, strict=True)
        ]
        exact = [[value is not None for value in values] for values in found]
        return torch.tensor(values, dtype=torch.float64), torch.tensor(exact, dtype=torch.bool)

    def fetch(self, ids: Tensor, wanted: Tensor) -> Callable[[], None]:
        """Request the logits of ``wanted`` ids [rows, n]; return a function that waits for :meth:`known` to have them.

        So requests to several members can be sent before the first answer arrives.
        """
        client, candidates = self._runner.client, self._runner.candidates
        lacking = [
            (row, [index for index, want in zip(own, flags, strict=True) if want])
            for row, own, flags in zip(self.rows, ids.tolist(), wanted.tolist(), strict=True)
        ]
        lacking = [(row, own) for row, own in lacking if own]
        if not client.limits.chosen:
            return self._widen([row for row, _ in lacking])
        all_ids = [sorted({each for index in own for each in candidates.ids(index)}) for _, own in lacking]
        wait = client.chosen([row.context for row, _ in lacking], all_ids)

        def done() -> None:
            for (row, _), logprobs in zip(lacking, wait(), strict=True):
                row.learn(candidates.of(logprobs))

        return done

    def restrict(self, allowed: Tensor) -> None:
        """Leave only the allowed ids [rows, V]; all others have minus infinity from now on."""
        client, candidates = self._runner.client, self._runner.candidates
        few: list[tuple[_Row, list[int]]] = []
        for row, own in zip(self.rows, allowed.cpu().numpy(), strict=True):
            row.allowed = own
            row.logprobs, known = {}, row.logprobs
            row.learn(known)
            ids = np.flatnonzero(own).tolist()
            if row.floor > -math.inf and client.limits.chosen and len(ids) <= _MAX_FETCHED:
                few.append((row, ids))
        if few:
            answers = client.chosen([row.context for row, _ in few], [ids for _, ids in few])()
            for (row, _), logprobs in zip(few, answers, strict=True):
                row.learn(candidates.of(logprobs))
                row.floor = -math.inf

    def shares(self, *, exact: bool) -> tuple[Tensor, Tensor]:
        """The smallest and largest share [rows] of candidates in all probabilities; ``exact`` makes both the same."""
        if exact:
            self._fetch_others()
        eos = min(self._runner.candidates.eos_ids, default=NONE)
        largest = [
            1 - sum(map(math.exp, row.others.values())) + math.exp(row.logprobs.get(eos, -math.inf))
            for row in self.rows
        ]
        if exact:
            for row, share in zip(self.rows, largest, strict=True):
                # What is left after the subtraction has no digits any more.
                if share < _LEAST_SHARE:
                    row.fault = row.fault or "nearly all probability is on special tokens that do not end a text"
            return torch.tensor(largest, dtype=torch.float64), torch.tensor(largest, dtype=torch.float64)
        smallest = [sum(map(math.exp, row.logprobs.values())) for row in self.rows]
        return torch.tensor(smallest, dtype=torch.float64), torch.tensor(largest, dtype=torch.float64)

    def _fetch_others(self) -> None:
        """Fetch the log-probabilities of all ids that are no candidates."""
        client, candidates = self._runner.client, self._runner.candidates
        lacking = [(row, [n for n in candidates.other_ids if n not in row.others]) for row in self.rows]
        lacking = [(row, ids) for row, ids in lacking if ids and row.floor > -math.inf]
        if not lacking:
            return
        if not client.limits.chosen:
            for row, _ in lacking:
                row.fault = self._fault("this method needs those of special tokens, too")
            return
        for (row, _), logprobs in zip(
            lacking, client.chosen([row.context for row, _ in lacking], [ids for _, ids in lacking])(), strict=True
        ):
            row.others |= candidates.others(logprobs)
            # EOS has the largest of its ids' values, which are all known now.
            row.logprobs |= candidates.of(row.others)

    def give_up(self, rows: Tensor) -> None:
        """Note that some rows [rows] need logits that :meth:`fetch` did not get; they count as NaN from now on."""
        for row, lost in zip(self.rows, rows.tolist(), strict=True):
            if lost:
                row.fault = self._fault("others can win, whose log-probabilities it does not give")

    def fault(self, row: int) -> str | None:
        """Why no token can be chosen in a row, whose logits are NaN then; None if one can."""
        # A server that computes NaN has no JSON for it, so its answer was an error.
        return self.rows[row].fault

    def _fault(self, what: str) -> str:
        k = self._runner.client.limits.k
        return f"its server gives {k} top log-probabilities; {what}; allow more (vllm serve --max-logprobs 64)"

    def _widen(self, rows: Sequence[_Row]) -> Callable[[], None]:
        """Request the largest number of top candidates for some rows; return a function that waits for them."""
        client = self._runner.client
        if not rows or all(row.k >= client.limits.k for row in rows):
            return lambda: None
        wait = client.write([row.context for row in rows], 1, client.limits.k, second=True)

        def done() -> None:
            for row, (token, *_) in zip(rows, wait(), strict=True):
                wide = self._runner.row(row.context, token.top, client.limits.k)
                row.learn(wide.logprobs)
                row.others, row.floor, row.k = wide.others, wide.floor, wide.k

        return done


@dataclass(slots=True)
class _Row:
    """What is known after a context."""

    context: Ids
    logprobs: dict[int, float]  # of candidates
    others: dict[int, float]  # of special tokens, those of EOS included, and of ids without a token
    floor: float  # the largest log-probability that another candidate may have
    k: int  # top log-probabilities that were requested
    fault: str | None = None  # why no token can be chosen after it
    allowed: NDArray[np.bool_] | None = None  # [V] the ids that may follow by its grammar; None for all

    def learn(self, logprobs: Mapping[int, float]) -> None:
        """Add log-probabilities of candidates, as far as they are allowed."""
        self.logprobs |= {
            index: value for index, value in logprobs.items() if self.allowed is None or self.allowed[index]
        }

    def known(self, candidates: Sequence[int]) -> list[float | None]:
        """The log-probabilities of candidates; None for one that is not known."""
        allowed = self.allowed
        if allowed is None:
            return list(map(self.logprobs.get, candidates))
        return [self.logprobs.get(index) if allowed[index] else -math.inf for index in candidates]
