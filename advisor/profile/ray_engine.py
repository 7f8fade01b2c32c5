"""A Ray cluster: jobs side by side, each on the cores and GPUs that its models ask for.

A worker is an actor of Ray, which places it, and starts it again where it dies, on another node if need be. It does one
job after the other of those that ask for the same, stage after stage, so that libraries are loaded once. Responses are
streamed here as they are finished, and kept here; a worker that was started again is asked only what is left.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.pool.resources import Resources, combined, resources_of
from advisor.profile.engine import Answered, Begun, Ended, Event, Job
from advisor.profile.local_engine import LocalEngine
from advisor.profile.ray_pool import RESTARTS, Staff, dismiss, hire, too_much
from advisor.profile.ray_worker import Place, Worker, pack
from advisor.servers.address import ServerAddress
from ensemble.errors import InputError
from ensemble.models.spec import first_line

if TYPE_CHECKING:
    from ray import ObjectRef, ObjectRefGenerator
    from ray.actor import ActorHandle

    from advisor.pool.pool_file import PoolEntry
    from advisor.tasks.task import Example

_MEMORY = re.compile(r"running low on memory|memory usage threshold|memory pressure", re.IGNORECASE)
"""How Ray says that it ended a worker for the sake of its node's memory. That of others may be meant in other words."""
_WAY_OUT = "ask for more with num_cpus or num_gpus, so that fewer share a node, or take a smaller --batch-size"


@dataclass(slots=True, eq=False)
class _Hand:
    """A worker, as the driver sees it.

    Attributes:
        needs: What it asks of a node.
        actor: Its handle.
        queue: The jobs that it can do.
        job: What it is doing; None where it does nothing.
        left: The questions of that without a response.
        place: Where it was the last time; None until it is there.
        deaths: How often it has died.
    """

    needs: Resources
    actor: ActorHandle[Worker]
    queue: deque[Job]
    job: Job | None = None
    left: dict[int, Example] = field(default_factory=dict)
    place: Place | None = None
    deaths: int = 0


class ClusterEngine:
    """See :class:`advisor.profile.engine.Engine`; the cluster has been joined (:mod:`ensemble.distributed`).

    Its workers stay until it is closed, which the end of a ``with`` block does.

    Args:
        cache_dir: Where workers keep the tables of joint vocabularies, each on its node.
        say: Called with what the user should know, a sentence each.
    """

    def __init__(self, cache_dir: Path, say: Callable[[str], None]) -> None:
        self._cache_dir = cache_dir
        self._say = say
        self._staff = Staff()

    def __enter__(self) -> ClusterEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self._staff.close()

    def prepare(self, candidates: Sequence[PoolEntry], device: str) -> None:
        """Make sure that a node of the cluster has what a candidate asks for, for each of them, and start workers.

        Args:
            candidates: The pool.
            device: For candidates that name none.

        Raises:
            InputError: None has; names the candidate's line in the pool file.
        """
        asked = []
        for candidate in candidates:
            if isinstance(candidate.checkpoint, ServerAddress):
                continue
            asked.append(resources_of(candidate.resources, candidate.device or device, candidate.place))
            if reason := too_much(asked[-1]):
                raise InputError(f"{candidate.place}: {reason}")
        self._staff.prepare(asked)

    def run(self, jobs: Iterable[Job]) -> Generator[Event, None, None]:
        """See the protocol."""
        queues: dict[Resources, deque[Job]] = {}
        here = []
        for given in jobs:
            if not given.asked or not given.models:
                here.append(given)
                continue
            places = zip(given.needs, given.models, strict=True)
            job = replace(given, needs=tuple(resources_of(one, model.device, model.name) for one, model in places))
            needs = combined(job.needs)
            if reason := too_much(needs):
                yield from (Begun(job.name), Ended(job.name, error=f"{job.name}: {reason}"))
            else:
                queues.setdefault(needs, deque()).append(job)
        workers = self._staff.take({needs: len(queue) for needs, queue in queues.items()})
        hands = [_Hand(needs, actor, queues[needs]) for needs, actor in workers]
        awaited: dict[Any, _Hand] = {_call(hand): hand for hand in hands}
        try:
            yield from self._oversee(awaited)
        finally:
            # Some are left where the run was stopped.
            for hand in awaited.values():
                dismiss(hand.actor)
        yield from LocalEngine().run(here)

    def _oversee(self, awaited: dict[Any, _Hand]) -> Iterator[Event]:
        """Give the workers jobs, and pass on what they say, until all is done.

        Args:
            awaited: Of each worker the one thing that is awaited: that it is there, or the next that it says. Those
                that have nothing more to do are taken out.
        """
        import ray

        while awaited:
            [ready], _ = ray.wait(list(awaited), num_returns=1)
            hand = awaited[ready]
            following = yield from self._hear(hand, ready)
            del awaited[ready]
            if following is not None:
                awaited[following] = hand
                continue
            if hand.deaths:
                dismiss(hand.actor)
                if hand.queue:
                    other = _Hand(hand.needs, hire(hand.needs), hand.queue)
                    awaited[_call(other)] = other
            else:
                self._release([hand, *_late(awaited)], awaited)

    def _release(self, idle: Sequence[_Hand], awaited: Mapping[Any, _Hand]) -> None:
        """Keep workers for what comes next, unless others wait for their places."""
        wanted = any(other.place is None or other.deaths for other in awaited.values())
        for hand in idle:
            if wanted:
                dismiss(hand.actor)
            else:
                self._staff.keep(hand.needs, hand.actor)

    def _hear(self, hand: _Hand, ready: Any) -> Generator[Event, None, Any]:
        """Pass on what a worker says, and give it something to do where it has nothing.

        Returns:
            What to await of it; None where it has nothing to do.
        """
        import ray

        try:
            if isinstance(ready, ray.ObjectRef):
                hand.place = ray.get(ready)
            else:
                event = ray.get(next(ready))
                if isinstance(event, Answered):
                    del hand.left[event.number]
                    yield event
                if not isinstance(event, Ended):
                    return ready
                yield self._end(hand, event)
        except ray.exceptions.RayError as error:
            if isinstance(ready, ray.ObjectRef) or isinstance(error, ray.exceptions.RayTaskError):
                yield from self._give_up(hand, error)
                return None
            self._note(hand, error)
            return _call(hand)
        yield from self._employ(hand)
        return self._ask(hand)

    def _employ(self, hand: _Hand) -> Iterator[Event]:
        """Give a worker that is there something to do, if there is anything."""
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
        # It may be started on another node, where they have what it needs.
        self._staff.close()
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
        hand.deaths += 1


def _late(awaited: dict[Any, _Hand]) -> list[_Hand]:
    """Take out the workers that are not there yet, and for whom nothing is left."""
    late = {asked: hand for asked, hand in awaited.items() if hand.place is None and not hand.queue}
    for asked in late:
        del awaited[asked]
    return list(late.values())


def _call(hand: _Hand) -> ObjectRef[Place]:
    """Ask a worker where it is; the answer comes when it is there, the first time or again."""
    place: ObjectRef[Place] = hand.actor.place.options(max_task_retries=-1).remote()
    return place


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
