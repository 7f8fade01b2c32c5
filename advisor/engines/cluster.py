"""A Ray cluster: jobs side by side, each on the cores and GPUs that its models ask for.

A worker is an actor of Ray, which places it, and starts it again where it dies, on another node if need be. It does one
job after the other of those that ask for the same, so that libraries are loaded once. Responses are streamed here as
they are finished, and kept here; a worker that was started again is asked only what is left.
"""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from advisor.engines.engine import Answered, Begun, Ended, Event, Job
from advisor.engines.local import LocalEngine
from advisor.engines.needs import Needs, needs_of, together
from advisor.engines.worker import Place, Worker, pack
from advisor.remote.address import Remote
from ensemble.checkpoint import first_line
from ensemble.errors import InputError

if TYPE_CHECKING:
    from ray import ObjectRef, ObjectRefGenerator
    from ray.actor import ActorHandle

    from advisor.pool import Candidate
    from advisor.tasks.values import Example

RESTARTS = 2
"""How often a worker that dies is started again for the same model."""
_MEMORY = re.compile(r"running low on memory|memory usage threshold|memory pressure", re.IGNORECASE)
"""How Ray says that it ended a worker for the sake of its node's memory. That of others may be meant in other words."""
_WAY_OUT = "ask for more with num_cpus or num_gpus, so that fewer share a node, or take a smaller --batch-size"


@dataclass(slots=True, eq=False)
class _Hand:
    """A worker, as the driver sees it.

    Attributes:
        actor: Its handle.
        queue: The jobs that it can do.
        job: What it is doing; None where it does nothing.
        left: The questions of that without a response.
        place: Where it was the last time.
        deaths: How often it has died.
    """

    actor: ActorHandle[Worker]
    queue: deque[Job]
    job: Job | None = None
    left: dict[int, Example] = field(default_factory=dict)
    place: Place | None = None
    deaths: int = 0


class ClusterEngine:
    """See :class:`advisor.engines.engine.Engine`; the cluster has been joined (:func:`ensemble.cluster.cluster`).

    Args:
        cache_dir: Where workers keep the tables of joint vocabularies, each on its node.
        say: Called with what the user should know, a sentence each.
    """

    def __init__(self, cache_dir: Path, say: Callable[[str], None]) -> None:
        self._cache_dir = cache_dir
        self._say = say

    def check(self, candidates: Sequence[Candidate], device: str) -> None:
        """Make sure that a node of the cluster has what a candidate asks for, for each of them.

        Args:
            candidates: The pool.
            device: For candidates that name none.

        Raises:
            InputError: None has; names the candidate's line in the pool file.
        """
        for candidate in candidates:
            if isinstance(candidate.checkpoint, Remote):
                continue
            if reason := _too_much(needs_of(candidate.needs, candidate.device or device, candidate.place)):
                raise InputError(f"{candidate.place}: {reason}")

    def run(self, jobs: Iterable[Job]) -> Generator[Event, None, None]:
        """See the protocol."""
        queues: dict[Needs, deque[Job]] = {}
        here = []
        for given in jobs:
            if not given.asked or not given.models:
                here.append(given)
                continue
            places = zip(given.needs, given.models, strict=True)
            job = replace(given, needs=tuple(needs_of(one, model.device, model.name) for one, model in places))
            needs = together(job.needs)
            if reason := _too_much(needs):
                yield from (Begun(job.name), Ended(job.name, error=f"{job.name}: {reason}"))
            else:
                queues.setdefault(needs, deque()).append(job)
        # As many workers as there are jobs: Ray starts as many as there is room for.
        hands = [_Hand(_hire(needs), queue) for needs, queue in queues.items() for _ in queue]
        try:
            yield from self._oversee(hands)
        finally:
            for hand in hands:
                _dismiss(hand)
        yield from LocalEngine().run(here)

    def _oversee(self, hands: list[_Hand]) -> Iterator[Event]:
        """Give the workers jobs, and pass on what they say, until all is done."""
        import ray

        # Of each worker one thing is awaited: that it is there, or the next that it says.
        awaited: dict[Any, _Hand] = {_call(hand): hand for hand in hands}
        while awaited:
            [ready], _ = ray.wait(list(awaited), num_returns=1)
            hand = awaited.pop(ready)
            following: Any = ready
            try:
                if isinstance(ready, ray.ObjectRef):
                    hand.place = ray.get(ready)
                    following = None
                else:
                    event = ray.get(next(ready))
                    if isinstance(event, Answered):
                        del hand.left[event.number]
                        yield event
                    elif isinstance(event, Ended):
                        yield self._end(hand, event)
                        following = None
            except ray.exceptions.RayError as error:
                over = isinstance(ready, ray.ObjectRef) or isinstance(error, ray.exceptions.RayTaskError)
                if over:
                    yield from self._give_up(hand, error)
                    continue
                self._note(hand, error)
                following = _call(hand)
            if following is None:
                yield from self._employ(hand)
                following = self._ask(hand)
            if following is not None:
                awaited[following] = hand

    def _employ(self, hand: _Hand) -> Iterator[Event]:
        """Give a worker that is there something to do, if there is anything; else it can go."""
        if hand.job is not None and not hand.left:
            # It died between its last response and its end.
            yield self._end(hand, Ended(hand.job.name))
        # One that has died begins with no other model: each has all its restarts.
        if hand.job is None and hand.queue and not hand.deaths:
            hand.job = hand.queue.popleft()
            hand.left = dict(hand.job.asked)
            yield Begun(hand.job.name)

    def _ask(self, hand: _Hand) -> ObjectRefGenerator[Event] | None:
        if hand.job is None:
            _dismiss(hand)
            return None
        work = hand.actor.work.options(num_returns="streaming")
        stream: ObjectRefGenerator[Event] = work.remote(pack(hand.job, hand.left, self._cache_dir))
        return stream

    def _end(self, hand: _Hand, event: Ended) -> Ended:
        hand.job = None
        return event

    def _note(self, hand: _Hand, error: Exception) -> None:
        """A worker has died, and Ray starts it again, as often as it may."""
        hand.deaths += 1
        if hand.job is not None:
            self._say(
                f"{hand.job.name}: its worker{_where(hand)} died ({_reason(error)}); it is started again and asked "
                f"what is left, {len(hand.left)} of {len(hand.job.asked)} questions"
            )

    def _give_up(self, hand: _Hand, error: Exception) -> Iterator[Event]:
        """A worker will not come back, or its code is broken: so much for what it was doing, or would have done."""
        if hand.job is None and hand.queue:
            hand.job = hand.queue.popleft()
            yield Begun(hand.job.name)
        if hand.job is not None:
            times = f"died{_where(hand)}, and again after {RESTARTS} restarts" if hand.deaths else "failed"
            kept = len(hand.job.asked) - len(hand.left) if hand.left else 0
            text = f"{hand.job.name}: its worker {times}: {_reason(error)}; {kept} responses are kept"
            yield self._end(hand, Ended(hand.job.name, error=text))
        _dismiss(hand)


def _too_much(needs: Needs) -> str | None:
    """Why no node of the cluster can do what is asked; None where one can."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]  # Ray's
    cpus, gpus = needs.num_cpus or 1, needs.num_gpus or 0
    if any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        return None
    most = " or ".join(sorted({f"{node.get('CPU', 0):g} and {node.get('GPU', 0):g}" for node in nodes}))
    return (
        f"{cpus:g} cores and {gpus:g} GPUs are asked for, and no node of the cluster has as many (they have {most}); "
        "ask for fewer with num_cpus and num_gpus, or add a node"
    )


def _hire(needs: Needs) -> ActorHandle[Worker]:
    import ray

    options = {"num_cpus": needs.num_cpus, "num_gpus": needs.num_gpus, "max_restarts": RESTARTS}
    actor: Any = ray.remote(Worker).options(**options).remote()  # typed as if it could be the class
    return cast("ActorHandle[Worker]", actor)


def _call(hand: _Hand) -> ObjectRef[Place]:
    """Ask a worker where it is; the answer comes when it is there, the first time or again."""
    place: ObjectRef[Place] = hand.actor.place.options(max_task_retries=-1).remote()
    return place


def _dismiss(hand: _Hand) -> None:
    import ray

    with contextlib.suppress(ray.exceptions.RayError):  # the cluster itself may be gone
        ray.kill(hand.actor)


def _where(hand: _Hand) -> str:
    return f" on {hand.place.node} (process {hand.place.process})" if hand.place else ""


def _reason(error: Exception) -> str:
    """Why a worker died, in a line, as far as Ray knows."""
    import ray

    text = str(error)
    if isinstance(error, ray.exceptions.OutOfMemoryError) or _MEMORY.search(text):
        return f"its node ran out of memory; {_WAY_OUT}"
    if isinstance(error, ray.exceptions.RayTaskError):
        return first_line(error.cause) if isinstance(error.cause, Exception) else text.strip().splitlines()[-1]
    if isinstance(error, ray.exceptions.ActorDiedError) and error.actor_init_failed:
        return text.strip().splitlines()[-1]
    return "the process ended" if isinstance(error, ray.exceptions.RayActorError) else first_line(error)
