"""A model of this process as ``advisor serve`` gives its tokens to other programs, by token ids."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Collection, Generator, Iterator, Sequence

import torch
from torch import Tensor

from ensemble.errors import MemberError
from ensemble.runtime.forward_pass import to_device
from ensemble.runtime.local_runner import LocalRunner, common_length
from ensemble.runtime.logits import top_k
from ensemble.servers.token_server import Ids, NextToken, ServerLimits

_TOKENS_PER_ROW = 1024
"""With the largest number of rows, the tokens that all kept rows may have on average."""
_MAX_LOGITS = 512
"""Rows of logits of a forward pass. More would take more memory than the cache: a row is as long as the vocabulary."""
_USUAL_STEP = 32
"""New tokens of a context that continues a row, as a draft has them; more can cost the other rows much padding."""
_MAX_IDLE_CALLS = 8
"""A row is fed with its batch, whether or not a call needs it; after so many calls of the batch it is dropped. Its text
has mostly ended."""


class PrefixRunner:
    """Runs a model on contexts that are sent whole; keeps at most ``rows`` rows, if the model has a cache.

    A context usually continues one of an earlier call. So the rows of earlier calls are kept, and a context whose
    beginning is in a row costs only its new tokens.
    """

    def __init__(self, make: Callable[[], LocalRunner], rows: int = 64) -> None:
        self._make = make
        self._most_rows = rows
        self._most_tokens = rows * _TOKENS_PER_ROW
        self._batches: list[_Batch] = []
        self._calls = 0
        # The contexts that were read last, as bytes, and their logits.
        self._last: tuple[list[bytes], Tensor] = [], torch.empty(0)

    def logits(self, contexts: Sequence[Ids]) -> Iterator[tuple[list[int], Tensor]]:
        """Numbers of contexts and their logits [numbers, V], in parts between which other calls may come."""
        keys, (last, logits) = [_key(ids) for ids in contexts], self._last
        places = {key: place for place, key in enumerate(last)}
        if places.keys() >= {*keys}:
            # After its top candidates, other ids of a context are often asked for.
            yield [*range(len(keys))], logits if keys == last else logits[[places[key] for key in keys]]
            return
        first = self._calls + 1
        part: list[_Path] = []
        for path in _paths(contexts, keys):
            tokens = len(path.ids) + sum(len(other.ids) for other in part)
            if part and (len(part) == self._most_rows or tokens > self._most_tokens):
                yield self._read(part, first, keys)
                part = []
            part.append(path)
        if part:
            yield self._read(part, first, keys)

    @torch.inference_mode()
    def _read(self, paths: list[_Path], first: int, keys: list[bytes]) -> tuple[list[int], Tensor]:
        try:
            parts = self._run(paths, first)
        except BaseException:
            # A forward pass that failed leaves a cache that no longer fits its rows.
            self._batches.clear()
            raise
        # A copy of all logits takes longer than the search for their largest.
        logits = parts[0][1] if len(parts) == 1 else torch.cat([logits for _, logits in parts])
        numbers = [number for numbers, _ in parts for number in numbers]
        if len(numbers) <= self._most_rows:
            self._last = [keys[number] for number in numbers], logits
        return numbers, logits

    def _run(self, paths: list[_Path], first: int) -> list[tuple[list[int], Tensor]]:
        """Read some of the paths of a call, whose first part has the number ``first``."""
        self._calls += 1
        batch = self._matched(paths)
        new = [path for path in paths if path.row is None]
        has_room = self._make_room(len(new), sum(len(path.ids) for path in new), first)
        batch.drop_idle(self._calls)
        found = batch.extend([path for path in paths if path.row is not None])
        if new:
            # More rows than there is room for would drop each other, and then no row is kept for the next call.
            target = batch if has_room else _Batch(self._make())
            found.append(target.admit(new, self._calls))
            found += target.extend(new)
        # Without a cache every row would be computed again at the next call.
        if batch.runner.keeps_rows and batch.rows and batch not in self._batches:
            self._batches.append(batch)
        return found

    def _matched(self, paths: Sequence[_Path]) -> _Batch:
        """Choose the rows that paths continue; return the batch that holds them all, or a new one."""
        pairs = [
            (shared, -number, batch, row)
            for number, path in enumerate(paths)
            for batch in self._batches
            for row in batch.rows
            # The row may be needed again as it is: a few tokens at its beginning are no reason to lose the rest of it.
            if path.key.startswith(row.first_half) and (shared := _worth(path, row, len(batch.rows)))
        ]
        # The longest beginning first, so that a path does not take the row that another one continues.
        for _, number, _, row in sorted(pairs, key=lambda pair: pair[:2], reverse=True):
            path = paths[-number]
            # Each row continues one path, and each path one row.
            if path.row is None and row.used < self._calls:
                path.row, row.used = row, self._calls
        found = [batch for batch in self._batches if any(row.used == self._calls for row in batch.rows)]
        if not found:
            return _Batch(self._make())
        # Rows that are needed by one call will be needed by the next ones too, and then one pass reads them all.
        largest = max(found, key=lambda batch: len(batch.rows))
        for batch in found:
            if batch is not largest:
                largest.take(batch)
                self._batches.remove(batch)
        return largest

    def _make_room(self, rows: int, tokens: int, first: int) -> bool:
        """Drop the least recently used rows before part ``first``; return whether there is room for new rows now."""
        kept = sorted((row for batch in self._batches for row in batch.rows), key=lambda row: row.used, reverse=True)
        rows += len(kept)
        tokens += sum(len(row.ids) for row in kept)
        while (rows > self._most_rows or tokens > self._most_tokens) and kept and kept[-1].used < first:
            rows, tokens = rows - 1, tokens - len(kept.pop().ids)
        for batch in self._batches:
            batch.drop([row for row in batch.rows if row in kept])
        self._batches = [batch for batch in self._batches if batch.rows]
        # A single row may have more tokens.
        return rows <= self._most_rows and (tokens <= self._most_tokens or not kept)


class _Row:
    """A kept row."""

    def __init__(self, ids: list[int], used: int) -> None:
        self.used = used  # the number of the last call that needed it
        self.idle = 0  # calls of its batch since then
        self.set(ids)

    def set(self, ids: list[int]) -> None:
        self.ids = ids
        self.key = _key(ids)
        self.first_half = _key(ids[: -(-len(ids) // 2)])


class _Path:
    """A context and those of the same call that are its beginnings: one row gives the logits of all."""

    def __init__(self, ids: list[int], key: bytes, numbers: dict[int, list[int]]) -> None:
        self.ids = ids
        self.key = key
        self.numbers = numbers  # of the contexts, by ascending length; read lengths are removed
        self.row: _Row | None = None  # the one that it continues


class _Batch:
    """A runner and its rows, which every forward pass feeds together."""

    def __init__(self, runner: LocalRunner) -> None:
        self.runner = runner
        self.rows: list[_Row] = []

    def drop(self, kept: list[_Row]) -> None:
        if len(kept) < len(self.rows):
            self.runner.drop([number for number, row in enumerate(self.rows) if row in kept])
            self.rows = kept

    def drop_idle(self, call: int) -> None:
        """Drop the rows that neither this call nor the last ones needed."""
        for row in self.rows:
            row.idle = 0 if row.used == call else row.idle + 1
        self.drop([row for row in self.rows if row.idle <= _MAX_IDLE_CALLS])

    def take(self, other: _Batch) -> None:
        self.runner.take(other.runner)
        self.rows += other.rows

    def admit(self, paths: Sequence[_Path], call: int) -> tuple[list[int], Tensor]:
        """Append a row for each path with its shortest context; return the contexts' numbers and logits."""
        # The others are read by `extend`: the logits of all places of a long new row would fill the memory.
        rows = [_Row(path.ids[: next(iter(path.numbers))], call) for path in paths]
        logits = self.runner.admit([row.ids for row in rows])
        self.rows += rows
        numbers, places = [], []
        for place, (path, row) in enumerate(zip(paths, rows, strict=True)):
            path.row = row
            first = path.numbers.pop(len(row.ids))
            numbers += first
            places += [place] * len(first)
        return numbers, logits[to_device(torch.tensor(places), logits.device)]

    def extend(self, paths: Sequence[_Path]) -> list[tuple[list[int], Tensor]]:
        """Read the contexts of paths that have rows; return the contexts' numbers and logits, in parts."""
        found = []
        while by_row := {path.row: path for path in paths if path.numbers}:
            keep, new, numbers, places = [], [], [], []
            for place, row in enumerate(self.rows):
                path = by_row.get(row)
                if path is None:
                    # Every row gets a token at each pass: its last one again.
                    keep.append(len(row.ids) - 1)
                    new.append(row.ids[-1:])
                    continue
                lengths = self._next_lengths(path)
                # The token before each logits is fed in this pass, also if the row has it.
                keep.append(min(_shared(path, row), lengths[0] - 1))
                new.append(path.ids[keep[-1] : lengths[-1]])
                row.set(path.ids[: lengths[-1]])
                for length in lengths:
                    own = path.numbers.pop(length)
                    numbers += own
                    places += [(place, length - 1 - lengths[-1])] * len(own)
            logits = self.runner.extend(keep, new, last=max(-column for _, column in places))
            # Columns count from the end, where all rows end together.
            if places == [(place, -1) for place in range(len(self.rows))]:
                found.append((numbers, logits[:, -1]))
                continue
            index = to_device(torch.tensor(places), logits.device)
            found.append((numbers, logits[index[:, 0], index[:, 1]]))
        return found

    def _next_lengths(self, path: _Path) -> list[int]:
        """The lengths of the contexts of a path that the next pass reads."""
        # The lengths are in ascending order, so the first one is the shortest.
        first = next(iter(path.numbers))
        # A pass gives all rows as many logits as the row that needs the most.
        width = max(1, _MAX_LOGITS // len(self.rows))
        return [length for length in path.numbers if length < first + width]


def _key(ids: Ids) -> bytes:
    """Ids as bytes, which are compared much faster than lists. The beginning of the ids is that of the bytes."""
    return array("q", ids).tobytes()


def _shared(path: _Path, row: _Row) -> int:
    """How many ids a path and a row share at the front."""
    return common_length(path.key, row.key) // array("q").itemsize


def _worth(path: _Path, row: _Row, rows: int) -> int:
    """The tokens of a row that a path has at its front; 0 if a new row is better."""
    shared = _shared(path, row)
    new = len(path.ids) - shared
    # All rows of a batch are as wide in a pass as the widest: many tokens for one of them cost less in a pass without
    # them.
    return 0 if new > _USUAL_STEP and new * rows > len(path.ids) else shared


def _paths(contexts: Sequence[Ids], keys: Sequence[bytes]) -> list[_Path]:
    """The contexts that are not the beginning of another one, each with its beginnings; `keys` are their bytes."""
    chains: list[list[int]] = []
    # In reverse order of the bytes, a context comes right after one that it is the beginning of, if there is any.
    for number in sorted(range(len(keys)), key=keys.__getitem__, reverse=True):
        if chains and keys[chains[-1][-1]].startswith(keys[number]):
            chains[-1].append(number)
        else:
            chains.append([number])
    paths = []
    # Rows in the order of the contexts, as far as possible: so equal calls use equal batches.
    for chain in sorted(chains, key=min):
        numbers: dict[int, list[int]] = {}
        for number in reversed(chain):
            numbers.setdefault(len(contexts[number]), []).append(number)
        paths.append(_Path(list(contexts[chain[0]]), keys[chain[0]], numbers))
    return paths


def distinct_tokens(contexts: Sequence[Ids]) -> int:
    """The tokens that a model reads for contexts: the beginning of another context costs nothing."""
    return sum(len(path.ids) for path in _paths(contexts, list(map(_key, contexts))))


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
