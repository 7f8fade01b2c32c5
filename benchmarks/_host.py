"""What a step of the decoder costs beyond the forward passes of its models."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from random import Random

import torch

from benchmarks._counting import ForwardPasses
from benchmarks._decoding import K
from benchmarks._measure import Figure, Timer, spread
from benchmarks._models import demo_prompts, writing
from ensemble import Ensemble
from ensemble.decode.decoder import Decoder
from ensemble.decode.settings import Batch, Settings
from ensemble.models.member import Member

HOST_LIMITS = {
    (2, 1): 0.3,
    (2, 16): 0.7,
    (2, 64): 1.6,
    (3, 1): 0.45,
    (3, 16): 1.05,
    (3, 64): 2.4,
}
"""At most so many milliseconds of a step, for each number of members and rows."""
_NUMBERS = 1.2
"""A step takes at most so many times as long where the text is numbers."""
_NAMES = {2: "", 3: "_three"}
"""The end of a figure's name, for each number of members."""


def host_figures(members: Sequence[Member], timer: Timer, steps: int, sizes: Sequence[int]) -> list[Figure]:
    """The host time of a step for each number of members and rows, in prose and where the text is numbers.

    Args:
        members: Three, the primary first; with fewer, less is measured.
        timer: How it is timed.
        steps: Steps of a round.
        sizes: Rows of the batches.
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
                key, limit = f"host_ms_per_step_{size}{end}", f"at most {HOST_LIMITS[count, size]}"
                taken = [
                    statistics.median(_host_ms(some, size, steps, timer)) for _ in range(timer.untimed + timer.rounds)
                ]
                figures.append(spread(key, taken[timer.untimed :], limit, note))
            key, limit = f"host_ms_per_step_{size}{end}_numbers", f"at most {_NUMBERS * HOST_LIMITS[count, size]:.3g}"
            # The text is forced: no model of the demo writes numbers for long.
            with writing(some[0], _numbers(4000)):
                each = steps // 4 + 1
                taken = _host_ms(some, size, timer.rounds * each, timer, skipped=2 * steps)
            rounds = [statistics.median(taken[n : n + each]) for n in range(0, len(taken), each)]
            said = f"{note}; the primary is made to write CSV, steps from token {2 * steps} on"
            figures.append(spread(key, rounds, limit, said))
        return figures
    finally:
        torch.set_num_threads(threads)


def _numbers(length: int) -> str:
    """At least ``length`` characters of CSV, in which words seldom end."""
    random, lines = Random("csv 0"), [""]
    while sum(map(len, lines)) < length:
        numbers = (
            random.choice((str(random.randint(0, 99_999)), f"{random.uniform(-100, 100):.3f}")) for _ in range(6)
        )
        lines.append(",".join([f"2026-{random.randint(1, 12):02}-01", *numbers]) + "\n")
    return "".join(lines)


def _host_ms(members: Sequence[Member], size: int, steps: int, timer: Timer, skipped: int = 0) -> list[float]:
    """Milliseconds of some steps in which every row emits a token, after those that are skipped in each text."""
    # The primary decides where it is made to write a text. Weights cost the same whatever they are.
    ensemble = Ensemble(members, k=K, weights=[len(members), *(1.0 for _ in members[1:])])
    taken: list[float] = []
    with ForwardPasses((member.local.model for member in members), timer.now) as passes:
        for decoder in _full(ensemble, size, steps, skipped):
            start, before = timer.now(), passes.seconds
            decoder.step()
            taken.append(1000 * (timer.now() - start - passes.seconds + before))
    return taken


def _full(ensemble: Ensemble, size: int, steps: int, skipped: int = 0) -> Iterator[Decoder]:
    """A decoder before each step in which every row emits a token, after those that are skipped in each text."""
    prompts = [ensemble.encode(prompt) for prompt in demo_prompts(4 * size)]
    first = done = 0
    while done < steps:
        decoder = ensemble.decoder(Batch(size, draft=0))
        for n in range(size):
            decoder.add(n, prompts[(first + n) % len(prompts)], Settings(1 + skipped + steps))
        first += size
        for _ in range(1 + skipped):  # the first one reads the prompts
            decoder.step()
        while len(decoder.running) == size and done < steps:
            yield decoder
            done += 1
