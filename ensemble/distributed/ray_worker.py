"""The worker of a member: a Ray actor that holds the weights, and answers requests as a server does."""

from __future__ import annotations

import os
import pickle
from typing import Any

import ray
import torch

from ensemble.models.load import load_member
from ensemble.models.member import LocalMember
from ensemble.models.spec import ModelSpec
from ensemble.runtime.local_server import LocalTokenServer


class MemberWorker:
    """One member as a Ray actor. The first request loads the member, also after a restart.

    No request depends on an earlier one, so Ray itself may repeat each of them in a restarted process.

    Args:
        spec: The model to load.
        threads: Threads to compute with on a CPU, at least 1.
    """

    def __init__(self, spec: ModelSpec, threads: int) -> None:
        self._spec = spec
        self._threads = threads
        self._loaded: tuple[LocalMember, LocalTokenServer] | None = None

    @ray.method(max_task_retries=-1)
    def describe(self) -> dict[str, Any]:
        """What the driver needs to know of the member."""
        member, server = self._load()
        return {
            "tokenizer": member.tokenizer,
            "eos_ids": member.vocabulary.eos_ids,
            "size": member.vocabulary.size,
            "context": member.context,
            "seq2seq": member.seq2seq,
            "spec": member.spec,
            "token_size": member.token_size,
            "place": f"{ray.get_runtime_context().get_node_id()} {member.device}",
            "limits": server.limits,
        }

    @ray.method(max_task_retries=-1)
    def free_memory(self) -> int | None:
        """Bytes of free memory where the member is; None if that is not known."""
        return self._load()[0].free_memory()

    def process_id(self) -> int:
        """The id of the worker's process."""
        return os.getpid()

    @ray.method(max_task_retries=-1)
    def answer(self, request: bytes) -> bytes:
        """Answer a request.

        Args:
            request: The name of a method of :class:`~ensemble.servers.token_server.TokenServer`, and its arguments.

        Returns:
            What it returns.
        """
        # Pickle is safe here: Ray itself uses it for everything between the processes of a job.
        name, arguments = pickle.loads(request)
        return pickle.dumps(getattr(self._load()[1], name)(*arguments), protocol=5)

    def _load(self) -> tuple[LocalMember, LocalTokenServer]:
        if self._loaded is None:
            torch.set_num_threads(self._threads)
            member = load_member(self._spec)
            server = LocalTokenServer(member.runner, member.vocabulary.eos_ids, member.context, member.vocabulary.size)
            self._loaded = member, server
        return self._loaded
