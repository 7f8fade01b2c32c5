"""Latency under load: ``python -m benchmarks.load`` asks a real server in the times of a Poisson process.

The server is ``advisor serve`` in a process of its own, with the demo's set; requests go over httpx2 and are streamed.
There are two modes for N = 1, 4, 16 and 64 clients:

- closed: N clients, each of which sends its next request when it has its answer. This gives the throughput of N.
- open: requests are sent at that rate, at the times of a Poisson process, whether or not earlier ones are answered.
  By Little's law (texts in flight = rate x latency) about N are in flight where the server keeps up. The rate of 64
  is all that the server can do, so there requests wait.

Latencies of the open mode count from the time when a request was due. A closed client sends less while the server is
slow, so the slow times would hardly be in its percentiles. Each mode of a round sends for 15 s, and at most 1,000
requests, so three rounds take about seven minutes at most. A figure is the median of the rounds. What is not here: the
network between machines.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import TYPE_CHECKING

import numpy as np

from benchmarks._measure import Figure, arguments, progress, spread, tell
from benchmarks._models import demo_folders, demo_prompts
from benchmarks.serving import KEY, SETS, server

if TYPE_CHECKING:
    import httpx2

CLIENTS = (1, 4, 16, 64)
SHOWN = 16
"""The number of clients whose latencies have a limit."""
LIMIT = "at most 1.5"
_SECONDS = 15.0
"""After these, a round of one mode sends no more requests."""
_WAITING = 4096
"""Texts that the server lets wait: more than a round has, because a refused request says nothing about latency."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A request and when its answer came, on one clock, in seconds.

    Attributes:
        due: When it was to be sent.
        end: When its last byte came.
        is_lost: Whether it was refused, cut off, or has no end.
    """

    due: float
    end: float
    is_lost: bool


Ask = Callable[[int, float], Awaitable[Sent]]
"""Sends the request with a number, which was due at a time."""


def main(given: Sequence[str] | None = None) -> int:
    """Measure, print it, keep it where asked."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--batch-size", default="auto", help="the server's")
    parser.add_argument("--requests", type=int, default=None, help="most in a round of one mode; 1000 without")
    parser.add_argument("--seed", type=int, default=20261122, help="of the arrivals")
    options = parser.parse_args(given)
    with server(demo_folders("demo", SETS[""]), options, texts=_WAITING) as (_, url):
        tell("load", asyncio.run(_measured(url, options)), options)
    return 0


def arrivals(rate: float, requests: int, seed: int) -> list[float]:
    """When requests of a Poisson process are due, in seconds from its beginning [requests], increasing.

    Args:
        rate: Requests a second on average, above 0.
        requests: How many.
        seed: The same seed gives the same times.
    """
    # The pauses of a Poisson process are exponential, with the mean 1 / rate.
    return list(np.cumsum(np.random.default_rng(seed).exponential(1 / rate, requests)).tolist())


async def open_loop(ask: Ask, due: Sequence[float]) -> list[Sent]:
    """Send each request when it is due [in seconds from now], whatever became of the others."""
    start = time.perf_counter()
    tasks = []
    for number, seconds in enumerate(due):
        # Also where it is late: the requests that are under way get their turn.
        await asyncio.sleep(max(0.0, start + seconds - time.perf_counter()))
        tasks.append(asyncio.ensure_future(ask(number, start + seconds)))
    return list(await asyncio.gather(*tasks))


async def closed_loop(ask: Ask, requests: int, clients: int, seconds: float = math.inf) -> list[Sent]:
    """Send requests from some clients, each of which waits for its answer before the next one.

    Args:
        ask: Sends a request.
        requests: The most of all clients together.
        clients: How many clients.
        seconds: After these, none begins another request.
    """
    end = time.perf_counter() + seconds
    numbers = takewhile(lambda _: time.perf_counter() < end, range(requests))

    async def client() -> list[Sent]:
        return [await ask(number, time.perf_counter()) for number in numbers]

    return [sent for one in await asyncio.gather(*(client() for _ in range(clients))) for sent in one]


def summary(sent: Sequence[Sent]) -> dict[str, float]:
    """The figures of a round, from the requests that are not lost.

    Returns:
        ``p50_ms`` and ``p95_ms`` of the latency, ``p95_over_p50``, and ``requests_per_second``.

    Raises:
        RuntimeError: All requests are lost.
    """
    done = [one for one in sent if not one.is_lost]
    if not done:
        raise RuntimeError(f"all {len(sent)} requests are lost; start the server by hand and read its log")
    p50, p95 = (1000 * float(each) for each in np.percentile([one.end - one.due for one in done], (50, 95)))
    seconds = max(one.end for one in done) - min(one.due for one in done)
    return {"p50_ms": p50, "p95_ms": p95, "p95_over_p50": p95 / p50, "requests_per_second": len(done) / seconds}


async def _measured(url: str, options: argparse.Namespace) -> list[Figure]:
    import httpx2

    levels = CLIENTS[:2] if options.quick else CLIENTS
    requests = options.requests or (12 if options.quick else 1000)
    rounds = options.rounds or (1 if options.quick else 3)
    found: dict[str, list[float]] = defaultdict(list)
    sent = lost = 0
    # As many connections as requests may be in flight: a pool that lets them wait would be a queue of the client.
    connections = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient(base_url=url, headers=headers, limits=connections, timeout=600) as client:
        ask = _asker(client, demo_prompts(200))
        await closed_loop(ask, max(levels), max(levels))  # does not count: the first texts of a server are slow
        for turn in range(rounds):
            for clients in levels:
                closed = await closed_loop(ask, requests, clients, _SECONDS)
                rate = summary(closed)["requests_per_second"]
                seed = options.seed + turn
                opened = await open_loop(ask, [due for due in arrivals(rate, requests, seed) if due < _SECONDS])
                sent += len(closed) + len(opened)
                lost += sum(one.is_lost for one in (*closed, *opened))
                found[f"closed_requests_per_second_{clients}"].append(rate)
                for name, value in summary(opened).items():
                    found[f"{name}_{clients}"].append(value)
                progress(f"benchmarks.load: round {turn + 1} of {rounds}, {clients} clients, {rate:.0f} requests/s")
    each = f"{rounds} rounds of at most {requests} requests and {_SECONDS:g} s"
    note = f"{' + '.join(SETS[''])}, {each}, batch of {options.batch_size}, wall clock"
    limits = {f"p95_over_p50_{SHOWN}": LIMIT}
    figures = [spread(name, values, limits.get(name, ""), note) for name, values in found.items()]
    return [*figures, Figure("load_lost", lost, limit="0", note=f"of {sent} requests")]


def _asker(client: httpx2.AsyncClient, prompts: Sequence[str]) -> Ask:
    """What sends a streamed request with the next prompt, and reads its answer."""
    import httpx2

    turns = count()

    async def ask(_: int, due: float) -> Sent:
        # Not by the request's number: every round would have the same prompts at the same times.
        prompt = prompts[next(turns) % len(prompts)]
        body = {"model": "demo", "prompt": prompt, "max_tokens": 64, "stop": ["\n"], "stream": True}
        try:
            async with client.stream("POST", "completions", json=body) as response:
                lines = [line async for line in response.aiter_lines()]
        except httpx2.HTTPError:
            lines = []
        return Sent(due, time.perf_counter(), is_lost="data: [DONE]" not in lines)

    return ask


if __name__ == "__main__":
    sys.exit(main())
