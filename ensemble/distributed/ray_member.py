"""Members whose weights are in workers on a Ray cluster, and how these workers are started."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ensemble.distributed.ray_client import RayServer
from ensemble.distributed.ray_worker import MemberWorker
from ensemble.distributed.remote_member import RemoteMember
from ensemble.errors import InputError
from ensemble.models.spec import ModelSpec
from ensemble.servers.token_client import TokenClient
from ensemble.vocabulary.token_bytes import Vocabulary

RESTARTS = 3
"""Times that a member's worker is restarted after its process died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayMember(RemoteMember):
    """A member whose weights are in a worker on a Ray cluster.

    Attributes:
        server: The connection to the worker.
    """

    server: RayServer

    def free_memory(self) -> int | None:
        """See :meth:`ensemble.models.member.Member.free_memory`."""
        free: int | None = self.server.wait(self.server.actor.free_memory.remote)
        return free


def start_members(specs: Sequence[ModelSpec]) -> list[RayMember]:
    """Load members in workers on the joined cluster, each on another node if there are enough nodes.

    A member on ``cuda`` gets a GPU of the cluster for itself. The others, also those on ``auto``, share their nodes'
    cores.

    Args:
        specs: The members, the primary first.

    Raises:
        InputError: No cluster is joined, it has too few GPUs, or a checkpoint cannot be used.
        MemberError: A member failed while it was loaded.
    """
    if not ray.is_initialized():
        raise InputError(
            "no Ray cluster is joined; load the members inside `with ensemble.distributed.ray_cluster.cluster():`"
        )
    # This machine's GPUs are not the cluster's, and a GPU of the cluster is reserved only where it is requested.
    specs = [replace(spec, device="cpu") if spec.device in (None, "auto") else spec for spec in specs]
    _check_gpus(specs)
    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]  # Ray types few
    servers = [_start(spec, number, nodes, len(specs)) for number, spec in enumerate(specs)]
    # All calls are made before the first reply is awaited, so the members load at the same time.
    pending = [server.actor.describe.remote() for server in servers]
    return [_member(*each) for each in zip(servers, specs, pending, strict=True)]


def _check_gpus(specs: Sequence[ModelSpec]) -> None:
    """Make sure that the cluster has enough GPUs; Ray would wait for more of them for ever."""
    wanted = sum(_on_gpu(spec) for spec in specs)
    gpus = ray.cluster_resources().get("GPU", 0)  # type: ignore[no-untyped-call]  # Ray types few
    if wanted > gpus:
        raise InputError(
            f"{wanted} members are to be on GPUs, and the cluster has {gpus:g}; use --device cpu, or fewer members"
        )


def _on_gpu(spec: ModelSpec) -> bool:
    return (spec.device or "").partition(":")[0] == "cuda"


def _start(spec: ModelSpec, number: int, nodes: Sequence[Any], members: int) -> RayServer:
    options: dict[str, Any] = {"max_restarts": RESTARTS, "num_cpus": 0, "enable_task_events": False}
    threads = 1
    if _on_gpu(spec):
        # Ray shows each worker its own GPU only, so the number of the GPU does not matter.
        spec, options = replace(spec, device="cuda"), options | {"num_gpus": 1, "scheduling_strategy": "SPREAD"}
    else:
        node = nodes[number % len(nodes)]
        cores = int(node["Resources"].get("CPU", 1)) // math.ceil(members / len(nodes))
        threads = max(1, cores)
        # "soft" lets Ray restart the worker on another node if this one dies.
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)
    # A worker has another working directory, so relative paths would not be found.
    spec = replace(spec, checkpoint=spec.weights.absolute)
    return RayServer(spec.name, ray.remote(MemberWorker).options(**options).remote(spec, threads), RESTARTS)


def _member(server: RayServer, spec: ModelSpec, pending: Any) -> RayMember:
    facts = server.wait(lambda: pending)
    server.limits, tokenizer = facts["limits"], facts["tokenizer"]
    return RayMember(
        name=spec.name,
        tokenizer=tokenizer,
        vocabulary=Vocabulary(tokenizer, tuple(facts["eos_ids"]), facts["size"]),
        context=facts["context"],
        chat_template=spec.chat_template or "auto",
        seq2seq=facts["seq2seq"],
        spec=facts["spec"],
        # Replies arrive on the CPU, whatever device the worker computes on.
        device=torch.device("cpu"),
        client=TokenClient(spec.name, server, patience=0),
        server=server,
        place=facts["place"],
        token_size=facts["token_size"],
    )
