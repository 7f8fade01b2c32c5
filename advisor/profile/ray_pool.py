"""The workers of a run on a cluster: hired before there is anything to do, kept between stages, gone with the run.

What a worker costs is mostly its start: torch and transformers are loaded anew in each, which takes seconds.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from advisor.pool.resources import Resources
from advisor.profile.ray_worker import Worker

if TYPE_CHECKING:
    from ray.actor import ActorHandle

RESTARTS = 2
"""How often a worker that dies is started again for the same model."""


class Staff:
    """Workers by what they ask of a node. The cluster has been joined."""

    def __init__(self) -> None:
        self._idle: dict[Resources, list[ActorHandle[Worker]]] = {}

    def prepare(self, asked: Iterable[Resources]) -> None:
        """Hire for models that may have to answer, as many workers as there is room for."""
        for needs, models in Counter(asked).items():
            self._idle[needs] = [hire(needs) for _ in range(min(models, room(needs)))]

    def take(self, asked: Mapping[Resources, int]) -> list[tuple[Resources, ActorHandle[Worker]]]:
        """Workers for some jobs: idle ones first, and new ones as far as there is room.

        Args:
            asked: How many jobs there are of each kind.
        """
        wanted = {needs: min(jobs, room(needs)) for needs, jobs in asked.items()}
        taken, missing = [], []
        for needs, number in wanted.items():
            idle = self._idle.get(needs, [])
            there = min(number, len(idle))
            taken += [(needs, idle.pop()) for _ in range(there)]
            missing += [needs] * (number - there)
        if missing:
            # Whoever has nothing to do stands in the way of those to come.
            self.close()
        return taken + [(needs, hire(needs)) for needs in missing]

    def keep(self, needs: Resources, actor: ActorHandle[Worker]) -> None:
        """Keep a worker that has nothing to do for what comes next."""
        self._idle.setdefault(needs, []).append(actor)

    def close(self) -> None:
        """Let all go that have nothing to do."""
        for actor in chain.from_iterable(self._idle.values()):
            dismiss(actor)
        self._idle.clear()


def room(needs: Resources) -> int:
    """How many models with the same needs the nodes of the cluster hold side by side, were they empty."""
    cpus, gpus = needs.num_cpus or 1, needs.num_gpus or 0
    shares = [min(node.get("CPU", 0) / cpus, node.get("GPU", 0) / gpus if gpus else math.inf) for node in _nodes()]
    return sum(map(math.floor, shares))


def too_much(needs: Resources) -> str | None:
    """Why no node of the cluster can do what is asked; None where one can."""
    if room(needs):
        return None
    most = " or ".join(sorted({f"{node.get('CPU', 0):g} and {node.get('GPU', 0):g}" for node in _nodes()}))
    return (
        f"{needs.num_cpus or 1:g} cores and {needs.num_gpus or 0:g} GPUs are asked for, and no node of the cluster has "
        f"as many (they have {most}); ask for fewer with num_cpus and num_gpus, or add a node"
    )


def hire(needs: Resources) -> ActorHandle[Worker]:
    """Start a worker as soon as there is room."""
    import ray

    options = {"num_cpus": needs.num_cpus, "num_gpus": needs.num_gpus, "max_restarts": RESTARTS}
    actor: Any = ray.remote(Worker).options(**options).remote()  # typed as if it could be the class
    return cast("ActorHandle[Worker]", actor)


def dismiss(actor: ActorHandle[Worker]) -> None:
    """End a worker."""
    import ray

    with contextlib.suppress(ray.exceptions.RayError):  # the cluster itself may be gone
        ray.kill(actor)


def _nodes() -> list[dict[str, float]]:
    """What each node of the cluster has."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]  # Ray's
