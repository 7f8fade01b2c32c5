"""Members of an ensemble whose weights are on nodes of a Ray cluster: what they are here, and how they get there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ensemble.distributed.ray_link import Link
from ensemble.distributed.ray_node import Node
from ensemble.distributed.ray_runner import RemoteSite
from ensemble.errors import InputError
from ensemble.models.member import Member
from ensemble.models.spec import ModelSpec
from ensemble.vocabulary.token_bytes import Vocabulary

RESTARTS = 3
"""Times that a member's process is started anew after it died."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Weights on a node of a cluster; see :class:`ensemble.models.seat.Seat`.

    Attributes:
        link: The line to the node.
        place: The node, and the device there.
        token_size: Bytes that are taken there for each token of a row.
    """

    link: Link
    place: str
    token_size: int

    @property
    def device(self) -> torch.device:
        """See :class:`ensemble.models.seat.Seat`."""
        return torch.device("cpu")

    def free_memory(self) -> int | None:
        """See :class:`ensemble.models.seat.Seat`."""
        free: int | None = self.link.insist(self.link.actor.free.remote)
        return free

    def site(self) -> RemoteSite:
        """See :class:`ensemble.models.seat.Seat`."""
        return RemoteSite(self.link)


def start_members(specs: Sequence[ModelSpec], restarts: int = RESTARTS) -> list[Member]:
    """Load members on the nodes of the cluster that is joined, each on another one as far as there are enough.

    A member on ``cuda`` gets one of the cluster's GPUs for itself. The others share their nodes' cores.

    Args:
        specs: The members, the primary first.
        restarts: Times that a member's process is started anew after it died, at least 0.

    Raises:
        InputError: No cluster is joined, it has too few GPUs, or a checkpoint cannot be used.
        MemberError: A member failed while it was loaded.
    """
    if not ray.is_initialized():
        raise InputError(
            "no cluster is joined; do that first (with ensemble.cluster.cluster(): ...), and leave it afterwards"
        )
    _check_devices(specs)
    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]  # Ray types few
    links = [_start(spec, number, nodes, len(specs), restarts) for number, spec in enumerate(specs)]
    # All load at the same time.
    asked = [link.actor.tell.remote() for link in links]
    return [_member(*each) for each in zip(links, specs, asked, strict=True)]


def _check_devices(specs: Sequence[ModelSpec]) -> None:
    """Make sure that the cluster has as many GPUs as are asked for; it would wait for more for ever."""
    wanted = sum(_on_gpu(spec) for spec in specs)
    there = ray.cluster_resources().get("GPU", 0)  # type: ignore[no-untyped-call]  # Ray types few
    if wanted > there:
        raise InputError(
            f"{wanted} members are to be on GPUs, and the cluster has {there:g}; use --device cpu, or fewer members"
        )


def _on_gpu(spec: ModelSpec) -> bool:
    return spec.device.partition(":")[0] == "cuda"


def _start(spec: ModelSpec, number: int, nodes: Sequence[Any], members: int, restarts: int) -> Link:
    options: dict[str, Any] = {"max_restarts": restarts, "num_cpus": 0, "enable_task_events": False}
    threads = 1
    if _on_gpu(spec):
        # Whichever it is, its process sees no other.
        spec, options = replace(spec, device="cuda"), options | {"num_gpus": 1, "scheduling_strategy": "SPREAD"}
    else:
        node = nodes[number % len(nodes)]
        cores = int(node["Resources"].get("CPU", 1)) // math.ceil(members / len(nodes))
        threads = max(1, cores)
        # If that node dies, another one will do.
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)
    # Its process has another working directory.
    spec = replace(spec, checkpoint=spec.checkpoint.absolute)
    return Link(spec.name, ray.remote(Node).options(**options).remote(spec, threads), restarts)


def _member(link: Link, spec: ModelSpec, asked: Any) -> Member:
    told = link.insist(link.actor.tell.remote, asked)
    tokenizer = told["tokenizer"]
    return Member(
        name=spec.name,
        seat=Elsewhere(link, told["place"], told["token_size"]),
        tokenizer=tokenizer,
        vocabulary=Vocabulary(tokenizer, tuple(told["eos_ids"]), told["size"]),
        context=told["context"],
        chat_template=spec.chat_template,
        seq2seq=told["seq2seq"],
        spec=told["spec"],
    )
