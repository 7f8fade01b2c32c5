"""The worker of a member: a Ray actor that holds the weights, batches of rows, and the logits of the last request."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ray
import torch
from torch import Tensor

from ensemble.distributed.ray_messages import BATCH_LOST, Packed, pack_tensor, packed, unpack_tensor, unpacked
from ensemble.methods.unite import top_k
from ensemble.models.load import load_member
from ensemble.models.member import LocalMember
from ensemble.models.spec import ModelSpec
from ensemble.runtime.draft import Drafter
from ensemble.runtime.local_runner import LocalRunner
from ensemble.runtime.model_runner import Ids
from ensemble.step.distribution import candidate_logits
from ensemble.vocabulary.joint import MemberTables, build

_FIRST_OPERATIONS = {"admit", "draft", "read", "score"}
"""Operations that may begin a new batch."""
Tops = tuple[Packed, Packed]
"""The largest logits of each row, and their ids."""


class _WorkerBatch:
    """A batch of rows, and the candidates' logits [rows, V] after the last operation.

    The methods are the operations of a request. Each takes ``k``, the number of candidates in the reply.
    """

    def __init__(self, runner: LocalRunner, tables: MemberTables) -> None:
        self.runner = runner
        self._tables = tables
        self._logits = torch.empty(0, 0)

    def admit(self, k: int, prompts: Sequence[Ids]) -> Tops:
        before = self._logits if self.runner.row_count else None
        new = candidate_logits(self.runner.admit(prompts), self._tables)
        self._logits = new if before is None else torch.cat([before, new])
        return _tops(new, k)

    def feed(self, k: int, keep: Sequence[int], new: Sequence[Ids]) -> Tops:
        return self._hold(self.runner.feed(keep, new), k)

    def read(self, k: int, keep: int, new: Ids, positions: Sequence[int]) -> Tops:
        return self._hold(self.runner.read(keep, new, positions), k)

    def score(self, k: int, *arguments: Any) -> Tops:
        return self._hold(self.runner.score(*arguments), k)

    def draft(self, k: int, keep: int, new: Ids, max_tokens: int, min_probability: float) -> tuple[list[int], Tops]:
        drafter = Drafter(self._tables, min_probability=min_probability)
        tokens, logits = self.runner.draft(keep, new, drafter, max_tokens)
        return tokens, self._hold(logits, k)

    def top(self, k: int) -> Tops:
        return _tops(self._logits, k)

    def at(self, _k: int, rows: Packed, ids: Packed) -> Packed:
        device = self._logits.device
        return pack_tensor(self._logits[unpack_tensor(rows).to(device), unpack_tensor(ids).to(device)])

    def drop(self, _k: int, kept: Sequence[int]) -> None:
        self.runner.drop(kept)

    def _hold(self, logits: Tensor, k: int) -> Tops:
        self._logits = candidate_logits(logits, self._tables)
        return _tops(self._logits, k)


def _tops(logits: Tensor, k: int) -> Tops:
    ((values, ids),) = top_k([logits], k)
    return pack_tensor(values), pack_tensor(ids)


class MemberWorker:
    """One member as a Ray actor. The first request loads the member, also after a restart.

    Args:
        spec: The model to load.
        threads: Threads to compute with on a CPU, at least 1.
    """

    def __init__(self, spec: ModelSpec, threads: int) -> None:
        self._spec = spec
        self._threads = threads
        self._loaded: tuple[LocalMember, MemberTables] | None = None
        self._batches: dict[int, _WorkerBatch] = {}

    @ray.method(max_task_retries=-1)
    def describe(self) -> dict[str, Any]:
        """What the driver needs to know of the member."""
        member, _ = self._load()
        return {
            "tokenizer": member.tokenizer,
            "eos_ids": member.vocabulary.eos_ids,
            "size": member.vocabulary.size,
            "context": member.context,
            "seq2seq": member.seq2seq,
            "spec": member.spec,
            "token_size": member.token_size,
            "place": f"{ray.get_runtime_context().get_node_id()} {member.device}",
        }

    def free_memory(self) -> int | None:
        """Bytes of free memory where the member is; None if that is not known."""
        return self._load()[0].free_memory()

    def process_id(self) -> int:
        """The id of the worker's process."""
        return os.getpid()

    def handle(self, request: bytes) -> bytes:
        """Apply an operation to a batch.

        Args:
            request: The batch's number, its rows before the operation, k, the operation's name and its arguments.

        Returns:
            The reply; BATCH_LOST if there is no batch with this number and so many rows.
        """
        number, rows, k, operation, arguments = unpacked(request)
        batch = self._batches.get(number)
        if batch is None and operation in _FIRST_OPERATIONS and rows == 0:
            batch = self._begin(number)
        # A restarted worker has no batch, or one that lacks the rows of operations before its restart.
        if batch is None or batch.runner.row_count != rows:
            return packed(BATCH_LOST)
        return self._apply(number, batch, k, operation, arguments)

    @ray.method(max_task_retries=-1)
    def rebuild(self, request: bytes) -> bytes:
        """Like :meth:`handle`, with an empty batch that replaces any batch of that number."""
        number, _, k, operation, arguments = unpacked(request)
        return self._apply(number, self._begin(number), k, operation, arguments)

    def forget(self, number: int) -> None:
        """Free a batch."""
        self._batches.pop(number, None)

    def _begin(self, number: int) -> _WorkerBatch:
        member, tables = self._load()
        self._batches[number] = _WorkerBatch(member.runner(), tables)
        return self._batches[number]

    @torch.inference_mode()
    def _apply(self, number: int, batch: _WorkerBatch, k: int, operation: str, arguments: Sequence[Any]) -> bytes:
        try:
            return packed(getattr(batch, operation)(k, *arguments))
        except BaseException:
            # A failed operation may leave rows that were changed in part.
            self.forget(number)
            raise

    def _load(self) -> tuple[LocalMember, MemberTables]:
        if self._loaded is None:
            torch.set_num_threads(self._threads)
            member = load_member(self._spec)
            # Which ids are candidates depends on the member's own vocabulary only.
            self._loaded = member, build([member.vocabulary]).members[0].to(member.device)
        return self._loaded
