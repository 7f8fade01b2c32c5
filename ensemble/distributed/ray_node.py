"""A member where its weights are: it keeps contexts and the logits behind them, and answers what is asked of those."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
import torch
from torch import Tensor

from ensemble.distributed.ray_messages import LOST, Packed, pack_tensor, packed, unpack_tensor, unpacked
from ensemble.methods.unite import top_k
from ensemble.models.load import load_member
from ensemble.models.member import Member
from ensemble.models.memory import free_memory
from ensemble.models.spec import ModelSpec
from ensemble.runtime.draft import Proposer
from ensemble.runtime.model_runner import LocalSite, Ways
from ensemble.runtime.rows import Ids
from ensemble.step.distribution import candidate_logits
from ensemble.vocabulary.joint import MemberTables, build

_BEGINNINGS = {"admit", "draft", "read", "score"}
"""What may be done with a batch that has no rows."""
Tops = tuple[Packed, Packed]
"""Of each row the largest logits, and their ids."""


@dataclass(slots=True)
class _Batch:
    """A batch of contexts, and the candidates' logits [rows, V] that are asked about."""

    site: LocalSite
    tables: MemberTables
    logits: Tensor = field(default_factory=lambda: torch.empty(0, 0))

    def admit(self, k: int, prompts: Sequence[Ids]) -> Tops:
        before = self.logits if self.site.rows else None
        fresh = candidate_logits(self.site.admit(prompts), self.tables)
        self.logits = fresh if before is None else torch.cat([before, fresh])
        return _tops(fresh, k)

    def feed(self, k: int, keep: Sequence[int], new: Sequence[Ids]) -> Tops:
        return self._keep(self.site.feed(keep, new), k)

    def read(self, k: int, keep: int, new: Ids, places: Sequence[int]) -> Tops:
        return self._keep(self.site.read(keep, new, places), k)

    def score(self, k: int, prompts: Sequence[Ids], ways: Sequence[Any]) -> Tops:
        return self._keep(self.site.score(prompts, Ways(*ways)), k)

    def draft(self, k: int, keep: int, new: Ids, most: int, sure: float) -> tuple[list[int], Tops]:
        tokens, logits = self.site.draft(keep, new, Proposer(self.tables, sure=sure), most)
        return tokens, self._keep(logits, k)

    def top(self, k: int) -> Tops:
        return _tops(self.logits, k)

    def at(self, _k: int, rows: Packed, ids: Packed) -> Packed:
        device = self.logits.device
        return pack_tensor(self.logits[unpack_tensor(rows).to(device), unpack_tensor(ids).to(device)])

    def drop(self, _k: int, kept: Sequence[int]) -> None:
        self.site.drop(kept)

    def _keep(self, logits: Tensor, k: int) -> Tops:
        self.logits = candidate_logits(logits, self.tables)
        return _tops(self.logits, k)


def _tops(logits: Tensor, k: int) -> Tops:
    ((values, ids),) = top_k([logits], k)
    return pack_tensor(values), pack_tensor(ids)


class Node:
    """A member on a node of its own, as a Ray actor. It is loaded when it is first needed, also after a new start.

    Args:
        spec: The model to load.
        threads: That it computes with on a processor, at least 1.
    """

    def __init__(self, spec: ModelSpec, threads: int) -> None:
        self._spec = spec
        self._threads = threads
        self._loaded: tuple[Member, MemberTables] | None = None
        self._batches: dict[int, _Batch] = {}

    @ray.method(max_task_retries=-1)
    def tell(self) -> dict[str, Any]:
        """What the driver needs to know of the member."""
        member, _ = self._member()
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

    def free(self) -> int | None:
        """Bytes that are free where the member is; None where that is not known."""
        return free_memory(self._member()[0].device)

    def process(self) -> int:
        """The number of its process."""
        return os.getpid()

    def ask(self, request: bytes) -> bytes:
        """Do something with a batch of contexts that is there.

        Args:
            request: The batch's number, its rows before, k, what to do, and with what.

        Returns:
            The answer; LOST where there is no such batch, or it has other rows.
        """
        number, rows, k, what, given = unpacked(request)
        batch = self._batches.get(number)
        if batch is None and what in _BEGINNINGS and rows == 0:
            batch = self._begin(number)
        if batch is None or batch.site.rows != rows:
            return packed(LOST)
        return self._do(number, batch, k, what, given)

    @ray.method(max_task_retries=-1)
    def ask_anew(self, request: bytes) -> bytes:
        """As :meth:`ask`, with an empty batch in place of whatever there is."""
        number, _, k, what, given = unpacked(request)
        return self._do(number, self._begin(number), k, what, given)

    def forget(self, number: int) -> None:
        """Give up a batch."""
        self._batches.pop(number, None)

    def _begin(self, number: int) -> _Batch:
        member, tables = self._member()
        self._batches[number] = _Batch(member.here.site(), tables)
        return self._batches[number]

    @torch.inference_mode()
    def _do(self, number: int, batch: _Batch, k: int, what: str, given: Sequence[Any]) -> bytes:
        try:
            return packed(getattr(batch, what)(k, *given))
        except BaseException:
            # What is half done is not to be gone on from.
            self.forget(number)
            raise

    def _member(self) -> tuple[Member, MemberTables]:
        if self._loaded is None:
            torch.set_num_threads(self._threads)
            member = load_member(self._spec)
            # What is no candidate follows from one's own vocabulary.
            self._loaded = member, build([member.vocabulary]).members[0].to(member.device)
        return self._loaded
