"""What a step of the decoder costs beyond the forward passes of its models."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

import torch

from benchmarks._counting import ForwardPasses
from benchmarks._decoding import K
from benchmarks._measure import Figure, Timer, spread
from benchmarks._models import demo_prompts
from ensemble import Ensemble
from ensemble.decode.decoder import Decoder
from ensemble.decode.settings import Batch, Settings
from ensemble.models.member import Member

_LIMITS = {
    (2, 1): 0.3,
    (2, 16): 0.7,
    (2, 64): 1.6,
    (3, 1): 0.45,
    (3, 16): 1.05,
    (3, 64): 2.4,
}
"""At most so many milliseconds of a step, for each number of members and rows."""
_NAMES = {2: "", 3: "_three"}
"""The end of a figure's name, for each number of members."""


def host_figures(
    members: Sequence[Member],
    timer: Timer,
    steps: int,
    sizes: Sequence[int],
    is_late: Callable[[], bool] = lambda: False,
) -> list[Figure]:
    """The host time of a step for each number of members and rows.

    Args:
        members: Three, the primary first; with fewer, less is measured.
        timer: How it is timed.
        steps: Steps of a round.
        sizes: Rows of the batches.
        is_late: Whether no time is left to measure what is still to be measured.
    """
    threads = torch.get_num_threads()
    # With more threads, the host would wait for the cores that its models use.
    torch.set_num_threads(1)
    try:
        figures = []
        for count, end in _NAMES.items():
            if len(members) < count:
                continue
            some = members[:count]
            note = f"{' + '.join(member.name for member in some)}, one thread, step() without the forward passes"
            for size in sizes:
                key, limit = f"host_ms_per_step_{size}{end}", f"at most {_LIMITS[count, size]}"
                if is_late():
                    figures.append(Figure(key, None, limit=limit, note="the time of this section was over"))
                    continue
                taken = [
                    statistics.median(_host_ms(some, size, steps, timer)) for _ in range(timer.untimed + timer.rounds)
                ]
                figures.append(spread(key, taken[timer.untimed :], limit, note))
        return figures
    finally:
        torch.set_num_threads(threads)


def _host_ms(members: Sequence[Member], size: int, steps: int, timer: Timer) -> list[float]:
    """Milliseconds of some steps in which every row emits a token."""
    ensemble = Ensemble(members, k=K)
    taken: list[float] = []
    with ForwardPasses((member.local.model for member in members), timer.now) as passes:
        for decoder in _full(ensemble, size, steps):
            start, before = timer.now(), passes.seconds
            decoder.step()
            taken.append(1000 * (timer.now() - start - passes.seconds + before))
    return taken


def _full(ensemble: Ensemble, size: int, steps: int) -> Iterator[Decoder]:
    """A decoder before each step in which every row emits a token."""
    prompts = [ensemble.encode(prompt) for prompt in demo_prompts(4 * size)]
    first = done = 0
    while done < steps:
        decoder = ensemble.decoder(Batch(size, draft=0))
        for n in range(size):
            decoder.add(n, prompts[(first + n) % len(prompts)], Settings(1 + steps))
        first += size
        decoder.step()  # reads the prompts
        while len(decoder.running) == size and done < steps:
            yield decoder
            done += 1
