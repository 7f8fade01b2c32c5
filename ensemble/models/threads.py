"""How many threads compute a model on the processor: no more than help, by a measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch

from ensemble.models.member import LocalMember, Member

_ROWS, _TOKENS, _STEPS = 8, 8, 2
_ROUNDS = 5
_ENOUGH = 0.05
"""Seconds of trials after which no other round follows."""
_HELPS = 1.1
"""Twice the threads must be faster by this factor: they take cores from other programs, and wait for each other."""
_LARGEST = 2**30
"""Parameters of the largest model that is measured. In larger ones each operation is long, so threads hardly wait."""


def fastest_threads(member: LocalMember, most: int) -> int:
    """The number of torch's threads with which a model is fastest now; of about equal ones the smallest.

    Threads wait for each other after each operation. So small models gain nothing from several, and become much slower
    where other programs use the cores.

    Args:
        member: A model on the processor.
        most: The largest number, at least 1; halves of it are tried.
    """
    if member.seq2seq is not None or member.model.num_parameters() > _LARGEST:
        return most
    before = torch.get_num_threads()
    try:
        while most > 1 and not _is_faster(lambda: _work(member), most, most // 2):
            most //= 2
    finally:
        torch.set_num_threads(before)
    return most


def set_fastest_threads(members: Sequence[Member]) -> None:
    """Let the calling thread compute with the threads of the member that needs the most; see :func:`fastest_threads`.

    It is called by the thread that computes, because OpenMP keeps other threads for each. Where two threads have some,
    more of them than cores, they sleep instead of waiting actively, and small operations gain nothing from them.
    """
    most = torch.get_num_threads()
    local = [member for member in members if isinstance(member, LocalMember) and member.model.device.type == "cpu"]
    if local:
        torch.set_num_threads(max(fastest_threads(member, most) for member in local))


def _is_faster(work: Callable[[], None], many: int, few: int) -> bool:
    seconds: dict[int, list[float]] = {many: [], few: []}
    for _ in range(_ROUNDS):
        for threads, own in seconds.items():
            torch.set_num_threads(threads)
            start = time.perf_counter()
            work()
            own.append(time.perf_counter() - start)
        if sum(map(sum, seconds.values())) > _ENOUGH:
            break
    return _HELPS * median(seconds[many]) < median(seconds[few])


@torch.inference_mode()
def _work(member: LocalMember) -> None:
    """Some prompts and steps."""
    runner = member.runner()
    runner.admit([[1] * _TOKENS] * _ROWS)
    for _ in range(_STEPS):
        runner.feed(runner.lengths, [[1]] * _ROWS)
